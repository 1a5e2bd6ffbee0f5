//! Objects in shared memory against mimalloc: `farfork bench objects`.
//!
//! ```text
//!  rounds   for each case: mimalloc │ farfork │ farfork-c ─► ns per object
//!           send + receive, one way between processes
//!  before   threads, structures, memory, clients beside recoveries, other libraries for shared memory
//! ```
//! Invariants: the same loop runs for each allocator, and which one comes first changes with each round. All
//! objects have 64 bytes unless their case says otherwise, and their first word is written. jemalloc and tcmalloc
//! take part if their libraries are installed. mimalloc and `farfork-c` are called as C
//! functions; `farfork` is the Rust interface, which the compiler can inline.

mod ablations;
mod allocators;
mod between;
mod comparisons;
mod disturbance;
mod goals;
mod killed;
mod memory;
mod primitives;
mod protected;
mod recovery;
mod rivals;
mod threads;
mod trees;

use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use farfork::{Client, Code, Region, Timeout};
use tempfile::TempDir;

use crate::error::{BenchError, io};
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::{Options, progress};

use allocators::{
    Allocator, CClient, Loaded, Mimalloc, fill, mimalloc_version, touch, touch_word, word_of,
};
use between::RoundTrips;
use killed::By;

const REGION_BYTES: u64 = 64 << 20;
const PAIRS: usize = 100_000;
const MANY: usize = 10_000;
/// Clients of farfork are new in each round; mimalloc is as it was left.
const TURNS: usize = 5;
const MESSAGES: usize = 100_000;
const ROUND_TRIPS: usize = 2000;
const GUARDED_CALLS: usize = 20_000;
const SLOTS: u64 = 256;
const PAIR: &str = "allocate + free, tight pair";
const SHUFFLED: &str = "allocate + free, 10,000 freed in random order";
const HANDED: &str = "allocate, pass to another thread, free there";
const MESSAGE: &str = "send + receive, one process";
const ONE_WAY: &str = "one way between two processes";
/// Bytes, whether all of them are written or the first word only, and the name.
const LARGER: [(usize, bool, &str); 6] = [
    (256, false, "allocate + free 256 bytes, tight pair"),
    (1024, false, "allocate + free 1,024 bytes, tight pair"),
    (4096, false, "allocate + free 4,096 bytes, tight pair"),
    (256, true, "allocate, write, free 256 bytes, tight pair"),
    (1024, true, "allocate, write, free 1,024 bytes, tight pair"),
    (4096, true, "allocate, write, free 4,096 bytes, tight pair"),
];
const GUARDED: &str = "guarded operation: one lock, two loads, two stores";
const OWN: &str = "recovery of a dead client, all objects from its own spans";
const SHARED: &str = "recovery of a dead client, half of the objects from spans of another client";
const RATE: &str = "M objects/s";
const KILLED: &str = "from SIGKILL until another client has the memory";
const BY_NEXT: &str = "farfork, next client";
const BY_WATCHER: &str = "farfork, region watch";
const ALLOCATE: &str = "allocate, fast path";
const FREE: &str = "free";
const NS: &str = "ns";
/// Libraries that are compared if this machine has them.
const LIBRARIES: [(&str, &CStr, &CStr, &CStr); 2] = [
    ("jemalloc", c"libjemalloc.so.2", c"malloc", c"free"),
    ("tcmalloc", c"libtcmalloc_minimal.so.4", c"tc_malloc", c"tc_free"),
];

/// The library that replaces malloc, on memory of the process.
const MALLOC: &str = "farfork-malloc";
const OWN_LIBRARY: &str = "libfarfork_malloc.so";

