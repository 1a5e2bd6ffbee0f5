//! Virtual machines from snapshots: `farfork bench vm`.
//!
//! ```text
//!  rounds   for each walk: each case, one machine after the other
//!           ─► ms from the restore to the guest's end, what is filled before the guest runs included
//!           for some cases: many machines at once
//! ```
//! Invariants: the same guest of the mini VMM walks in the same order in each case, reads every word of the
//! pages that it visits, and its result is checked. Which case comes first changes with each round. The
//! baselines are farfork's own: no monitor of others runs here.

mod bed;
mod handler;
mod serve;

use crate::error::BenchError;
use crate::goals::Goal;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::{Options, progress};

use bed::Bed;

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
/// The same machine once more: what the guest itself takes.
const AGAIN: &str = "again";
const CASES: [&str; 11] = [
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
    RESIDENT,
];
/// Cases with many machines at once.
const CROWDS: [&str; 4] = [FILE, PLAIN, REAP, AT_ONCE];

const JUMPING: &str = "10 % of the pages, here and there";
const IN_ORDER: &str = "10 % of the pages, in order";
const WHOLE: &str = "all pages, in order";
const CROWD: &str = "32 machines at once, 10 % here and there";
const MACHINES: usize = 32;
const MS: &str = "ms";

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&[])?;
    let machine = Machine::this();
    let bed = Bed::new()?;
    let (mut samples, mut uncounted) = (Samples::default(), Samples::default());
    let rounds = if options.quick { 9 } else { 41 };
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        self::round(&bed, round, if round == 0 { &mut uncounted } else { &mut samples })?;
    }
    let mut notes = bed.notes.clone();
    notes.push(
        "All cases are farfork's own mini VMM; REAP and FaaSnap are their ideas, written for this benchmark. \
         The guests are synthetic, and so are their shares of zeros and touched pages. Files lie in memory \
         (tmpfs), those of `-cold` in the directory for temporary files, dropped from the page cache; a \
         disk of a virtual machine may have them in its host's memory. The first accesses of a vCPU to \
         pages are part of all cases but `again`."
            .to_owned(),
    );
    Ok(Report {
        benchmark: "vm",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals(&samples),
        rows: samples.rows(),
        notes,
    })
}

fn goals(samples: &Samples) -> Vec<Goal> {
    let against = |metric: &'static str, other: &'static str, limit: f64| {
        let [ours, theirs] = [FARFORK, other].map(|case| samples.values(case, metric));
        Goal::ratio(format!("{metric}: farfork / {other}"), limit, ours, theirs)
    };
    let of = |metric| {
        [
            against(metric, FILE_COLD, 1.0 / 2.2),
            against(metric, FILE, 1.0 / 2.2),
            against(metric, REAP, 1.0 / 1.1),
            against(metric, FAASNAP, 1.0 / 1.1),
            against(metric, RESIDENT, 1.15),
        ]
    };
    [JUMPING, IN_ORDER, WHOLE].into_iter().flat_map(of).collect()
}

fn round(bed: &Bed, round: usize, samples: &mut Samples) -> Result<(), BenchError> {
    for number in 0..bed.walks.len() {
        let metric = bed.walks[number].0;
        for turn in 0..CASES.len() {
            let case = CASES[(round + turn) % CASES.len()];
            let (ms, again) = bed.restore(case, number)?;
            samples.add(case, metric, MS, ms);
            if case == RESIDENT {
                samples.add(AGAIN, metric, MS, again);
            }
        }
    }
    for turn in 0..CROWDS.len() {
        let case = CROWDS[(round + turn) % CROWDS.len()];
        samples.add(case, CROWD, MS, bed.restore_crowd(case, MACHINES)?);
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Answer { case: "vm".to_owned(), reason: error.to_string() }
}
