//! TCP: the suite, and bad peers at the level of frames.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::tcp::{ClientSettings, Server, ServerSettings, TcpFabric};
use farfork_fabric::{Fabric, FabricError, Refusal, RegionKey, Regions, Segment, SharedKey};
use rustix::net::{AddressFamily, SocketType};

use crate::conformance::{Bed, Numbers, Served, soon};
use crate::proxy::{Change, Proxy, unchanged};

struct Tcp;

impl Bed for Tcp {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        let key = SharedKey::random().unwrap();
        let server = start(ServerSettings::new(regions, key.clone().alone()));
        let settings = ClientSettings { window_bytes, ..ClientSettings::default() };
        let fabric = TcpFabric::connect(&server.address().to_string(), &key, settings).unwrap();
        (Box::new(fabric), Box::new(Serving(server)))
    }
}

struct Serving(Server);

impl Served for Serving {
    fn kill(&mut self) {
        self.0.stop();
    }
}

crate::conformance_tests!(Tcp);

fn start(settings: ServerSettings) -> Server {
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap()
}

const BYTES: u64 = 1 << 20;

/// A server with one region.
struct Bench {
    numbers: Arc<Numbers>,
    region: RegionKey,
    key: SharedKey,
    server: Server,
}

fn bench(change: impl FnOnce(&mut ServerSettings)) -> Bench {
    let numbers = Numbers::new(BYTES);
    let regions = Arc::new(Regions::new());
    let region = regions.register(numbers.clone()).unwrap();
    let key = SharedKey::random().unwrap();
    let mut settings = ServerSettings::new(regions, key.clone().alone());
    change(&mut settings);
    Bench { numbers, region, key, server: start(settings) }
}

impl Bench {
    fn connect(&self, address: impl ToString) -> Result<TcpFabric, FabricError> {
        let settings =
            ClientSettings { timeout: Duration::from_secs(2), ..ClientSettings::default() };
        TcpFabric::connect(&address.to_string(), &self.key, settings)
    }

    fn segments(&self) -> Vec<Segment> {
        (0..8).map(|i| Segment { key: self.region, offset: i * 4096, bytes: 4096 }).collect()
    }

    /// Reads through a proxy that changes messages. Whatever arrives is right, and what does not is an error
    /// that names the peer.
    fn through(&self, requests: Change, answers: Change) -> Vec<FabricError> {
        self.through_within(Duration::from_secs(20), requests, answers)
    }