/// In the environment: how much thread-local memory glibc keeps for libraries that are loaded later.
const TUNABLES: &str = "GLIBC_TUNABLES";
const ROOM: &str = "glibc.rtld.optional_static_tls=16384";

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&[])?;
    restart_with_room()?;
    if let Some(region) = protected::region() {
        protected::measure(Path::new(&region))?;
        // The report is the other process's.
        std::process::exit(0);
    }
    let machine = Machine::this();
    let directory =
        tempfile::tempdir_in("/dev/shm").map_err(io("make a directory in", "/dev/shm"))?;
    let bench = Bench::new(&directory)?;
    let mut samples = Samples::default();
    let mut uncounted = Samples::default();
    ablations::add(directory.path(), options.quick, &mut samples)?;
    let rounds = if options.quick { 9 } else { 61 };
    let objects = if options.quick { 200_000 } else { 2_000_000 };
    comparisons::add(&bench, directory.path(), options.quick, &mut samples)?;
    for round in 0..if options.quick { 6 } else { 15 } {
        progress(&format!("recovery {round}"));
        recoveries(directory.path(), objects, &mut samples)?;
    }
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        let samples = if round == 0 { &mut uncounted } else { &mut samples };
        bench.round(round, samples)?;
        protected::add(&bench.region, samples)?;
    }
    Ok(Report {
        benchmark: "objects",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::of(&samples),
        rows: samples.rows(),
        notes: vec![format!(
            "mimalloc {} from libmimalloc-sys 0.1.49, in private memory and without protection against \
             kills. jemalloc and tcmalloc from this machine's libraries, if there are rows of them. Passing to a thread takes a mailbox of farfork, and a ring of \
             atomic pointers with the others. farfork-malloc is {OWN_LIBRARY} on memory of the process, if it is built.",
            mimalloc_version()
        )],
    })
}

fn recoveries(directory: &Path, objects: u64, samples: &mut Samples) -> Result<(), BenchError> {
    let rate = |own, received| recovery::rate(directory, own, received).map_err(failed);
    samples.add("farfork", OWN, RATE, rate(objects, 0)?);
    samples.add("farfork", SHARED, RATE, rate(objects / 2, objects / 2)?);
    for (case, by) in [(BY_NEXT, By::NextClient), (BY_WATCHER, By::Watcher)] {
        let milliseconds = killed::milliseconds(directory, objects, by).map_err(failed)?;
        samples.add(case, KILLED, "ms", milliseconds);
    }
    Ok(())
}

/// Where cargo puts the library: beside this program. The loader is asked for it if it is there.
fn own_library() -> Option<CString> {
    let library = std::env::current_exe().ok()?.with_file_name(OWN_LIBRARY);
    CString::new(library.into_os_string().into_encoded_bytes()).ok()
}

/// jemalloc's library has more thread-local memory than glibc keeps by default, and cannot be loaded then. Only a program
/// that is started with the setting has room.
fn restart_with_room() -> Result<(), BenchError> {
    if std::env::var_os(TUNABLES).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(io("find this program in", "/proc/self"))?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env(TUNABLES, ROOM);
    // Returns only if it fails.
    Err(io("start", &program)(command.exec()))
}

struct Bench {
    region: std::path::PathBuf,
    /// Order of frees.
    shuffled: Vec<usize>,
    loaded: Vec<(&'static str, Loaded)>,
}

impl Bench {
    fn new(directory: &TempDir) -> Result<Bench, BenchError> {
        let region = directory.path().join("region");
        Region::create(&region, REGION_BYTES).map_err(failed)?;
        let open =
            |(name, library, malloc, free)| Some((name, Loaded::open(library, malloc, free)?));
        let own = own_library();
        let own = own.as_deref().map(|library| (MALLOC, library, c"malloc", c"free"));
        let loaded = LIBRARIES.into_iter().chain(own).filter_map(open).collect();
        Ok(Bench { region, shuffled: shuffled(MANY), loaded })
    }

    /// On a region that is there, without other allocators.
    fn on(region: &Path) -> Bench {
        Bench { region: region.to_owned(), shuffled: shuffled(MANY), loaded: Vec::new() }
    }

    fn client(&self) -> Result<Client, BenchError> {
        Client::open(&self.region).map_err(failed)
    }

