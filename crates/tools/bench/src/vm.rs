//! Virtual machines from snapshots: `farfork bench vm`.
//!
//! ```text
//!  for each scene     a snapshot, a recorded machine of each kind, and (workloads) two nodes without all of it
//!  rounds             for each task: each case, one machine after the other
//!                     ─► ms from the restore to the guest's end, what is filled before the guest runs included
//!                     for some cases: many machines at once
//! ```
//! Invariants: the same guest of the mini VMM does the same in each case, reads every word of the pages that it
//! visits, and its result is checked. Which case comes first changes with each round. The baselines are farfork's
//! own: no monitor of others runs here.

mod bed;
mod far;
mod goals;
mod handler;
mod scene;
mod serve;
mod waits;

use std::time::Instant;

use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::{Options, progress};

use bed::Bed;
use scene::{SCENES, Scene};

const NAME: &str = "bench/vm";

/// Mapped as it is touched, from the page cache: Firecracker's backend `File`.
const FILE: &str = "file";
/// The same from a disk: Firecracker's default, cold.
const FILE_COLD: &str = "file-cold";
/// One page for each fault: a handler such as Firecracker's example.
const PLAIN: &str = "plain";
/// What an earlier machine needed lies in one file, and is copied before the guest runs: REAP.
const REAP: &str = "reap";
/// The same from a disk.
const REAP_COLD: &str = "reap-cold";
/// Parts of the file that hold something are mapped over memory of zeros: FaaSnap.
const FAASNAP: &str = "faasnap";
/// The same from a disk; a thread reads what an earlier machine needed.
const FAASNAP_COLD: &str = "faasnap-cold";
/// The page server, which knows nothing of the snapshot's pages.
const UNRECORDED: &str = "farfork-unrecorded";
/// The page server, after one machine with the same walk; the guest runs at once.
const AT_ONCE: &str = "farfork-at-once";
/// The same; the guest runs when the machine is filled.
const FARFORK: &str = "farfork";
/// All of the memory is mapped in the monitor before the clock starts: the bound.
const RESIDENT: &str = "resident";
/// The same with huge pages that are set aside.
const HUGE: &str = "farfork-2m";
/// The node has pulled the snapshot with its record; cold parts are on the other node. A new page server, nothing
/// cached; the guest runs when the machine is filled.
const COLD_FAR: &str = "farfork-cold-far";
/// The same with all pages on the other node: a host outside of the pod.
const ALL_FAR: &str = "farfork-all-far";
/// The same machine once more: what the guest itself takes.
const AGAIN: &str = "again";
/// Pages that machines before have needed, from the hand-over until they are there, beside all else.
const REPLAY: &str = "farfork, replay";
/// Machines touch pages that their replays bring last; as many replays at once as there are processors.
const LIMITED: &str = "farfork, faults during replays";
/// The same with all replays at once.
const UNLIMITED: &str = "the same, all replays at once";
/// How many machines, and the metrics: the mean and the 99th percentile of the waits of one round.
const WAITS: [(usize, &str, &str); 3] = [
    (1, "a fault waits, mean", "a fault waits, P99"),
    (8, "8 machines at once: a fault waits, mean", "8 machines at once: a fault waits, P99"),
    (32, "32 machines at once: a fault waits, mean", "32 machines at once: a fault waits, P99"),
];
/// As many bytes as were replayed, copied into memory that has no page tables yet: the bound of a replay.
const COPY: &str = "memcpy and page tables";
const CASES: [&str; 14] = [
    FILE,
    FILE_COLD,
    PLAIN,
    REAP,
    REAP_COLD,
    FAASNAP,
    FAASNAP_COLD,
    UNRECORDED,
    AT_ONCE,
    FARFORK,
    HUGE,
    COLD_FAR,
    ALL_FAR,
    RESIDENT,
];
/// Cases with many machines at once. In those with pages on another node, too, guests run at once. Not all mapped: a copy
/// of all memory for each would take 8 GiB.
const CROWDS: [&str; 8] = [FILE, FILE_COLD, PLAIN, REAP, FAASNAP, AT_ONCE, COLD_FAR, ALL_FAR];

/// Rounds with many machines, which take most of the time: as few as have a 95 % interval.
const CROWD_ROUNDS: usize = 6;
/// Machines of a workload that a plain handler gets at once: with 32 it took longer than each other case. It gets
/// these in the synthetic scene.
const MOST_PLAIN: usize = 8;

