//! Clones against what one would do without them: `farfork bench fork`.
//!
//! ```text
//!  set up   every subject: start, warm, checkpoint
//!  rounds   for each subject: cold │ CRIU │ local fork │ clone │ clone, all copied │ clone, copied on access │
//!            warm │ warm after idleness
//!  rounds   for each subject: checkpoint │ memcpy │ criu dump
//!  herds    for each subject: many clones at once
//! ```
//! Invariants: the clock of every case starts before the request's socket is made or connected
//! and stops when the answer is in; every answer is checked, outside the clock; between two
//! cases all processes of the first have gone, and the same pause passes.

mod checkpoint;
mod clone;
mod cold;
mod criu;
mod goals;
mod herd;
mod local;
mod warm;

use std::rc::Rc;
use std::time::Duration;

use farfork_checkpoint::{Fate, Target, checkpoint};

use crate::error::{BenchError, io};
use crate::machine::{Machine, available_bytes};
use crate::protocol::Touches;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, Warm, compile_footprint, source_root};
use crate::testbed::Testbed;
use crate::{Options, progress};

const FOOTPRINTS: [(u64, Touches); 5] = [
    (24, Touches::Clustered),
    (100, Touches::Clustered),
    (400, Touches::Clustered),
    (400, Touches::Scattered),
    (1600, Touches::Clustered),
];
/// Between two cases.
const PAUSE: Duration = Duration::from_millis(5);

/// Metrics that more than one file names.
mod metric {
    pub use crate::clones::RESTORE;
    pub const RESPONSE: &str = "request to response";
    pub const WARM: &str = "warm call after it";
    pub const EXCESS: &str = "excess of first call";
    pub const LOCAL: &str = "local memory after one call";
    pub const KERNEL: &str = "kernel memory";
    pub const FAULTS: &str = "page faults of both calls";
}

/// How much is measured.
struct Scale {
    rounds: usize,
    checkpoints: usize,
    herds: usize,
    /// Clones of a herd.
    herd: usize,
}

/// One subject under way.
struct Lane {
    subject: Subject,
    warm: Warm,
    /// What CRIU restores, or why it does not.
    criu: Result<criu::Images, String>,
    /// Number of the next request, so that no two are equal.
    next: u64,
}

/// What a case works with.
struct Bench<'a> {
    testbed: &'a Testbed,
    samples: &'a mut Samples,
}

impl Lane {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let scale = scale(options);
    let mut notes = Vec::new();
    let testbed = Testbed::new(pool_bytes())?;
    let criu = criu::Program::find(testbed.path("criu"), pool_bytes()).map(Rc::new);
    let mut samples = Samples::default();
    let subjects = fitting(subjects(&testbed, &mut notes)?, criu.is_ok(), &mut notes);
    let mut lanes = Vec::new();
    for subject in subjects {
        progress(&format!("starting {}, warming it, checkpointing it", subject.name));
        match lane(subject, &testbed, &criu)? {
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

/// Room for every image, the largest of them once more, and what two Python processes take.
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
        Some(root) => subjects.extend([1, 2].map(|threads| Subject::embed(&root, threads))),
        None => notes.push(
            "The sample function was not measured: run this in farfork's source directory, after \
             setup/all.sh."
                .to_owned(),
        ),
    }
    Ok(subjects)
}

/// Leaves out what the machine has no room for: the process, its image, a cold start and a fork,
/// and images of CRIU.
fn fitting(subjects: Vec<Subject>, has_criu: bool, notes: &mut Vec<String>) -> Vec<Subject> {
    let images = u64::from(has_criu);
    let mut room = (available_bytes() >> 20).saturating_sub(1024);
    let mut fits = |subject: &Subject| {
        let needed = subject.megabytes * (4 + images);
        let fits = needed <= room;
        room = room.saturating_sub(subject.megabytes * (2 + images));
        if !fits {
            notes.push(format!(
                "{} was not measured: it needs about {needed} MB of memory that is free.",
                subject.name
            ));
        }
        fits
    };
    subjects.into_iter().filter(|subject| fits(subject)).collect()
}

/// A lane, or why there is none: a checkpoint that is refused says so and spoils nothing else.
fn lane(
    subject: Subject,
    testbed: &Testbed,
    criu: &Result<Rc<criu::Program>, String>,
) -> Result<Result<Lane, String>, BenchError> {
    let directory = testbed.path(&subject.name);
    std::fs::create_dir(&directory).map_err(io("make", &directory))?;
    let (parent, forker) = subject.warm(&directory)?;
    subject.settle(&parent)?;
    match checkpoint(&testbed.pool, Target::Process(parent.pid()), Fate::GoesOn, &mut |_, _| {}) {
        Ok(made) => {
            let criu = match criu {
                Ok(program) => criu::Images::make(program, &subject.name, &parent),
                Err(reason) => Err(format!("no CRIU from version 4 on works here: {reason}")),
            };
            let warm = Warm { parent, forker, cid: made.cid };
            Ok(Ok(Lane { subject, warm, criu, next: 100 }))
        }
        Err(error) => Ok(Err(format!("{} was not measured: {error}", subject.name))),
    }
}

fn measure(lanes: &mut [Lane], bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    // The first round warms files, caches and the agent, and is not counted.
    let mut uncounted = Samples::default();
    for round in 0..=scale.rounds {
        progress(&format!("round {round} of {}", scale.rounds));
        let samples = if round == 0 { &mut uncounted } else { &mut *bench.samples };
        for lane in &mut *lanes {
            one_round(lane, &mut Bench { testbed: bench.testbed, samples })?;
        }
    }
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
    for case in cases {
        std::thread::sleep(PAUSE);
        case(lane, bench)?;
    }
    Ok(())
}
