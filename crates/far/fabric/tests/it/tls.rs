//! Certificates beside the shared key: the suite over TCP and shared memory, and which ends are refused.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfork_fabric::tcp::{ClientSettings, Connection, Server, ServerSettings};
use farfork_fabric::{
    BadCertificates, Certificates, Fabric, FabricError, RegionKey, Regions, SharedKey,
};
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;

use crate::authority::{Authority, expired, for_clients, for_servers, not_yet_valid};
use crate::conformance::{Bed, Numbers, Served, soon};

/// Where all servers of these tests are.
const HERE: &[&str] = &["127.0.0.1"];

struct Tls;
struct ShmTls;

impl Bed for Tls {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        serve(regions, window_bytes, false)
    }
}

impl Bed for ShmTls {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        serve(regions, window_bytes, true)
    }
}

struct Serving(Server, #[expect(dead_code, reason = "it is removed with the server")] TempDir);

impl Served for Serving {
    fn kill(&mut self) {
        self.0.stop();
    }
}

fn serve(
    regions: Arc<Regions>,
    window_bytes: u64,
    is_local: bool,
) -> (Box<dyn Fabric>, Box<dyn Served>) {
    let (authority, key) = (Authority::new(), SharedKey::random().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut settings = ServerSettings::new(regions, key.clone().alone());
    let own = authority.node(&authority, HERE);
    settings.certificates = Some(Arc::new(move || own.clone()));
    settings.local = is_local.then(|| folder.path().join("s.fabric"));
    let server = start(settings);
    let certificates = Some(authority.node(&authority, &["client"]));
    let settings = ClientSettings { window_bytes, certificates, ..ClientSettings::default() };
    let address = server.address().to_string();
    let fabric = Connection::connect_nearest(&address, &key, settings).unwrap();
    assert_eq!(fabric.name(), if is_local { "shm+tls" } else { "tcp+tls" });
    (Box::new(fabric), Box::new(Serving(server, folder)))
}

mod over_tcp {
    use super::Tls;
    crate::conformance_tests!(Tls);
}

mod over_shared_memory {
    use super::ShmTls;
    crate::conformance_tests!(ShmTls);
}

fn start(settings: ServerSettings) -> Server {
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap()
}

/// A server with one region, which trusts `authority`.
struct Bench {
    numbers: Arc<Numbers>,
    region: RegionKey,
    key: SharedKey,
    authority: Authority,
    server: Server,
}

fn bench(own: impl FnOnce(&Authority) -> Option<Certificates>) -> Bench {
    let (numbers, regions) = (Numbers::new(1 << 16), Arc::new(Regions::new()));
    let region = regions.register(numbers.clone()).unwrap();
    let (key, authority) = (SharedKey::random().unwrap(), Authority::new());
    let mut settings = ServerSettings::new(regions, key.clone().alone());
    if let Some(own) = own(&authority) {
        settings.certificates = Some(Arc::new(move || own.clone()));
    }
    Bench { numbers, region, key, authority, server: start(settings) }
}

fn good(authority: &Authority) -> Option<Certificates> {
    Some(authority.node(authority, HERE))
}

impl Bench {
    fn connect(&self, certificates: Option<Certificates>) -> Result<Connection, FabricError> {
        self.connect_with(&self.key, certificates)
    }

    fn connect_with(
        &self,
        key: &SharedKey,
        certificates: Option<Certificates>,
    ) -> Result<Connection, FabricError> {
        let settings = ClientSettings { certificates, ..ClientSettings::default() };
        Connection::connect(&self.server.address().to_string(), key, settings)
    }

    /// The client is refused, in these words, and nothing was read for it.
    fn must_refuse(&self, certificates: Option<Certificates>, words: &str) {
        let error = self.connect(certificates).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains(&self.server.address().to_string()), "{error}");
        assert_eq!(self.numbers.reads(), 0);
    }

    fn must_read(&self, fabric: &Connection) {
        let mut into = [0; 4096];
        fabric.read(self.region, 4096, &mut into, soon()).unwrap();
        assert_eq!(into[..], Numbers::expected(4096, 4096));
    }
}

#[test]
fn a_client_needs_a_good_certificate() {
    let bench = bench(good);
    let (own, other) = (&bench.authority, Authority::named("another"));
    bench.must_refuse(None, "demands a certificate beside the shared key");
    for (what, certificates, words) in [
        ("another CA", other.node(own, &["c"]), "an authority (CA) that is not trusted there"),
        ("another CA of this name", Authority::new().node(own, &["c"]), "(CA)"),
        ("expired", own.sign(&["c"], expired).with(own), "has expired or is not valid yet"),
        ("early", own.sign(&["c"], not_yet_valid).with(own), "has expired or is not valid yet"),
        (
            "for servers",
            own.sign(&["c"], for_servers).with(own),
            "not for clients (extendedKeyUsage)",
        ),
    ] {
        eprintln!("{what}");
        bench.must_refuse(Some(certificates), words);
    }
    let certificates = own.sign(&["c"], for_clients).with(own);
    bench.must_read(&bench.connect(Some(certificates)).unwrap());
}

#[test]
fn a_server_needs_a_good_certificate() {
    let signed = |names, change: fn(&mut rcgen::CertificateParams)| {
        bench(move |own| Some(own.sign(names, change).with(own)))
    };
    let foreign = |other: Authority| bench(move |own| Some(other.node(own, HERE)));
    for (bench, words) in [
        (
            foreign(Authority::named("another")),
            "signed by an authority (CA) that is not trusted here",
        ),
        (foreign(Authority::new()), "(CA)"),
        (signed(HERE, expired), "has expired"),
        (signed(HERE, not_yet_valid), "is not valid yet"),
        (signed(HERE, for_clients), "not for this side of a connection (extendedKeyUsage)"),
        (signed(&["127.0.0.2", "localhost"], |_| {}), "not for this address (subjectAltName)"),
        (signed(&[], |_| {}), "not for this address (subjectAltName)"),
        (bench(|_| None), "has no certificate, which --tls-ca demands here"),
    ] {
        bench.must_refuse(Some(bench.authority.node(&bench.authority, &["c"])), words);
    }
    let bench = signed(HERE, for_servers);
    let certificates = bench.authority.node(&bench.authority, &["c"]);
    bench.must_read(&bench.connect(Some(certificates)).unwrap());
}

/// TLS without a certificate of the client's own, as a browser would use it.
#[test]
fn a_client_that_sends_no_certificate_is_refused() {
    let bench = bench(good);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let ca = rustls::pki_types::CertificateDer::from_pem_slice(bench.authority.pem().as_bytes());
    roots.add(ca.unwrap()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "127.0.0.1".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = Vec::new();
    let read = rustls::Stream::new(&mut tls, &mut stream).read_to_end(&mut answer);
    let error = read.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    assert_eq!(answer, b"");
}

/// A stolen key does not suffice without a certificate, nor a certificate without the key.
#[test]
fn both_are_needed() {
    let bench = bench(good);
    let certificates = || Some(bench.authority.node(&bench.authority, &["c"]));
    bench.must_refuse(None, "demands a certificate");
    let unknown = SharedKey::random().unwrap();
    let guessed = SharedKey::new(bench.key.id(), *unknown.secret());
    for key in [unknown, guessed] {
        let error = bench.connect_with(&key, certificates()).err().unwrap();
        let peer = bench.server.address().to_string();
        assert_eq!(error, FabricError::WrongSharedKey { peer });
    }
    assert_eq!(bench.numbers.reads(), 0);
    bench.must_read(&bench.connect(certificates()).unwrap());
}

/// The thief of the key takes a connection over, whose certificates two others have proved. It cannot: what the
/// key opens depends on their TLS.
#[test]
fn a_verified_connection_cannot_be_taken_over_with_the_key() {
    let bench = bench(good);
    let (to, key) = (bench.server.address(), bench.key.clone());
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = thief.local_addr().unwrap();
    let carried = std::thread::spawn(move || take_over(&thief, to));
    let certificates = Some(bench.authority.node(&bench.authority, &["c"]));
    let timeout = Duration::from_secs(2);
    let settings = ClientSettings { certificates, timeout, ..ClientSettings::default() };
    let error = Connection::connect(&address.to_string(), &key, settings).err().unwrap();
    assert!(matches!(error, FabricError::Connect { .. }), "{error}");
    // The server answers the thief's hello, which has the right key, as it answers a wrong one.
    let mut server = carried.join().unwrap();
    let (hello, recorded) = hello_without_tls(&key);
    server.write_all(&hello).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut answer = Vec::new();
    let _ = server.read_to_end(&mut answer);
    assert_eq!(answer.get(12..16), Some(&1u32.to_le_bytes()[..]), "{answer:?}");
    drop(recorded);
    assert_eq!(bench.numbers.reads(), 0);
}

/// Carries TLS both ways until the client begins its hello, and keeps the server.
fn take_over(thief: &TcpListener, to: std::net::SocketAddr) -> TcpStream {
    let (mut client, mut server) = (thief.accept().unwrap().0, TcpStream::connect(to).unwrap());
    let (mut down, mut up) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let is_over = Arc::new(Mutex::new(false));
    let over = Arc::clone(&is_over);
    let answers = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        down.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        while !*over.lock().unwrap() {
            if let Ok(read) = down.read(&mut bytes) {
                up.write_all(&bytes[..read]).unwrap();
            }
        }
    });
    loop {
        let mut record = vec![0; 5];
        client.read_exact(&mut record).unwrap();
        if record == b"farfo" {
            break;
        }
        record.resize(5 + usize::from(u16::from_be_bytes([record[3], record[4]])), 0);
        client.read_exact(&mut record[5..]).unwrap();
        server.write_all(&record).unwrap();
    }
    *is_over.lock().unwrap() = true;
    answers.join().unwrap();
    server
}

