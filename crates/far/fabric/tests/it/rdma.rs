//! RDMA: the suite, where there is a device. Regions that have a file are read by the device; others over the connection
//! that is there in any case.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use farfork_fabric::rdma::{Device, Rdma, examine, lanes};
use farfork_fabric::tcp::{ClientSettings, Connection, Server, ServerSettings};
use farfork_fabric::{Fabric, Lane, Refusal, Region, RegionKey, Regions, SharedKey};

use crate::conformance::{self, Bed, Numbers, Served};

/// The name of the first device. Without one, a test shows nothing.
fn device() -> Option<String> {
    match examine() {
        Ok(found) => found[0].split(' ').next().map(str::to_owned),
        Err(why) => {
            println!("skipped: reads by RDMA: {why}");
            None
        }
    }
}

/// Regions without a file.
struct Connected;

/// Regions that a device reads.
struct OneSided;

struct Serving(Server);

impl Served for Serving {
    fn kill(&mut self) {
        self.0.stop();
    }
}

fn serve(regions: Arc<Regions>, window_bytes: u64) -> (Box<dyn Fabric>, Box<dyn Served>) {
    let key = SharedKey::random().unwrap();
    let mut settings = ServerSettings::new(Arc::clone(&regions), key.clone().alone());
    let device = Device::named(&device().unwrap()).unwrap();
    settings.lanes = Some(lanes(device, &regions, 1 << 30));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let settings = ClientSettings { window_bytes, ..ClientSettings::default() };
    let address = server.address().to_string();
    let control = Connection::connect(&address, &key, settings.clone()).unwrap();
    let beside = Rdma::beside(control, &settings, conformance::soon());
    let fabric = beside.map_err(|without| without.1).unwrap();
    assert_eq!((fabric.name(), fabric.is_one_sided()), ("rdma", true));
    (Box::new(fabric), Box::new(Serving(server)))
}

impl Bed for Connected {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        serve(regions, window_bytes)
    }
}

impl Bed for OneSided {
    fn serve(
        &self,
        regions: Arc<Regions>,
        window_bytes: u64,
    ) -> (Box<dyn Fabric>, Box<dyn Served>) {
        serve(regions, window_bytes)
    }

    fn region(&self, numbers: Arc<Numbers>) -> Arc<dyn Region> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&Numbers::expected(0, numbers.bytes() as usize)).unwrap();
        Arc::new(InFile { numbers, file })
    }
}

/// Numbers that lie in a file. Code of the server that reads them counts.
struct InFile {
    numbers: Arc<Numbers>,
    file: File,
}

