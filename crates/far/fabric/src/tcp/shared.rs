//! What all threads of a server share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;

use super::streams::Streams;
use super::wire::TOKEN_BYTES;
use crate::certificates::CertificateSource;
use crate::key::KeyRing;
use crate::lane::Lanes;
use crate::region::Regions;

/// Answers calls. It runs on a thread of the connection.
pub type Service = Arc<dyn Fn(&[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// What a server serves, and to which clients.
#[derive(Clone)]
pub struct ServerSettings {
    /// What clients may read.
    pub regions: Arc<Regions>,
    /// The keys that clients may have.
    pub keys: KeyRing,
    /// What proves this end, for each new connection. With it, clients must have certificates beside a key.
    pub certificates: Option<CertificateSource>,
    /// Answers calls.
    pub service: Service,
    /// Where the server makes a socket for clients on its host, which read by shared memory. Its extension
    /// is [`SOCKET_EXTENSION`](super::SOCKET_EXTENSION). Without it, and where it cannot be made, they use TCP.
    pub local: Option<PathBuf>,
    /// Another way to the regions, such as [RDMA](crate::rdma::lanes).
    pub lanes: Option<Lanes>,
    /// Threads that answer requests of one connection.
    pub workers: usize,
    /// The most connections of clients that have proved their key.
    pub connections: usize,
    /// The most others. When there are more, the oldest of them is closed.
    pub strangers: usize,
    /// How long a handshake may take, and how long a client may leave an answer unread.
    pub timeout: Duration,
}

impl ServerSettings {
    /// Serves these regions to clients with these keys, and refuses calls.
    pub fn new(regions: Arc<Regions>, keys: KeyRing) -> ServerSettings {
        ServerSettings {
            regions,
            keys,
            certificates: None,
            service: Arc::new(|_| Err("it answers no calls".to_owned())),
            local: None,
            lanes: None,
            workers: 2,
            connections: 64,
            strangers: 32,
            timeout: Duration::from_secs(10),
        }
    }
}

/// The state of a server.
pub struct Shared {
    pub settings: ServerSettings,
    /// Token and path of the socket of this host.
    pub local: Option<([u8; TOKEN_BYTES], PathBuf)>,
    pub served_bytes: AtomicU64,
    pub is_stopping: AtomicBool,
    /// Counts connections, which gives each a number.
    pub accepted: AtomicU64,
    pub streams: Mutex<Streams>,
}

impl Shared {
    pub fn streams(&self) -> MutexGuard<'_, Streams> {
        locked(&self.streams)
    }
}