/// The hello of a client that has the key.
fn hello_without_tls(key: &SharedKey) -> (Vec<u8>, TcpStream) {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let settings =
            ClientSettings { timeout: Duration::from_millis(300), ..ClientSettings::default() };
        scope.spawn(move || drop(Connection::connect(&address, key, settings)));
        let (mut hello, mut caught) = (vec![0; 80], other.accept().unwrap().0);
        caught.read_exact(&mut hello).unwrap();
        (hello, caught)
    })
}

/// A peer that sends one byte after the other does not outlast the deadline.
#[test]
fn a_trickle_is_not_a_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let drips = std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            // The beginning of a long record, and of an answer.
            for byte in [22, 3, 3, 64, 0].into_iter().chain(std::iter::repeat_n(0, 100)) {
                if stream.write_all(&[byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let (authority, key) = (Authority::new(), SharedKey::random().unwrap());
    for certificates in [None, Some(authority.node(&authority, &["c"]))] {
        let timeout = Duration::from_millis(400);
        let settings = ClientSettings { timeout, certificates, ..ClientSettings::default() };
        let begun = Instant::now();
        let error = Connection::connect(&address, &key, settings).err().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(error.to_string().contains("did not answer in time"), "{error}");
    }
    drips.join().unwrap();
}

/// New connections are proved by the certificates of the moment.
#[test]
fn certificates_are_renewed_while_a_server_runs() {
    let (regions, key, authority) =
        (Arc::new(Regions::new()), SharedKey::random().unwrap(), Authority::new());
    let given = [authority.sign(HERE, expired).with(&authority), authority.node(&authority, HERE)];
    let next = AtomicUsize::new(0);
    let mut settings = ServerSettings::new(regions, key.clone().alone());
    settings.certificates =
        Some(Arc::new(move || given[next.fetch_add(1, Ordering::SeqCst).min(1)].clone()));
    let server = start(settings);
    let connect = || {
        let certificates = Some(authority.node(&authority, &["c"]));
        let settings = ClientSettings { certificates, ..ClientSettings::default() };
        Connection::connect(&server.address().to_string(), &key, settings)
    };
    assert!(matches!(connect(), Err(FabricError::BadCertificate { .. })));
    connect().unwrap();
}

#[test]
fn other_files_are_not_certificates() {
    let authority = Authority::new();
    let (one, two, ca) =
        (authority.sign(HERE, |_| {}), authority.sign(HERE, |_| {}), authority.pem());
    let read = |chain: &str, key: &str, ca: &str| {
        Certificates::from_pem(chain.as_bytes(), key.as_bytes(), ca.as_bytes()).unwrap_err()
    };
    for (error, words) in [
        (read("", &one.key, &ca), "the file has no certificate"),
        (read(&one.key, &one.key, &ca), "the file has no certificate"),
        (read(&one.chain, &one.chain, &ca), "the file has no private key"),
        (read(&one.chain, &one.key, ""), "the file has no certificate"),
        (read(&one.chain, &two.key, &ca), "does not belong to the certificate"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    let broken = one.chain.replace("-----END", "----END");
    assert!(matches!(read(&broken, &one.key, &ca), BadCertificates::Certificate(_)));
}
