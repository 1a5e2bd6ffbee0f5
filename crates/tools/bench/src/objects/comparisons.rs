//! What is measured a few times only: threads, structures, memory, clients beside recoveries, other libraries for shared memory, and
//! the figures of the paper.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::allocators::{CClient, Mimalloc, words};
use super::primitives::{self, Memory};
use super::rivals::{self, Boost};
use super::trees::{self, Shape};
use super::{
    ALLOCATE, Bench, FREE, MESSAGE, NS, ONE_WAY, OWN, PAIR, RATE, ROUND_TRIPS, SHUFFLED,
    disturbance, failed, memory, threads,
};
use crate::error::BenchError;
use crate::progress;
use crate::samples::Samples;

pub(super) const THREADTEST: &str = "threadtest, 2 threads";
/// The paper, figure 2 (b): what a client takes beyond mimalloc's time while others work.
pub(super) const BEYOND: [(usize, &str); 4] = [
    (2, "share of the time beyond mimalloc's, 2 clients"),
    (4, "share of the time beyond mimalloc's, 4 clients"),
    (8, "share of the time beyond mimalloc's, 8 clients"),
    (16, "share of the time beyond mimalloc's, 16 clients"),
];
pub(super) const TREE: &str = "tree received and walked, of a node";
pub(super) const LIST: &str = "list received and walked, of a node";
pub(super) const OVERHEAD: &str = "bytes beside an object of 64";
pub(super) const KEPT: &str = "throughput of a client beside recoveries";
pub(super) const SLOW: &str = "allocate, slow path (a new span)";
const RECOVERIES: &str = "recoveries of 100,000 objects";
/// Processes in each of which the bytes beside objects are counted.
const OVERHEADS: usize = 6;
const BYTES: &str = "bytes";
const PART: &str = "%";
/// Height of the tree.
const HEIGHT: u32 = 20;
/// Bytes of the memory that table 3 is about: more than caches have.
const MEMORY_BYTES: u64 = 128 << 20;
const SEQUENTIAL: &str = "reads of lines in order, one thread";
const RANDOM: &str = "reads of lines in random order, one thread";
const SWAPS: &str = "compare-and-swap of one word, one thread";
const LATENCY: &str = "a load after a load";
const PAPER: &str = "AEP-DSM (its paper)";
const OLDER: &str = "CXL-SHM (the paper of AEP-DSM)";

/// Adds everything.
pub(super) fn add(
    bench: &Bench,
    directory: &Path,
    quick: bool,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let rounds = if quick { 7 } else { 15 };
    // First: allocators have used no memory yet that they could use again.
    for _ in 0..OVERHEADS {
        overheads(bench, directory, samples)?;
    }
    let boost = Boost::compile(directory);
    if let Err(reason) = &boost {
        samples.note("boost.interprocess", PAIR, NS, reason);
    }
    for round in 0..rounds {
        progress(&format!("comparison {round} of {rounds}"));
        threads(bench, samples);
        shares(bench, samples);
        slow_path(directory, samples)?;
        memory_itself(directory, samples)?;
        structures(directory, quick, samples)?;
        beside_recoveries(directory, quick, samples)?;
        if let Ok(boost) = &boost {
            add_boost(boost, samples);
        }
        add_iceoryx(samples);
    }
    add_paper(samples);
    Ok(())
}

fn threads(bench: &Bench, samples: &mut Samples) {
    samples.add("mimalloc", THREADTEST, NS, threads::ns(|| Mimalloc));
    let open = || CClient::open(&bench.region).expect("the region has ids");
    samples.add("farfork-c", THREADTEST, NS, threads::ns(open));
    for (name, loaded) in &bench.loaded {
        samples.add(name, THREADTEST, NS, threads::ns(|| *loaded));
    }
}

fn shares(bench: &Bench, samples: &mut Samples) {
    let open = || CClient::open(&bench.region).expect("the region has ids");
    for (clients, metric) in BEYOND {
        let theirs = threads::processor_ns(clients, || Mimalloc);
        let ours = threads::processor_ns(clients, open);
        samples.add("farfork-c", metric, PART, 100.0 * (1.0 - theirs / ours));
    }
}

fn slow_path(directory: &Path, samples: &mut Samples) -> Result<(), BenchError> {
    let path = directory.join("slow-path");
    farfork::Region::create(&path, 16 << 20).map_err(failed)?;
    let mut client = CClient::open(&path).expect("a new region has ids");
    samples.add("farfork-c", SLOW, NS, primitives::slow_ns(&mut client));
    std::fs::remove_file(&path).map_err(crate::error::io("remove", &path))
}

