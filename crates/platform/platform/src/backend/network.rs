//! Connections into the networks of ghosts.
//!
//! A socket belongs for ever to the network namespace of the thread that makes it. So one thread enters
//! the namespaces, and makes sockets there; who asked for one connects it from wherever it is. No
//! container needs an address, a bridge or a route.

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

/// Where every action's server listens, in its own network.
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
    /// Starts the thread that enters networks; it ends with the last of these.
    pub fn start() -> io::Result<Connector> {
        let (requests, all) = mpsc::channel::<SocketRequest>();
        thread::Builder::new().name("networks".to_owned()).spawn(move || {
            for SocketRequest { network, made } in all {
                // Who asked may have gone.
                let _ = made.send(make(&network));
            }
        })?;
        Ok(Connector { requests })
    }

    /// Connects to the server in the network of a process, which is to be another than this one's:
    /// who listens here is somebody else.
    pub fn to(&self, pid: i32) -> io::Result<Connect> {
        let network = Arc::new(File::open(format!("/proc/{pid}/ns/net"))?);
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
        if identity(&network)? == identity(&File::open("/proc/self/ns/net")?)? {
            return Err(io::Error::other("it has no network of its own"));
        }
        let connector = self.clone();
        Ok(Box::new(move || {
            let (connector, network) = (connector.clone(), Arc::clone(&network));
            Box::pin(async move { connector.connect(network).await })
        }))
    }

    async fn connect(&self, network: Arc<File>) -> io::Result<Stream> {
        let ended = |()| io::Error::other("the thread that makes sockets has ended");
        let (made, socket) = oneshot::channel();
        self.requests.send(SocketRequest { network, made }).map_err(|_| ended(()))?;
        let socket = socket.await.map_err(|_| ended(()))??;
        // Not connected yet, whatever the type says.
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