    /// The same where an answer never comes.
    fn through_within(
        &self,
        limit: Duration,
        requests: Change,
        answers: Change,
    ) -> Vec<FabricError> {
        let proxy = Proxy::start(self.server.address(), requests, answers);
        let fabric = self.connect(proxy.address).unwrap();
        let deadline = Instant::now() + limit;
        let mut errors = Vec::new();
        for _ in 0..2 {
            let segments = self.segments();
            match fabric.submit(&segments, deadline) {
                Ok(mut batch) => {
                    while let Some(completion) = batch.next() {
                        let segment = segments[completion.segment];
                        match completion.result {
                            Ok(bytes) => assert_eq!(bytes, Numbers::expected(segment.offset, 4096)),
                            Err(error) => errors.push(error),
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        for error in &errors {
            assert!(error.to_string().contains(fabric.peer()), "{error}");
        }
        drop(fabric);
        proxy.join();
        errors
    }
}

fn nth(n: usize, change: impl Fn(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) -> Change {
    let mut seen = 0;
    Box::new(move |message| {
        seen += 1;
        if seen == n { change(message) } else { vec![message] }
    })
}

#[test]
fn a_proxy_that_changes_nothing_is_not_noticed() {
    let bench = bench(|_| {});
    assert_eq!(bench.through(unchanged(), unchanged()), []);
}

#[test]
fn answers_that_are_changed_repeated_lost_or_moved_end_the_connection() {
    let flip = |message: Vec<u8>, at: usize| {
        let mut message = message;
        message[at] ^= 1;
        vec![message]
    };
    let changes: [(&str, Change); 5] = [
        ("flipped in the header", nth(3, move |message| flip(message, 4))),
        ("flipped in the data", nth(3, move |message| flip(message, 2000))),
        ("replayed", nth(2, |message| vec![message.clone(), message])),
        ("lost", nth(2, |_| Vec::new())),
        ("moved", {
            let mut held = None;
            Box::new(move |message| match held.take() {
                None => {
                    held = Some(message);
                    Vec::new()
                }
                Some(first) => vec![message, first],
            })
        }),
    ];
    for (what, change) in changes {
        let bench = bench(|_| {});
        let errors = bench.through(unchanged(), change);
        assert!(!errors.is_empty(), "{what}: no error");
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("does not open"), "{what}: {text}");
        }
    }
}

#[test]
fn truncated_answers_end_the_connection() {
    for keep in [0, 2, 4, 20, 4000] {
        let bench = bench(|_| {});
        let mut seen = 0;
        let cut: Change = Box::new(move |mut message| {
            seen += 1;
            match seen {
                1..=3 => vec![message],
                // Half a message, and then nothing: the proxy swallows the rest.
                4 => {
                    message.truncate(keep);
                    vec![message]
                }
                _ => Vec::new(),
            }
        });
        let errors = bench.through_within(Duration::from_millis(400), unchanged(), cut);
        assert!(errors.len() >= 5, "{errors:?}");
    }
}

#[test]
fn requests_that_are_changed_or_repeated_are_not_served() {
    for change in [
        nth(1, |mut message| {
            message[30] ^= 1;
            vec![message]
        }),
        nth(1, |message| vec![message[..message.len() - 1].to_vec(), vec![0]]),
    ] {
        let bench = bench(|_| {});
        assert!(!bench.through(change, unchanged()).is_empty());
        assert_eq!(bench.numbers.reads(), 0);
    }
    let bench = bench(|_| {});
    let mut first: Option<Vec<u8>> = None;
    let twice: Change = Box::new(move |message| match first.take() {
        None => {
            first = Some(message.clone());
            vec![message]
        }
        Some(first) => vec![first, message],
    });
    // The first is answered; when it comes again it ends the connection.
    bench.through(twice, unchanged());
    assert_eq!(bench.numbers.reads(), 8);
}

#[test]
fn a_recorded_connection_cannot_be_played_again() {
    let bench = bench(|_| {});
    let recorded = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&recorded);
    let requests: Change = Box::new(move |message| {
        record.lock().unwrap().extend_from_slice(&message);
        vec![message]
    });
    assert_eq!(bench.through(requests, unchanged()), []);
    let reads = bench.numbers.reads();
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    // The handshake of another connection by the same key, and then the recorded requests.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(bench.connect(address)));
        let mut first = [0; 80];
        let mut caught = other.accept().unwrap().0;
        caught.read_exact(&mut first).unwrap();
        stream.write_all(&first).unwrap();
    });
    stream.write_all(&recorded.lock().unwrap()).unwrap();
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The end may arrive as a reset: not all that was sent has been read.
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer.len(), 64, "only the handshake is answered");
    assert_eq!(bench.numbers.reads(), reads);
}

#[test]
fn a_wrong_key_is_refused_without_a_read() {
    let bench = bench(|_| {});
    let address = bench.server.address().to_string();
    let unknown = SharedKey::random().unwrap();
    let guessed = SharedKey::new(bench.key.id(), *unknown.secret());
    for key in [unknown, guessed] {
        let error = TcpFabric::connect(&address, &key, ClientSettings::default()).err().unwrap();
        assert_eq!(error, FabricError::WrongSharedKey { peer: address.clone() });
    }
    assert_eq!(bench.numbers.reads(), 0);
}

/// Answers one hello with these bytes.
fn answering(bytes: Vec<u8>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.read_exact(&mut [0; 80]).unwrap();
        stream.write_all(&bytes).unwrap();
        // Until the client goes.
        let _ = stream.read(&mut [0]);
    });
    (address, thread)
}

fn answer(version: u32, status: u32, rest: &[u8]) -> Vec<u8> {
    let numbers = [version.to_le_bytes(), status.to_le_bytes()].concat();
    [b"farforkF", &numbers[..], rest].concat()
}