fn memory_itself(directory: &Path, samples: &mut Samples) -> Result<(), BenchError> {
    const CASES: [&str; 2] = ["memory of one process", "memory of a region"];
    let path = directory.join("memory");
    farfork::Region::create(&path, MEMORY_BYTES + (32 << 20)).map_err(failed)?;
    let mut client = farfork::Client::open(&path).map_err(failed)?;
    let object = client.allocate(MEMORY_BYTES as usize).map_err(failed)?;
    let own: Vec<AtomicU64> = (0..MEMORY_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    let found = [&own[..], words(object, MEMORY_BYTES as usize / 8)].map(primitives::memory);
    for (case, found) in CASES.into_iter().zip(found) {
        let Memory { sequential_mb_s, random_mb_s, swaps_m_s, latency_ns } = found;
        samples.add(case, SEQUENTIAL, "MB/s", sequential_mb_s);
        samples.add(case, RANDOM, "MB/s", random_mb_s);
        samples.add(case, SWAPS, "M/s", swaps_m_s);
        samples.add(case, LATENCY, NS, latency_ns);
    }
    std::fs::remove_file(&path).map_err(crate::error::io("remove", &path))
}

fn structures(directory: &Path, quick: bool, samples: &mut Samples) -> Result<(), BenchError> {
    let nodes = if quick { 100_000 } else { 1_000_000 };
    for (metric, shape) in [(TREE, Shape::Tree(HEIGHT)), (LIST, Shape::List(nodes))] {
        samples.add("memory of one process", metric, NS, trees::plain_ns(shape));
        let ns = trees::received_ns(directory, shape).map_err(failed)?;
        samples.add("farfork", metric, NS, ns);
    }
    Ok(())
}

fn overheads(bench: &Bench, directory: &Path, samples: &mut Samples) -> Result<(), BenchError> {
    const OBJECTS: usize = 500_000;
    let mut add = |case: &str, bytes: Option<f64>| match bytes {
        Some(bytes) => samples.add(case, OVERHEAD, BYTES, bytes),
        None => samples.note(case, OVERHEAD, BYTES, "its process failed"),
    };
    add("mimalloc", memory::overhead(OBJECTS, || Mimalloc));
    for (name, loaded) in &bench.loaded {
        add(name, memory::overhead(OBJECTS, || *loaded));
    }
    let path = directory.join("overhead");
    farfork::Region::create(&path, 64 << 20).map_err(failed)?;
    let open = || farfork::Client::open(&path).expect("a new region has ids");
    add("farfork", memory::overhead(OBJECTS, open));
    std::fs::remove_file(&path).map_err(crate::error::io("remove", &path))
}

fn beside_recoveries(
    directory: &Path,
    quick: bool,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let time = Duration::from_millis(if quick { 300 } else { 1000 });
    let kept = disturbance::measure(directory, time).map_err(failed)?;
    samples.add("farfork", KEPT, PART, 100.0 * kept.working);
    samples.add("stopped for each recovery", KEPT, PART, 100.0 * kept.stopped);
    samples.add("farfork", RECOVERIES, "a second", kept.recoveries);
    Ok(())
}

fn add_boost(boost: &Boost, samples: &mut Samples) {
    const CASE: &str = "boost.interprocess";
    let Some(figures) = boost.run() else {
        return samples.note(CASE, PAIR, NS, "its program failed");
    };
    samples.add(CASE, PAIR, NS, figures.pair);
    samples.add(CASE, SHUFFLED, NS, figures.many);
    samples.add(CASE, ONE_WAY, NS, figures.one_way);
    let note = format!("version {}, message_queue, both processes poll", figures.version);
    samples.note(CASE, ONE_WAY, NS, &note);
}

fn add_iceoryx(samples: &mut Samples) {
    const CASE: &str = "iceoryx2";
    match rivals::one_way_ns(ROUND_TRIPS) {
        Some(Ok(ns)) => samples.add(CASE, ONE_WAY, NS, ns),
        Some(Err(reason)) => samples.note(CASE, ONE_WAY, NS, &reason),
        None => samples.note(CASE, ONE_WAY, NS, "built without it: --features iceoryx2 has it"),
    }
}

/// Figures of the paper (tables and text of its section 5), from its machine. They say how these designs compare there.
fn add_paper(samples: &mut Samples) {
    for (case, metric, unit, value) in [
        (PAPER, PAIR, NS, 42.2 + 33.72),
        (OLDER, PAIR, NS, 581.3 + 462.0),
        (PAPER, ALLOCATE, NS, 42.2),
        (OLDER, ALLOCATE, NS, 581.3),
        (PAPER, SLOW, NS, 589.1),
        (PAPER, FREE, NS, 33.72),
        (OLDER, FREE, NS, 462.0),
        (OLDER, BEYOND[0].1, PART, 49.86),
        (OLDER, BEYOND[3].1, PART, 60.31),
        (PAPER, MESSAGE, NS, 86.1),
        (OLDER, MESSAGE, NS, 2019.6),
        (PAPER, OWN, RATE, 253.4),
        (OLDER, OWN, RATE, 17.4),
    ] {
        samples.add(case, metric, unit, value);
        samples.note(
            case,
            metric,
            unit,
            "section 5 of the paper, figure 2, table 4, on its machine",
        );
    }
    for (case, megabytes, random, latency) in [
        ("local memory (the paper)", 109_782.6, 57_830.3, 115.0),
        ("memory of another socket (the paper)", 35_701.2, 36_334.7, 179.0),
        ("CXL memory (the paper)", 28_300.2, 25_893.2, 253.0),
    ] {
        samples.add(case, SEQUENTIAL, "MB/s", megabytes);
        samples.add(case, RANDOM, "MB/s", random);
        samples.add(case, SWAPS, "M/s", 65.9);
        samples.add(case, LATENCY, NS, latency);
        samples.note(case, SEQUENTIAL, "MB/s", "table 3, on its machine, with all its processors");
    }
    samples.note(PAPER, TREE, NS, "3.72 times local memory, height 20, on its machine");
    samples.note(PAPER, OVERHEAD, BYTES, "16 more than mimalloc, on its machine");
    samples.note(PAPER, KEPT, PART, "more than 95 (figure 13), on its machine");
}
