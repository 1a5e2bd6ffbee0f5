//! RDMA: the suite, where there is a device. Regions that have a file are read by the device; others over the connection
//! that is there in any case.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_fabric::rdma::{Device, Rdma, examine, lanes};
use farfork_fabric::tcp::{ClientSettings, Connection, Server, ServerSettings};
use farfork_fabric::{Fabric, Region, Regions, SharedKey};

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
    settings.lanes = Some(lanes(device, &regions));
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap();
    let settings = ClientSettings { window_bytes, ..ClientSettings::default() };
    let address = server.address().to_string();
    let control = Connection::connect(&address, &key, settings.clone()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let fabric = Rdma::beside(control, &settings, deadline).map_err(|without| without.1).unwrap();
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

tests_with_a_device!(own, crate::rdma::OneSided, crate::rdma { no_code_reads });
