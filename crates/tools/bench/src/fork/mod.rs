//! Clones against cold starts, CRIU, local forks and warm processes: `farfork bench fork`.
//!
//! ```text
//!  set up   every subject: start, warm, checkpoint
//!  rounds   for each subject: cold │ CRIU │ local fork │ clone │ clone, all copied │ clone, copied on access │
//!            warm │ warm after idleness
//!  rounds   for each subject: checkpoint │ memcpy │ criu dump
//!  herds    for each subject: many clones at once
//! ```
//! The invariants of all cases are in [`crate::cases`].

mod checkpoint;
mod goals;
mod herd;

use std::rc::Rc;

use crate::cases::{Bench, Lane, clone, cold, criu, fitting, local, pause, rounds, warm};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::protocol::Touches;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, compile_footprint, source_root};
use crate::testbed::Testbed;
use crate::{Options, progress};

const FOOTPRINTS: [(u64, Touches); 5] = [
    (24, Touches::Clustered),
    (100, Touches::Clustered),
    (400, Touches::Clustered),
    (400, Touches::Scattered),
    (1600, Touches::Clustered),
];
/// Numbers of repetitions.
struct Scale {
    rounds: usize,
    checkpoints: usize,
    herds: usize,
    /// Clones of one herd.
    herd: usize,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let scale = scale(options);
    let mut notes = Vec::new();
    let testbed = Testbed::new(pool_bytes())?;
    let criu = criu::Program::find(testbed.path("criu"), pool_bytes()).map(Rc::new);
    let mut samples = Samples::default();
    let mut subjects = subjects(&testbed, &mut notes)?;
    options.check(&subjects.iter().map(|subject| &*subject.name).collect::<Vec<_>>())?;
    subjects.retain(|subject| options.wants(&subject.name));
    let subjects = fitting(subjects, criu.is_ok(), &mut notes);
    let mut lanes = Vec::new();
    for subject in subjects {
        progress(&format!("starting {}, warming it, checkpointing it", subject.name));
        match Lane::start(subject, &testbed, &criu)? {
            Ok(lane) => lanes.push(lane),
            Err(note) => notes.push(note),
        }
    }
    let mut bench = Bench { testbed: &testbed, samples: &mut samples };
    measure(&mut lanes, &mut bench, &scale)?;
    notes.extend(criu::note(&lanes, bench.samples));
    Ok(Report {
        benchmark: "fork",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::judge(&lanes, &samples),
        rows: samples.rows(),
        notes,
    })
}

fn scale(options: &Options) -> Scale {
    if options.quick {
        Scale { rounds: 6, checkpoints: 1, herds: 1, herd: 8 }
    } else {
        Scale { rounds: 31, checkpoints: 7, herds: 7, herd: 24 }
    }
}

/// Space for all images, a second copy of the largest, and the images of two Python processes.
fn pool_bytes() -> u64 {
    let largest = FOOTPRINTS.iter().map(|(megabytes, _)| megabytes).max().unwrap_or(&0);
    let sum: u64 = FOOTPRINTS.iter().map(|(megabytes, _)| megabytes).sum();
    (sum + largest + 1200) << 20
}

fn subjects(testbed: &Testbed, notes: &mut Vec<String>) -> Result<Vec<Subject>, BenchError> {
    let program = testbed.path("footprint");
    compile_footprint(&program)?;
    let mut subjects: Vec<Subject> = FOOTPRINTS
        .iter()
        .map(|(megabytes, touches)| Subject::footprint(&program, *megabytes, *touches))
        .collect();
    match source_root() {
        Some(root) => {
            for threads in [1, 2] {
                subjects.push(Subject::embed(&root, threads)?);
            }
        }
        None => notes.push(
            "The sample function was not measured. It needs farfork's source directory, set up by \
             setup/all.sh."
                .to_owned(),
        ),
    }
    Ok(subjects)
}

fn measure(lanes: &mut [Lane], bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    rounds(scale.rounds, bench, |bench| {
        lanes.iter_mut().try_for_each(|lane| one_round(lane, bench))
    })?;
    for round in 1..=scale.herds {
        progress(&format!("herds of {} clones, round {round} of {}", scale.herd, scale.herds));
        for lane in &mut *lanes {
            herd::measure(lane, bench, scale.herd)?;
        }
    }
    for round in 1..=scale.checkpoints {
        progress(&format!("checkpoints, round {round} of {}", scale.checkpoints));
        for lane in &mut *lanes {
            checkpoint::measure(lane, bench)?;
            criu::measure_dump(lane, bench)?;
        }
    }
    Ok(())
}

fn one_round(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cases = [
        cold::measure,
        criu::measure,
        local::measure,
        clone::measure,
        clone::measure_copied,
        clone::measure_on_access,
        warm::busy,
        warm::idle,
    ];
    lane.next_round();
    for case in cases {
        pause();
        case(lane, bench)?;
    }
    Ok(())
}