    fn round(&self, round: usize, samples: &mut Samples) -> Result<(), BenchError> {
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => self.allocator("mimalloc", &mut Mimalloc, samples),
                1 => self.allocator("farfork", &mut self.client()?, samples),
                _ => self.allocator("farfork-c", &mut self.c_client()?, samples),
            }
        }
        for (name, loaded) in &self.loaded {
            self.allocator(name, &mut loaded.clone(), samples);
        }
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => samples.add("mimalloc", HANDED, NS, hand_pointers(Mimalloc)),
                _ => samples.add("farfork-c", HANDED, NS, self.hand_objects()?),
            }
        }
        for (name, loaded) in &self.loaded {
            samples.add(name, HANDED, NS, hand_pointers(*loaded));
        }
        samples.add("farfork", MESSAGE, NS, self.messages()?);
        samples.add("farfork", GUARDED, NS, self.guarded()?);
        let trips = RoundTrips::start(&self.region, SLOTS).map_err(failed)?;
        samples.add("farfork", ONE_WAY, NS, trips.one_way_ns(ROUND_TRIPS).map_err(failed)?);
        Ok(())
    }

    fn c_client(&self) -> Result<CClient, BenchError> {
        CClient::open(&self.region).ok_or_else(|| wrong("ff_open failed"))
    }

    fn allocator(&self, case: &str, allocator: &mut impl Allocator, samples: &mut Samples) {
        samples.add(case, PAIR, NS, pairs(allocator, 64, touch));
        for (bytes, is_written, metric) in LARGER {
            let ns = match is_written {
                true => pairs(allocator, bytes, |object, number| fill(object, bytes, number as u8)),
                false => pairs(allocator, bytes, touch),
            };
            samples.add(case, metric, NS, ns);
        }
        samples.add(case, SHUFFLED, NS, self.many(allocator));
        let (allocate, free) = primitives::fast_ns(allocator);
        samples.add(case, ALLOCATE, NS, allocate);
        samples.add(case, FREE, NS, free);
    }

    /// The last of several times, so that memory is there, and a client that has just opened the region has its lists.
    fn many(&self, allocator: &mut impl Allocator) -> f64 {
        let mut objects = Vec::with_capacity(MANY);
        let mut ns = 0.0;
        for _ in 0..TURNS {
            ns = per(MANY, || {
                for number in 0..MANY {
                    let object = allocator.allocate(64);
                    touch(object, number as u64);
                    objects.push(object);
                }
                for at in &self.shuffled {
                    allocator.free(objects[*at]);
                }
            });
            objects.clear();
        }
        ns
    }

    fn messages(&self) -> Result<f64, BenchError> {
        let (mut sender, mut receiver) = (self.client()?, self.client()?);
        let to = sender.mailbox("messages", SLOTS).map_err(failed)?;
        let from = receiver.mailbox("messages", SLOTS).map_err(failed)?;
        let back = receiver.mailbox("back", SLOTS).map_err(failed)?;
        let home = sender.mailbox("back", SLOTS).map_err(failed)?;
        let mut object = sender.allocate(64).map_err(failed)?;
        let mut is_right = true;
        let begun = Instant::now();
        for _ in 0..MESSAGES / 2 {
            is_right &= sender.send(to, object, Timeout::Poll).map_err(failed)?;
            let there = receiver.receive(from, Timeout::Poll).map_err(failed)?;
            is_right &= there == Some(object);
            is_right &= receiver.send(back, object, Timeout::Poll).map_err(failed)?;
            let here = sender.receive(home, Timeout::Poll).map_err(failed)?;
            is_right &= here == Some(object);
            object = here.unwrap_or(object);
        }
        let ns = begun.elapsed().as_nanos() as f64 / MESSAGES as f64;
        if is_right { Ok(ns) } else { Err(wrong("a message was lost")) }
    }

    /// Moves money between two accounts.
    fn guarded(&self) -> Result<f64, BenchError> {
        let mut client = self.client()?;
        let from = client.allocate(64).map_err(failed)?.cast::<u64>();
        let to = client.allocate(64).map_err(failed)?.cast::<u64>();
        touch(from.cast(), GUARDED_CALLS as u64);
        touch(to.cast(), 0);
        // Addresses, as pointers cannot be shared by threads.
        let accounts = [from, to].map(|account| account.expose_provenance().get());
        let code: Code = Arc::new(move |guard, _| {
            let [from, to] = accounts.map(|at| NonNull::new(at as *mut u64));
            let (Some(from), Some(to)) = (from, to) else { return 1 };
            let moved = guard.lock(0).and_then(|()| {
                let (left, there) = (guard.load(from)?, guard.load(to)?);
                guard.store(from, left - 1)?;
                guard.store(to, there + 1)?;
                Ok(left + there == GUARDED_CALLS as u64)
            });
            i32::from(!moved.unwrap_or(false))
        });
        let operation = client.region().guard_register("move", 1, code).map_err(failed)?;
        let mut wrong_calls = 0;
        let ns = per(GUARDED_CALLS, || {
            for _ in 0..GUARDED_CALLS {
                wrong_calls += client.guard_call(&operation, &[]).unwrap_or(1);
            }
        });
        if wrong_calls == 0 { Ok(ns) } else { Err(wrong("a guarded operation failed")) }
    }

    /// The consumer is a thread with a client of its own.
    fn hand_objects(&self) -> Result<f64, BenchError> {
        let path: &Path = &self.region;
        let open = || CClient::open(path).ok_or_else(|| wrong("ff_open failed"));
        let (producer, consumer) = (open()?, open()?);
        let (to, from) = (producer.mailbox("handed", SLOTS), consumer.mailbox("handed", SLOTS));
        Ok(per(MESSAGES, || {
            std::thread::scope(|scope| {
                scope.spawn(move || consumer.free_received(from, MESSAGES));
                producer.send_new(to, MESSAGES);
            });
        }))
    }
}

