//! Connections into the network namespaces of ghosts.
//!
//! A socket belongs for ever to the network namespace of the thread that makes it. So one thread
//! enters the namespaces and makes sockets there; the requesting task connects them from its own
//! namespace. No container needs an address, a bridge or a route.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, mpsc};
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;

use crate::scheduler::nodes::{Connect, Stream};

/// The port of every action's server, in its own network namespace.
const PORT: u16 = 8080;

/// Makes connections.
#[derive(Clone, Debug)]
pub struct Connector {
    requests: mpsc::Sender<SocketRequest>,
}

#[derive(Debug)]
struct SocketRequest {
    network: Arc<File>,
    made: oneshot::Sender<io::Result<OwnedFd>>,
}

impl Connector {
    /// Starts the thread that enters namespaces. It ends when the last connector is dropped.
    pub fn start() -> io::Result<Connector> {
        let (requests, all) = mpsc::channel::<SocketRequest>();
        thread::Builder::new().name("networks".to_owned()).spawn(move || {
            for SocketRequest { network, made } in all {
                // The requesting task may have ended.
                let _ = made.send(make(&network));
            }
        })?;
        Ok(Connector { requests })
    }

    /// Makes connections to the server in the network namespace of a process. Refuses this
    /// process's own namespace, where another program may listen.
    pub fn to(&self, pid: i32) -> io::Result<Connect> {
        let network = Arc::new(File::open(format!("/proc/{pid}/ns/net"))?);
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        if identity(&network)? == identity(&File::open("/proc/self/ns/net")?)? {
            return Err(io::Error::other("it has no network namespace of its own"));
        }
        let connector = self.clone();
        Ok(Box::new(move || {
            let (connector, network) = (connector.clone(), Arc::clone(&network));
            Box::pin(async move { connector.connect(network).await })
        }))
    }

    async fn connect(&self, network: Arc<File>) -> io::Result<Stream> {
        let ended = |()| io::Error::other("the thread that makes sockets panicked");
        let (made, socket) = oneshot::channel();
        self.requests.send(SocketRequest { network, made }).map_err(|_| ended(()))?;
        let socket = socket.await.map_err(|_| ended(()))??;
        // Despite its type, not connected yet.
        let socket = TcpSocket::from_std_stream(TcpStream::from(socket));
        let stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

fn make(network: &File) -> io::Result<OwnedFd> {
    setns(network, CloneFlags::CLONE_NEWNET)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Inet, SockType::Stream, flags, None)?)
}
