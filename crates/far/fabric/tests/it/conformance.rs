//! One suite for every transport: what [`Fabric`] promises.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use farfork_fabric::{
    Fabric, FabricError, MAX_SEGMENT_BYTES, Refusal, Region, RegionKey, Regions, Segment,
};

/// A transport under test.
pub trait Bed {
    /// Serves regions until the value is dropped, and a connection to them with this window.
    fn serve(&self, regions: Arc<Regions>, window_bytes: u64)
    -> (Box<dyn Fabric>, Box<dyn Served>);

    /// The region in which these numbers are served.
    fn region(&self, numbers: Arc<Numbers>) -> Arc<dyn Region> {
        numbers
    }
}

/// A serving side.
pub trait Served: Sync {
    /// Ends it as a kill would.
    fn kill(&mut self);
}

/// A region whose bytes can be computed, which counts its reads and may block them.
pub struct Numbers {
    bytes: u64,
    pub reads: AtomicU64,
    pub fails: AtomicBool,
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Numbers {
    pub fn new(bytes: u64) -> Arc<Numbers> {
        let (reads, fails) = (AtomicU64::new(0), AtomicBool::new(false));
        let (gate, opened) = (Mutex::new(true), Condvar::new());
        Arc::new(Numbers { bytes, reads, fails, gate, opened })
    }

    pub fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    pub fn expected(offset: u64, bytes: usize) -> Vec<u8> {
        (offset..).take(bytes).map(Numbers::byte).collect()
    }

    pub fn set_open(&self, open: bool) {
        *self.gate.lock().unwrap() = open;
        self.opened.notify_all();
    }

    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Region for Numbers {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let _open = self.opened.wait_while(self.gate.lock().unwrap(), |open| !*open).unwrap();
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is on fire"));
        }
        for (into, offset) in into.iter_mut().zip(offset..) {
            *into = Numbers::byte(offset);
        }
        Ok(())
    }
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A served region and a connection to it.
struct Line {
    numbers: Arc<Numbers>,
    regions: Arc<Regions>,
    key: RegionKey,
    fabric: Box<dyn Fabric>,
    served: Box<dyn Served>,
}

fn line(bed: &dyn Bed, bytes: u64, window: u64) -> Line {
    let numbers = Numbers::new(bytes);
    let regions = Arc::new(Regions::new());
    let key = regions.register(bed.region(numbers.clone())).unwrap();
    let (fabric, served) = bed.serve(Arc::clone(&regions), window);
    Line { numbers, regions, key, fabric, served }
}

impl Line {
    fn segment(&self, offset: u64, bytes: u32) -> Segment {
        Segment { key: self.key, offset, bytes }
    }

    /// Reads segments, and compares every byte.
    fn check(&self, segments: &[Segment]) {
        let all = self.fabric.submit(segments, soon()).unwrap().wait().unwrap();
        for (segment, bytes) in segments.iter().zip(all) {
            assert_eq!(bytes, Numbers::expected(segment.offset, segment.bytes as usize));
        }
    }

