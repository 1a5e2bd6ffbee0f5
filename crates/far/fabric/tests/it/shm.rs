//! Shared memory on one host: the suite, and when it is not used.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::tcp::{ClientSettings, Connection, Server, ServerSettings};
use farfork_fabric::{Fabric, RegionKey, Regions, SharedKey};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::conformance::{Bed, Served, soon};

struct Shm;

impl Bed for Shm {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        let (folder, key) = (tempfile::tempdir().unwrap(), SharedKey::random().unwrap());
        let server = start(regions, &key, Some(&folder.path().join("s.fabric")));
        let settings = ClientSettings { window_bytes, ..ClientSettings::default() };
        let address = server.address().to_string();
        let fabric = Connection::connect_nearest(&address, &key, settings).unwrap();
        assert_eq!((fabric.name(), fabric.is_one_sided()), ("shm", false));
        (Box::new(fabric), Box::new(Serving(server, folder)))
    }
}

struct Serving(Server, #[expect(dead_code, reason = "it is removed with the server")] TempDir);

impl Served for Serving {
    fn kill(&mut self) {
        self.0.stop();
    }
}

crate::conformance_tests!(Shm);

fn start(regions: Arc<Regions>, key: &SharedKey, local: Option<&Path>) -> Server {
    let mut settings = ServerSettings::new(regions, key.clone().alone());
    settings.local = local.map(Path::to_owned);
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap()
}

/// A server whose region is full of one byte.
struct Bench {
    key: SharedKey,
    region: RegionKey,
    server: Server,
}

fn bench(byte: u8, key: &SharedKey, local: Option<&Path>) -> Bench {
    let regions = Arc::new(Regions::new());
    let region = regions.register(Arc::new(vec![byte; 100])).unwrap();
    Bench { key: key.clone(), region, server: start(regions, key, local) }
}

impl Bench {
    /// Which transport a client comes to use, and a byte that it reads.
    fn used(&self) -> (&'static str, u8) {
        let (address, settings) = (self.server.address().to_string(), ClientSettings::default());
        let fabric = Connection::connect_nearest(&address, &self.key, settings).unwrap();
        let mut into = [0; 100];
        fabric.read(self.region, 0, &mut into, soon()).unwrap();
        assert_eq!(into, [into[0]; 100]);
        (fabric.name(), into[0])
    }
}

#[test]
fn a_server_that_offers_none_is_read_by_tcp() {
    let (folder, key) = (tempfile::tempdir().unwrap(), SharedKey::random().unwrap());
    assert_eq!(bench(1, &key, None).used(), ("tcp", 1));
    let nowhere = folder.path().join("none/s.fabric");
    assert_eq!(bench(2, &key, Some(&nowhere)).used(), ("tcp", 2));
    let other_name = folder.path().join("control.socket");
    assert_eq!(bench(3, &key, Some(&other_name)).used(), ("tcp", 3));
    assert!(!other_name.exists());
}

/// Another server with the same key took the socket's place: its bytes are not those that were asked for.
#[test]
fn the_socket_of_another_server_is_not_used() {
    let (folder, key) = (tempfile::tempdir().unwrap(), SharedKey::random().unwrap());
    let path = folder.path().join("s.fabric");
    let one = bench(1, &key, Some(&path));
    assert_eq!(one.used(), ("shm", 1));
    std::fs::remove_file(&path).unwrap();
    let two = bench(2, &key, Some(&path));
    assert_eq!(two.used(), ("shm", 2));
    assert_eq!(one.used(), ("tcp", 1));
    // One that has the place keeps it.
    let three = bench(3, &key, Some(&path));
    assert_eq!(three.used(), ("tcp", 3));
    assert_eq!(two.used(), ("shm", 2));
}

#[test]
fn what_a_killed_server_left_is_replaced() {
    let (folder, key) = (tempfile::tempdir().unwrap(), SharedKey::random().unwrap());
    let path = folder.path().join("s.fabric");
    // Not what a listener leaves: a process that another test has just forked may have it, too.
    mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap();
    let server = bench(1, &key, Some(&path));
    assert_eq!(server.used(), ("shm", 1));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
}

/// Peers at the socket that hang, close, or have another key cost a while, not the connection.
#[test]
fn a_bad_peer_at_the_socket_is_not_waited_for() {
    let (folder, key) = (tempfile::tempdir().unwrap(), SharedKey::random().unwrap());
    let path = folder.path().join("s.fabric");
    let one = bench(1, &key, Some(&path));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(one.used(), ("tcp", 1), "no socket");
    let hangs = UnixListener::bind(&path).unwrap();
    let begun = Instant::now();
    assert_eq!(one.used(), ("tcp", 1), "a socket that hangs");
    assert!(begun.elapsed() < Duration::from_secs(4));
    drop(hangs);
    assert_eq!(one.used(), ("tcp", 1), "a socket of a dead process");
    std::fs::remove_file(&path).unwrap();
    let _other = bench(2, &SharedKey::random().unwrap(), Some(&path));
    assert_eq!(one.used(), ("tcp", 1), "another key");
}
