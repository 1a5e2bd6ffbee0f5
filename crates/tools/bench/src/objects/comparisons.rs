//! What is measured a few times only: threads, structures, memory, clients beside recoveries, other libraries for shared memory, and
//! the figures of the paper.

use std::path::Path;
use std::time::Duration;

use super::allocators::{CClient, Mimalloc};
use super::rivals::{self, Boost};
use super::trees::{self, Shape};
use super::{
    Bench, MESSAGE, NS, ONE_WAY, OWN, PAIR, RATE, ROUND_TRIPS, SHUFFLED, disturbance, failed,
    memory, threads,
};
use crate::error::BenchError;
use crate::goals::Goal;
use crate::progress;
use crate::samples::Samples;

const THREADTEST: &str = "threadtest, 2 threads";
const TREE: &str = "tree received and walked, of a node";
const LIST: &str = "list received and walked, of a node";
const OVERHEAD: &str = "bytes beside an object of 64";
const KEPT: &str = "throughput of a client beside recoveries";
const RECOVERIES: &str = "recoveries of 100,000 objects";
const BYTES: &str = "bytes";
const PART: &str = "%";
/// Height of the tree, and most times that the walk may take longer than in plain memory.
const HEIGHT: u32 = 20;
const MOST_SLOWER: f64 = 1.2;
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
    overheads(bench, directory, samples)?;
    let boost = Boost::compile(directory);
    if let Err(reason) = &boost {
        samples.note("boost.interprocess", PAIR, NS, reason);
    }
    for round in 0..rounds {
        progress(&format!("comparison {round} of {rounds}"));
        threads(bench, samples);
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

/// Goals of these figures.
pub(super) fn goals(samples: &Samples) -> Vec<Goal> {
    let ratio = |metric: &str, limit, (one, other): (&str, &str)| {
        let (ours, theirs) = (samples.values(one, metric), samples.values(other, metric));
        Goal::ratio(format!("{metric}: {one} / {other}"), limit, ours, theirs)
    };
    vec![
        ratio(THREADTEST, 1.1, ("farfork-c", "mimalloc")),
        ratio(TREE, MOST_SLOWER, ("farfork", "memory of one process")),
        ratio(ONE_WAY, 1.0, ("farfork", "iceoryx2")),
    ]
}

fn threads(bench: &Bench, samples: &mut Samples) {
    samples.add("mimalloc", THREADTEST, NS, threads::ns(|| Mimalloc));
    let open = || CClient::open(&bench.region).expect("the region has ids");
    samples.add("farfork-c", THREADTEST, NS, threads::ns(open));
    for (name, loaded) in &bench.loaded {
        samples.add(name, THREADTEST, NS, threads::ns(|| *loaded));
    }
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
        (PAPER, MESSAGE, NS, 86.1),
        (OLDER, MESSAGE, NS, 2019.6),
        (PAPER, OWN, RATE, 253.4),
        (OLDER, OWN, RATE, 17.4),
    ] {
        samples.add(case, metric, unit, value);
        samples.note(case, metric, unit, "table 4 and section 5 of the paper, on its machine");
    }
    samples.note(PAPER, TREE, NS, "3.72 times local memory, height 20, on its machine");
    samples.note(PAPER, OVERHEAD, BYTES, "16 more than mimalloc, on its machine");
    samples.note(PAPER, KEPT, PART, "more than 95 (figure 13), on its machine");
}