fn pairs(allocator: &mut impl Allocator, bytes: usize, write: impl Fn(NonNull<u8>, u64)) -> f64 {
    per(PAIRS, || {
        for number in 0..PAIRS {
            let object = allocator.allocate(bytes);
            write(object, number as u64);
            allocator.free(black_box(object));
        }
    })
}

/// The same as [`Bench::hand_objects`], with an allocator of one process and a ring of as many slots.
fn hand_pointers(allocator: impl Allocator + Copy + Send) -> f64 {
    let ring: Vec<AtomicUsize> = (0..SLOTS).map(|_| AtomicUsize::new(0)).collect();
    let ring = &ring;
    per(MESSAGES, || {
        std::thread::scope(|scope| {
            let (mut here, mut there) = (allocator, allocator);
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let slot = &ring[number % SLOTS as usize];
                    let object = spin(|| NonNull::new(slot.load(Ordering::Acquire) as *mut u8));
                    slot.store(0, Ordering::Release);
                    there.free(object);
                }
            });
            for number in 0..MESSAGES {
                let object = here.allocate(64);
                touch(object, number as u64);
                let slot = &ring[number % SLOTS as usize];
                spin(|| (slot.load(Ordering::Acquire) == 0).then_some(()));
                slot.store(object.as_ptr() as usize, Ordering::Release);
            }
        });
    })
}

fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for round in 0u32.. {
        if let Some(done) = attempt() {
            return done;
        }
        std::hint::spin_loop();
        if round % 4096 == 4095 {
            std::thread::yield_now();
        }
    }
    unreachable!("the counter has an end, the wait does not")
}

fn per(count: usize, run: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    run();
    begun.elapsed().as_nanos() as f64 / count as f64
}

/// The numbers below `count`, shuffled by a fixed seed.
fn shuffled(count: usize) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        numbers.swap(last, (state % (last as u64 + 1)) as usize);
    }
    numbers
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    wrong(&error.to_string())
}

fn wrong(reason: &str) -> BenchError {
    BenchError::Answer { case: "objects".to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_has_every_number_once() {
        let mut numbers = shuffled(1000);
        assert!((0..1000).ne(numbers.iter().copied()));
        numbers.sort_unstable();
        assert!((0..1000).eq(numbers));
    }
}