impl Region for InFile {
    fn bytes(&self) -> u64 {
        self.numbers.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() { Ok(()) } else { self.numbers.read(offset, into) }
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

/// No code of the server reads.
fn no_code_reads(bed: &dyn Bed) {
    let numbers = Numbers::new(1 << 20);
    let regions = Arc::new(Regions::new());
    let key = regions.register(bed.region(numbers.clone())).unwrap();
    let (fabric, _served) = bed.serve(regions, 1 << 20);
    assert!(!fabric.is_one_sided_for(&key));
    let mut into = vec![0; 100_000];
    fabric.read(key, 5, &mut into, conformance::soon()).unwrap();
    assert!(into == Numbers::expected(5, into.len()));
    assert!(fabric.is_one_sided_for(&key));
    assert_eq!(numbers.reads(), 0);
}

macro_rules! tests_with_a_device {
    ($module:ident, $bed:expr, $from:path { $($case:ident),* $(,)? }) => {
        mod $module {
            use $from as from;

            $(#[test]
            fn $case() {
                if super::device().is_some() {
                    from::$case(&$bed);
                }
            })*
        }
    };
}

tests_with_a_device!(
    connected,
    crate::rdma::Connected,
    crate::conformance {
        reads_what_is_there,
        overlapping_and_empty_segments,
        batches_beyond_the_window,
        many_threads,
        wrong_keys_read_nothing,
        revoked_keys_read_nothing,
        revocation_waits_for_reads,
        out_of_bounds_reads_nothing,
        a_refused_segment_leaves_the_others,
        a_failed_read_says_why,
        a_silent_peer_ends_at_the_deadline,
        a_killed_peer_ends_the_batch,
        a_dropped_batch_gives_credits_back,
    }
);

// The others block, fail or count the server's own reads, of which there are none here.
tests_with_a_device!(
    one_sided,
    crate::rdma::OneSided,
    crate::conformance {
        reads_what_is_there,
        overlapping_and_empty_segments,
        batches_beyond_the_window,
        many_threads,
        wrong_keys_read_nothing,
        revoked_keys_read_nothing,
        out_of_bounds_reads_nothing,
        a_refused_segment_leaves_the_others,
        a_dropped_batch_gives_credits_back,
    }
);

/// The lane of a server, which can be taken away while its connection stays.
struct Severable(Arc<Mutex<Option<Box<dyn Lane>>>>);

impl Lane for Severable {
    fn answer(&self, code: u8, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        let gone = || Refusal::Failed { why: "it has no device any more".to_owned() };
        self.0.lock().unwrap().as_ref().ok_or_else(gone)?.answer(code, request)
    }
}

/// The lane of a server that registers nothing before it may.
struct Slow {
    lane: Box<dyn Lane>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    asked: AtomicU64,
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Lane for Slow {
    fn answer(&self, code: u8, request: &[u8]) -> Result<Vec<u8>, Refusal> {
        if self.is_slow(code) {
            self.gate.asked.fetch_add(1, Ordering::SeqCst);
            let is_open = self.gate.is_open.lock().unwrap();
            drop(self.gate.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        }
        self.lane.answer(code, request)
    }

    fn is_slow(&self, code: u8) -> bool {
        self.lane.is_slow(code)
    }
}

/// A region of a file, a client that reads it by a device, and what stands between them.
struct Severed {
    fabric: Rdma,
    key: RegionKey,
    lane: Arc<Mutex<Option<Box<dyn Lane>>>>,
    _server: Server,
}

fn severable(bed: &dyn Bed, bytes: u64, most_bytes: u64) -> Severed {
    let (regions, shared) = (Arc::new(Regions::new()), SharedKey::random().unwrap());
    let key = regions.register(bed.region(Numbers::new(bytes))).unwrap();
    let mut settings = ServerSettings::new(Arc::clone(&regions), shared.clone().alone());
    let make = lanes(Device::named(&device().unwrap()).unwrap(), &regions, most_bytes);
    let lane = Arc::new(Mutex::new(Some(make())));
    let given = Arc::clone(&lane);
    settings.lanes = Some(Arc::new(move || Box::new(Severable(Arc::clone(&given)))));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let settings = ClientSettings::default();
    let address = server.address().to_string();
    let control = Connection::connect(&address, &shared, settings.clone()).unwrap();
    let beside = Rdma::beside(control, &settings, conformance::soon());
    let fabric = beside.map_err(|without| without.1).unwrap();
    Severed { fabric, key, lane, _server: server }
}

impl Severed {
    fn is_read(&self, offset: u64) {
        let mut into = vec![0; 100_000];
        self.fabric.read(self.key, offset, &mut into, conformance::soon()).unwrap();
        assert!(into == Numbers::expected(offset, into.len()));
    }
}

/// The device dies, the connection does not: what was in flight and what comes later arrives over the connection.
fn a_dead_device_is_no_dead_server(bed: &dyn Bed) {
    let severed = severable(bed, 1 << 20, 1 << 30);
    severed.is_read(5);
    assert_eq!(
        (severed.fabric.name(), severed.fabric.is_one_sided_for(&severed.key)),
        ("rdma", true)
    );
    // The queue pair and the windows go, without a word to the client.
    drop(severed.lane.lock().unwrap().take());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let severed = &severed;
            scope.spawn(move || (0..8).for_each(|i| severed.is_read(thread * 100_000 + i)));
        }
    });
    let fabric = &severed.fabric;
    assert_eq!((fabric.name(), fabric.is_one_sided()), ("tcp", false));
    assert!(!fabric.is_one_sided_for(&severed.key));
    assert!(fabric.broken().is_none());
    let why = fabric.detour_for(&severed.key).unwrap();
    assert!(why.contains("does not answer") || why.contains("no device any more"), "{why}");
}

/// A server that may not pin a region says so, and its bytes come over the connection; those of others by the device.
fn what_may_not_be_pinned_is_read_over_the_connection(bed: &dyn Bed) {
    let severed = severable(bed, 1 << 20, (1 << 20) - 1);
    severed.is_read(5);
    let fabric = &severed.fabric;
    assert_eq!((fabric.name(), fabric.is_one_sided_for(&severed.key)), ("rdma", false));
    let why = fabric.detour_for(&severed.key).unwrap();
    assert!(why.contains("cannot pin 1048576 bytes more") && why.contains("--rdma-limit"), "{why}");
}

/// While a server registers files, more of them than a connection has workers, they are read over the connection; and by the
/// device as soon as it has done so, without another question.
fn windows_that_take_long_are_used_when_they_come(bed: &dyn Bed) {
    let (regions, shared) = (Arc::new(Regions::new()), SharedKey::random().unwrap());
    let register = |_| regions.register(bed.region(Numbers::new(1 << 20))).unwrap();
    let keys = [(); 4].map(register);
    let mut settings = ServerSettings::new(Arc::clone(&regions), shared.clone().alone());
    let make = lanes(Device::named(&device().unwrap()).unwrap(), &regions, 1 << 30);
    let gate = Arc::new(Gate::default());
    let given = Arc::clone(&gate);
    settings.lanes =
        Some(Arc::new(move || Box::new(Slow { lane: make(), gate: Arc::clone(&given) })));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let settings = ClientSettings::default();
    let control = Connection::connect(&server.address().to_string(), &shared, settings.clone());
    let beside = Rdma::beside(control.unwrap(), &settings, conformance::soon());
    let fabric = beside.map_err(|without| without.1).unwrap();
    let is_read = |key, time| {
        let mut into = vec![0; 100_000];
        fabric.read(key, 7, &mut into, Instant::now() + time).unwrap();
        assert!(into == Numbers::expected(7, into.len()));
    };
    for key in keys {
        is_read(key, Duration::from_secs(4));
        let why = fabric.detour_for(&key).unwrap();
        assert!(!fabric.is_one_sided_for(&key) && why.contains("still registers"), "{why}");
    }
    *gate.is_open.lock().unwrap() = true;
    gate.opened.notify_all();
    let end = conformance::soon();
    while !keys.iter().all(|key| fabric.is_one_sided_for(key)) {
        assert!(Instant::now() < end, "{:?}", keys.map(|key| fabric.detour_for(&key)));
        keys.iter().for_each(|key| is_read(*key, Duration::from_secs(20)));
    }
    assert!(keys.iter().all(|key| fabric.detour_for(key).is_none()));
    assert_eq!(gate.asked.load(Ordering::SeqCst), 4);
    assert_eq!(fabric.name(), "rdma");
}

tests_with_a_device!(
    own,
    crate::rdma::OneSided,
    crate::rdma {
        no_code_reads,
        a_dead_device_is_no_dead_server,
        what_may_not_be_pinned_is_read_over_the_connection,
        windows_that_take_long_are_used_when_they_come,
    }
);