const MS: &str = "ms";
const PAGES_PER_S: &str = "pages/s";
const PAGE_BYTES: usize = 4096;

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&SCENES.map(|scene| scene.name))?;
    let (machine, begun) = (Machine::this(), Instant::now());
    let (mut samples, mut notes) = (Samples::default(), Vec::new());
    let rounds = if options.quick { 5 } else { 9 };
    for scene in SCENES.iter().filter(|scene| options.wants(scene.name)) {
        progress(&format!("{}: making the snapshot", scene.name));
        let bed = Bed::new(scene)?;
        notes.push(format!("{}: {}.", scene.name, bed.guests.note));
        footprint(&bed, scene, &mut samples)?;
        let mut uncounted = Samples::default();
        for round in 0..=rounds {
            progress(&format!("{}: round {round} of {rounds}", scene.name));
            let samples = if round == 0 { &mut uncounted } else { &mut samples };
            self::round(&bed, scene, round, samples)?;
            if (1..=CROWD_ROUNDS).contains(&round) {
                waits(&bed, round, samples)?;
            }
        }
    }
    goals::add_means(&mut samples);
    notes.push(NOTE.to_owned());
    notes.push(format!("The run took {} s.", begun.elapsed().as_secs()));
    Ok(Report {
        benchmark: "vm",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::judged(&samples),
        rows: samples.rows(),
        notes,
    })
}

const NOTE: &str = "All cases are farfork's own mini VMM; REAP and FaaSnap are their ideas, written for this benchmark. \
    Guests of the nine workloads touch pages in the order in which a real process did (bench/workloads/record.py); their \
    words, where their pages lie, and how much more memory they have are synthetic. Files lie in memory (tmpfs), those of \
    `-cold` in the directory for temporary files, dropped from the page cache; a disk of a virtual machine may have them \
    in its host's memory. Another node is another process, over TCP on the loopback device with every frame sealed. The \
    first accesses of a vCPU to pages are part of all cases but `again`. Paper (Aquifer, on emulated CXL and RDMA): 2.2 times \
    as fast as Firecracker's default, 1.1 times as fast as the next best, 82.8 % of pages zeros, 5.5 % hot.";

fn round(bed: &Bed, scene: &Scene, round: usize, samples: &mut Samples) -> Result<(), BenchError> {
    for (number, task) in bed.guests.tasks.iter().enumerate() {
        for turn in 0..CASES.len() {
            let case = CASES[(round + turn) % CASES.len()];
            if let Some(why) = bed.lacks(case) {
                samples.note(case, task.metric, MS, &why);
                continue;
            }
            let restored = bed.restore(case, number)?;
            samples.add(case, task.metric, MS, restored.ms);
            if let Some(pages_per_s) = restored.pages_per_s.filter(|_| case == FARFORK) {
                samples.add(REPLAY, task.metric, PAGES_PER_S, pages_per_s);
                samples.add(COPY, task.metric, PAGES_PER_S, copied_per_s());
            }
            if case == RESIDENT {
                samples.add(AGAIN, task.metric, MS, restored.again_ms);
            }
        }
    }
    if !(1..=CROWD_ROUNDS).contains(&round) {
        return Ok(());
    }
    for (machines, metric) in scene.crowds {
        for turn in 0..CROWDS.len() {
            let case = CROWDS[(round + turn) % CROWDS.len()];
            let is_slow = case == PLAIN && *machines > MOST_PLAIN && scene.is_recorded();
            if bed.lacks(case).is_none() && !is_slow {
                samples.add(case, metric, MS, bed.restore_crowd(case, *machines)?);
            }
        }
    }
    Ok(())
}

/// How long faults wait while many machines are filled.
fn waits(bed: &Bed, round: usize, samples: &mut Samples) -> Result<(), BenchError> {
    for (machines, mean, tail) in WAITS {
        for turn in 0..2 {
            let has_limit = (round + turn).is_multiple_of(2);
            let Some(mut waits) = bed.fault_waits(has_limit, machines)? else { return Ok(()) };
            let case = if has_limit { LIMITED } else { UNLIMITED };
            waits.sort_by(f64::total_cmp);
            samples.add(case, mean, "us", waits.iter().sum::<f64>() / waits.len() as f64);
            samples.add(case, tail, "us", waits[(waits.len() * 99).div_ceil(100) - 1]);
        }
    }
    Ok(())
}

/// Pages per second of `memcpy` into fresh memory.
fn copied_per_s() -> f64 {
    const PAGES: usize = 4096;
    let from = vec![1u8; PAGES * PAGE_BYTES];
    let mut to = vec![0u8; from.len()];
    let begun = Instant::now();
    to.copy_from_slice(&from);
    std::hint::black_box(&to);
    PAGES as f64 / begun.elapsed().as_secs_f64()
}

/// What the snapshot takes.
fn footprint(bed: &Bed, scene: &Scene, samples: &mut Samples) -> Result<(), BenchError> {
    let shown = bed.shown()?;
    for key in ["raw", "zero", "hot", "cold", "shared", "pool"] {
        let bytes = shown[format!("{key}_bytes")].as_f64().unwrap_or(f64::NAN);
        samples.add(&format!("snapshot, {key}"), scene.name, "MiB", bytes / f64::from(1 << 20));
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Answer { case: "vm".to_owned(), reason: error.to_string() }
}