#[test]
fn peers_of_another_kind_are_recognised() {
    for (bytes, words) in [
        (answer(9, 0, &[]), "version mismatch (it has 9, this farfork 1)"),
        (answer(1, 0, &[5; 48]), "does not have the shared key"),
        (answer(1, 3, &[]), "too many connections"),
        (answer(1, 77, &[]), "not one of this protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "not a farfork server"),
        // Silent after the hello.
        (Vec::new(), "handshake failed"),
    ] {
        let (address, thread) = answering(bytes);
        let settings =
            ClientSettings { timeout: Duration::from_millis(300), ..ClientSettings::default() };
        let key = SharedKey::random().unwrap();
        let error = TcpFabric::connect(&address, &key, settings).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains(&address), "{error}");
        thread.join().unwrap();
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // It does not listen, and keeps others from the port.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let address = address.to_string();
    let key = SharedKey::random().unwrap();
    let error = TcpFabric::connect(&address, &key, ClientSettings::default()).err().unwrap();
    assert_eq!(error.to_string(), format!("cannot connect to {address}: Connection refused"));
}

#[test]
fn clients_of_another_kind_do_not_stay() {
    let bench = bench(|settings| settings.timeout = Duration::from_millis(200));
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n-----------------------------------------------"[..], b"", b"far"]
    {
        let mut stream = TcpStream::connect(bench.server.address()).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
}

/// Strangers that say nothing, or not what a client says, hold no connection that a client needs.
#[test]
fn strangers_keep_no_client_out() {
    let bench = bench(|settings| (settings.connections, settings.strangers) = (2, 4));
    let address = bench.server.address();
    let first = bench.connect(address).unwrap();
    let mut strangers: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    strangers.iter_mut().for_each(|stranger| stranger.write_all(b"far").unwrap());
    let second = bench.connect(address).unwrap();
    assert!(bench.server.connections() <= 2 + 4, "{}", bench.server.connections());
    // The newest of them may stay for a while, the others are turned away at once.
    strangers[0].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(matches!(strangers[0].read(&mut [0]), Ok(0) | Err(_)));
    assert!(bench.connect(address).is_err(), "clients are still limited");
    for client in [&first, &second] {
        let mut read = [0; 8];
        client.read(bench.region, 0, &mut read, soon()).unwrap();
    }
}

#[test]
fn connections_are_limited() {
    let bench = bench(|settings| settings.connections = 2);
    let address = bench.server.address();
    let held = [bench.connect(address).unwrap(), bench.connect(address).unwrap()];
    let error = bench.connect(address).err().unwrap();
    assert!(error.to_string().contains("too many connections"), "{error}");
    drop(held);
    // The server notices closed connections on its own.
    let end = soon();
    while bench.connect(address).is_err() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let bench = bench(|settings| settings.timeout = Duration::from_millis(300));
    let stopped: Change = Box::new(|_| {
        std::thread::sleep(Duration::from_secs(3));
        Vec::new()
    });
    let proxy = Proxy::start(bench.server.address(), unchanged(), stopped);
    let fabric = bench.connect(proxy.address).unwrap();
    let whole = Segment { key: bench.region, offset: 0, bytes: BYTES as u32 };
    let _batch = fabric.submit(&[whole; 16], soon()).unwrap();
    let end = Instant::now() + Duration::from_secs(3);
    while bench.server.connections() > 0 {
        assert!(Instant::now() < end, "the server still waits for a client that reads nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    // It can be revoked at any time, and others are served.
    let other = bench.connect(bench.server.address()).unwrap();
    other.read(bench.region, 0, &mut [0; 10], soon()).unwrap();
}

#[test]
fn calls_are_answered() {
    let bench = bench(|settings| {
        settings.service = Arc::new(|request| match request {
            b"long" => Ok(Numbers::expected(0, 200_000)),
            b"" => Ok(Vec::new()),
            b"bad" => Err("no image \u{1b}has this name".to_owned()),
            other => Ok(other.to_vec()),
        });
    });
    let fabric = bench.connect(bench.server.address()).unwrap();
    assert_eq!(fabric.call(b"", soon()).unwrap(), b"");
    assert_eq!(fabric.call(b"long", soon()).unwrap(), Numbers::expected(0, 200_000));
    assert_eq!(fabric.call(b"echo", soon()).unwrap(), b"echo");
    let Err(FabricError::Refused { refusal: Refusal::Failed { why }, .. }) =
        fabric.call(b"bad", soon())
    else {
        panic!("not refused");
    };
    assert_eq!(why, "no image has this name");
    let long = vec![0; 100_000];
    assert!(matches!(fabric.call(&long, soon()), Err(FabricError::CallTooLong { .. })));
}

#[test]
fn calls_and_reads_go_on_beside_a_slow_one() {
    let bench = bench(|_| {});
    let fabric = bench.connect(bench.server.address()).unwrap();
    bench.numbers.set_open(false);
    let slow = fabric.submit(&[bench.segments()[0]], soon()).unwrap();
    // One worker waits for the region; the other answers.
    assert!(matches!(fabric.call(b"x", soon()), Err(FabricError::Refused { .. })));
    bench.numbers.set_open(true);
    assert_eq!(slow.wait().unwrap()[0], Numbers::expected(0, 4096));
}
