//! The serving end: threads that answer requests from the regions of this node.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farfork_sys::sync::locked;

use super::answer::{Answer, Request, request};
use super::handshake;
use super::listener::{Listener, LocalListener};
use super::sealed::{self, Receiver};
use super::shared::{ServerSettings, Shared};
use super::socket::{self, Socket, Until};
use super::wire::{TOKEN_BYTES, invalid};
use crate::lane::Lane;
use crate::memory::SharedMemory;

/// A running server. It stops when it is dropped.
pub struct Server {
    address: SocketAddr,
    listeners: Vec<Listener>,
    /// The name of its socket goes with it.
    local: Option<LocalListener>,
    shared: Arc<Shared>,
    acceptors: Vec<JoinHandle<()>>,
}

/// Requests that wait for a worker. The reader waits when there are more.
const QUEUE: usize = 64;

impl Server {
    /// Serves connections to `listener` on threads of its own.
    ///
    /// # Errors
    ///
    /// The listener has no address, or no thread can be started.
    pub fn start(listener: TcpListener, settings: ServerSettings) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let local = settings.local.as_deref().and_then(|path| LocalListener::bind(path).ok());
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token)?;
        let known = local.as_ref().map(|local| (token, local.path().to_owned()));
        let mut listeners = vec![Listener::Tcp(listener)];
        if let Some(local) = &local {
            listeners.push(local.listener()?);
        }
        let shared = Arc::new(Shared {
            settings,
            local: known,
            served_bytes: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            streams: Mutex::default(),
            accepted: AtomicU64::new(0),
        });
        // A thread that cannot be started stops those before it.
        let acceptors = Vec::new();
        let mut server = Server { address, listeners, local, shared, acceptors };
        for listener in &server.listeners {
            let (accepting, for_thread) = (listener.try_clone()?, Arc::clone(&server.shared));
            let acceptor = std::thread::Builder::new()
                .name("fabric-accept".to_owned())
                .spawn(move || accept_all(&accepting, &for_thread))?;
            server.acceptors.push(acceptor);
        }
        Ok(server)
    }

    /// Where clients of this host find it; `None` if they use TCP.
    pub fn local(&self) -> Option<&Path> {
        self.local.as_ref().map(LocalListener::path)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes of segments that were sent so far.
    pub fn served_bytes(&self) -> u64 {
        self.shared.served_bytes.load(Ordering::Relaxed)
    }

    /// Connections at the moment.
    pub fn connections(&self) -> usize {
        self.shared.streams().len()
    }

    /// Closes the listener's port and all connections.
    pub fn stop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.local = None;
        self.listeners.iter().for_each(Listener::shut_down);
        self.shared.streams().shut_down();
        for acceptor in self.acceptors.drain(..) {
            let _ = acceptor.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept_all(listener: &Listener, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
        let Ok(stream) = accepted else {
            // Out of descriptors, or the client went away.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(known) = stream.try_clone() else { continue };
        shared.streams().add(number, known, shared.settings.strangers);
        // A stop between the look above and here must end this stream, too.
        if shared.is_stopping.load(Ordering::SeqCst) {
            stream.shut_down();
        }
        let for_thread = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("fabric-serve".to_owned());
        let started = thread.spawn(move || {
            // How a connection ends concerns its client, which reports it.
            let _ = serve(stream, number, &for_thread);
            for_thread.streams().remove(number);
        });
        if started.is_err() {
            shared.streams().remove(number);
        }
    }
}

/// One connection, from its handshake to its end.
fn serve(mut stream: Socket, number: u64, shared: &Shared) -> io::Result<()> {
    let timeout = shared.settings.timeout;
    stream.prepare(timeout)?;
    if let Socket::Unix(stream) = &stream {
        socket::demand_same_user(stream)?;
    }
    let admit = || shared.streams().admit(number, shared.settings.connections);
    let certificates = shared.settings.certificates.as_ref().map(|find| find());
    let mut greeted = Until::new(&mut stream, timeout);
    let state =
        handshake::accept(&mut greeted, &shared.settings.keys, certificates.as_ref(), admit)
            .map_err(|_| invalid("the handshake failed"))?;
    let memory = match &stream {
        Socket::Unix(stream) => Some(SharedMemory::received(socket::receive_descriptor(stream)?)?),
        Socket::Tcp(_) => None,
    };
    stream.set_read_timeout(None)?;
    let (sender, receiver) = sealed::halves(stream, state)?;
    let sender = Mutex::new(sender);
    // It goes with the connection, and with it all that the client may read by itself.
    let lane = shared.settings.lanes.as_ref().map(|lanes| lanes());
    let has_ended = AtomicBool::new(false);
    let work = |queue: &Mutex<mpsc::Receiver<Request>>| {
        loop {
            let next = locked(queue).recv();
            let Ok(request) = next else { return };
            // Nothing is done any more for a client that has gone.
            if has_ended.load(Ordering::SeqCst) {
                return;
            }
            let mut answer = Answer::new(&sender, memory.as_ref(), lane.as_deref());
            if answer.give(request, shared).and_then(|()| answer.send()).is_err() {
                // The reader ends with the stream, and then the queue.
                locked(&sender).close();
            }
        }
    };
    let (requests, queue) = sync_channel(QUEUE);
    let (slow, slow_queue) = sync_channel(QUEUE);
    let (queue, slow_queue) = (Mutex::new(queue), Mutex::new(slow_queue));
    std::thread::scope(|scope| {
        let start = |queue| {
            let thread = std::thread::Builder::new().name("fabric-work".to_owned());
            thread.spawn_scoped(scope, move || work(queue)).map(drop)
        };
        for _ in 0..shared.settings.workers.max(1) {
            start(&queue)?;
        }
        if lane.is_some() {
            start(&slow_queue)?;
        }
        // The reader owns the senders of the queues: when it ends, the workers end.
        let queues = Queues { requests, slow, lane: lane.as_deref() };
        let ended = receive_all(receiver, &queues);
        has_ended.store(true, Ordering::SeqCst);
        ended
    })
}

/// Where requests of one connection wait.
struct Queues<'s> {
    requests: SyncSender<Request>,
    /// Those that may take long, which no read must wait for.
    slow: SyncSender<Request>,
    lane: Option<&'s dyn Lane>,
}

impl Queues<'_> {
    /// Hands a request to a worker; false if there are none any more.
    fn put(&self, request: Request) -> bool {
        let request = match (request, self.lane) {
            (Request::Lane { request, code, bytes }, Some(lane)) if lane.is_slow(code) => {
                match self.slow.try_send(Request::Lane { request, code, bytes }) {
                    Ok(()) => return true,
                    Err(_) => Request::TooMany { request },
                }
            }
            (request, _) => request,
        };
        self.requests.send(request).is_ok()
    }
}

/// Hands requests to the workers until the connection ends.
fn receive_all(mut receiver: Receiver, queues: &Queues<'_>) -> io::Result<()> {
    let ended = loop {
        let request = match receiver.next() {
            Ok(Some(frame)) => request(frame),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        match request {
            Some(request) => {
                if !queues.put(request) {
                    break Ok(());
                }
            }
            None => break Err(invalid("the client sent a frame that is not a request")),
        }
    };
    receiver.close();
    ended
}