    fn refusal(&self, segment: Segment) -> Refusal {
        match self.fabric.submit(&[segment], soon()).unwrap().wait() {
            Err(FabricError::Refused { refusal, .. }) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// The secret of `key` under another name.
fn named(mut key: RegionKey, id: u128, generation: u32) -> RegionKey {
    (key.id, key.generation) = (id, generation);
    key
}

const MB: u64 = 1 << 20;

pub fn reads_what_is_there(bed: &dyn Bed) {
    let line = line(bed, 9 * MB, 16 * MB);
    line.check(&[line.segment(0, 4096)]);
    line.check(&[line.segment(9 * MB - 1, 1), line.segment(0, MAX_SEGMENT_BYTES)]);
    let mut into = vec![0; 9 * MB as usize];
    line.fabric.read(line.key, 0, &mut into, soon()).unwrap();
    assert!(into == Numbers::expected(0, into.len()));
}

pub fn overlapping_and_empty_segments(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    let segments = [(10, 5000), (10, 5000), (0, 0), (4000, 100_000), (MB, 0), (11, 1)];
    let segments = segments.map(|(offset, bytes)| line.segment(offset, bytes));
    line.check(&segments);
    line.check(&[]);
}

pub fn batches_beyond_the_window(bed: &dyn Bed) {
    let line = line(bed, 8 * MB, 100_000);
    // More than the window in one segment, in many, and more segments than one request carries.
    line.check(&[line.segment(5, MB as u32)]);
    let many: Vec<Segment> = (0..3000).map(|i| line.segment(i * 1000, 1000)).collect();
    line.check(&many);
}

pub fn many_threads(bed: &dyn Bed) {
    let line = line(bed, 4 * MB, 300_000);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let line = &line;
            scope.spawn(move || {
                for round in 0..20 {
                    let at = (thread * 20 + round) * 20_000;
                    line.check(&[line.segment(at, 70_000), line.segment(at / 2, 4096)]);
                }
            });
        }
    });
}

pub fn wrong_keys_read_nothing(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    let other = line.regions.register(Arc::new(vec![7; 5000])).unwrap();
    let with = |key| Segment { key, offset: 0, bytes: 100 };
    // A foreign secret under the right name, and a name that does not exist.
    let forged = named(other, line.key.id, line.key.generation);
    assert_eq!(line.refusal(with(forged)), Refusal::WrongKey);
    let unknown = named(line.key, line.key.id ^ 1, line.key.generation);
    assert_eq!(line.refusal(with(unknown)), Refusal::UnknownRegion);
    let next = named(line.key, line.key.id, line.key.generation + 1);
    assert_eq!(line.refusal(with(next)), Refusal::StaleKey);
    assert_eq!(line.numbers.reads(), 0);
    line.check(&[line.segment(0, 100)]);
}

pub fn revoked_keys_read_nothing(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    line.check(&[line.segment(0, 100)]);
    let new = line.regions.revoke(line.key.id).unwrap().unwrap();
    let reads = line.numbers.reads();
    assert_eq!(line.refusal(line.segment(0, 100)), Refusal::StaleKey);
    // The new generation with the old secret.
    let guessed = named(line.key, line.key.id, new.generation);
    let guessed = Segment { key: guessed, ..line.segment(0, 100) };
    assert_eq!(line.refusal(guessed), Refusal::WrongKey);
    assert_eq!(line.numbers.reads(), reads);
    line.check(&[Segment { key: new, ..line.segment(0, 100) }]);
    assert!(line.regions.remove(new.id));
    let gone = Segment { key: new, ..line.segment(0, 100) };
    assert_eq!(line.refusal(gone), Refusal::UnknownRegion);
}

pub fn revocation_waits_for_reads(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    line.numbers.set_open(false);
    let mut batch = line.fabric.submit(&[line.segment(0, 100)], soon()).unwrap();
    while line.numbers.reads() == 0 {
        std::thread::yield_now();
    }
    let is_revoked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            line.regions.revoke(line.key.id).unwrap();
            is_revoked.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_revoked.load(Ordering::SeqCst), "revoked during a read");
        line.numbers.set_open(true);
    });
    assert_eq!(batch.next().unwrap().result.unwrap(), Numbers::expected(0, 100));
}

pub fn out_of_bounds_reads_nothing(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    for (offset, bytes) in [(MB, 1), (MB - 1, 2), (u64::MAX, 1), (u64::MAX, 0), (0, 2 << 20)] {
        let refusal = line.refusal(line.segment(offset, bytes));
        assert_eq!(refusal, Refusal::OutOfBounds { bytes: MB }, "{offset} {bytes}");
    }
    assert_eq!(line.numbers.reads(), 0);
    let long = line.segment(0, MAX_SEGMENT_BYTES + 1);
    let error = line.fabric.submit(&[long], soon()).unwrap_err();
    assert_eq!(error, FabricError::TooLong { bytes: MAX_SEGMENT_BYTES + 1 });
}

pub fn a_refused_segment_leaves_the_others(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    let segments = [line.segment(0, 5000), line.segment(MB, 1), line.segment(9, 9)];
    let mut batch = line.fabric.submit(&segments, soon()).unwrap();
    let mut seen = [0; 3];
    while let Some(completion) = batch.next() {
        seen[completion.segment] += 1;
        assert_eq!(completion.result.is_err(), completion.segment == 1);
    }
    assert_eq!(seen, [1; 3]);
}

pub fn a_failed_read_says_why(bed: &dyn Bed) {
    let line = line(bed, MB, 16 * MB);
    line.numbers.fails.store(true, Ordering::SeqCst);
    let refusal = line.refusal(line.segment(0, 10)).to_string();
    assert!(refusal.contains("the disk is on fire"), "{refusal}");
    line.numbers.fails.store(false, Ordering::SeqCst);
    line.check(&[line.segment(0, 10)]);
}

pub fn a_silent_peer_ends_at_the_deadline(bed: &dyn Bed) {
    let line = line(bed, MB, 50_000);
    line.numbers.set_open(false);
    let deadline = Instant::now() + Duration::from_millis(100);
    let segments: Vec<Segment> = (0..10).map(|i| line.segment(i, 4000)).collect();
    let mut batch = line.fabric.submit(&segments, deadline).unwrap();
    let mut late = 0;
    while let Some(completion) = batch.next() {
        let error = completion.result.unwrap_err();
        assert!(matches!(error, FabricError::DeadlinePassed { .. }), "{error}");
        late += 1;
    }
    assert_eq!(late, 10);
    // Credits are used up: not even a submission waits longer than its deadline.
    let deadline = Instant::now() + Duration::from_millis(100);
    let error = line.fabric.submit(&[line.segment(0, 40_000)], deadline).unwrap_err();
    assert!(matches!(error, FabricError::DeadlinePassed { .. }), "{error}");
    assert!(Instant::now() >= deadline);
    // Late answers bring credits back, and belong to no later batch.
    line.numbers.set_open(true);
    line.check(&[line.segment(100, 45_000)]);
}

pub fn a_killed_peer_ends_the_batch(bed: &dyn Bed) {
    let mut line = line(bed, MB, 16 * MB);
    line.check(&[line.segment(0, 10)]);
    line.numbers.set_open(false);
    let segments: Vec<Segment> = (0..100).map(|i| line.segment(i, 4000)).collect();
    let mut batch = line.fabric.submit(&segments, soon()).unwrap();
    line.served.kill();
    let mut broken = 0;
    while let Some(completion) = batch.next() {
        let error = completion.result.unwrap_err();
        assert!(matches!(error, FabricError::Broken { .. }), "{error}");
        assert!(error.to_string().contains(line.fabric.peer()), "{error}");
        broken += 1;
    }
    assert_eq!(broken, 100);
    assert!(line.fabric.broken().is_some());
    assert!(line.fabric.submit(&segments, soon()).is_err());
    assert!(line.fabric.call(b"anything", soon()).is_err());
    line.numbers.set_open(true);
}

pub fn a_dropped_batch_gives_credits_back(bed: &dyn Bed) {
    let line = line(bed, MB, 50_000);
    for _ in 0..20 {
        drop(line.fabric.submit(&[line.segment(0, 40_000)], soon()).unwrap());
    }
    line.check(&[line.segment(0, 50_000)]);
}

/// All cases, as tests of one transport.
#[macro_export]
macro_rules! conformance_tests {
    ($bed:expr, $($case:ident),* $(,)?) => {
        $(#[test]
        fn $case() {
            $crate::conformance::$case(&$bed);
        })*
    };
    ($bed:expr) => {
        $crate::conformance_tests!(
            $bed,
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
        );
    };
}
