//! Where pages lie, and ghosts, on the papers' functions: `farfork bench tiering`.
//!
//! ```text
//!  set up   every function: ask a fresh process ─► start, warm, checkpoint ─► learn of the image
//!  rounds   for each function: cold │ CRIU │ local fork │ clones: copied, on access, hybrid,
//!            by default │ in an empty ghost │ in a pre-attached ghost │ warm │ a bare wake-up
//!  rounds   for each function: container │ cold start in it
//!  once     for each function: which pages its calls touch
//!  herds    of the smallest function and program: by one thread │ by two │ by two from two
//!            pools │ 10,000 clones
//! ```
//! What holds for every case is in [`crate::cases`]. The calls of one round have the same input, and
//! rounds have different ones; every function computes in one thread, since forks have one.

mod access;
mod container;
mod goals;
mod herd;
mod pages;
mod sleeper;
mod starts;

use std::rc::Rc;

use crate::cases::{Bench, Lane, criu, fitting, rounds};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, source_root};
use crate::testbed::Testbed;
use crate::{Options, progress};
use sleeper::Sleeper;

/// Those of CXLfork's Table 1, one that writes all of its data, and one more model.
const FUNCTIONS: [&str; 12] = [
    "float",
    "linpack",
    "json",
    "pyaes",
    "chameleon",
    "html",
    "cnn",
    "rnn",
    "bfs",
    "bert",
    "heat",
    "embed",
];

/// How much is measured.
struct Scale {
    rounds: usize,
    /// Different calls of each function.
    calls: u64,
    containers: usize,
    herd: herd::Scale,
}

/// One function under way.
struct Function {
    lane: Lane,
    /// What its ghosts' wake-up is held against.
    sleeper: Sleeper,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let scale = scale(options);
    let root = source_root().ok_or_else(|| BenchError::Lacking {
        doing: "measure the sample functions".to_owned(),
        reason: "they are not below this directory, or not set up".to_owned(),
        remedy: "run this in farfork's source directory, after setup/all.sh",
    })?;
    options.check(&FUNCTIONS)?;
    let mut notes = Vec::new();
    let subjects: Result<Vec<Subject>, BenchError> = FUNCTIONS
        .iter()
        .filter(|name| options.wants(name))
        .map(|name| {
            progress(&format!("asking a fresh process of {name}"));
            Subject::function(&root, name, 1, scale.calls)
        })
        .collect();
    let subjects = subjects?;
    let bytes = pool_bytes(&subjects);
    let testbed = Testbed::new(bytes)?;
    let criu = criu::Program::find(testbed.path("criu"), bytes).map(Rc::new);
    let subjects = fitting(subjects, criu.is_ok(), &mut notes);
    let mut functions = start(subjects, &testbed, &criu, &mut notes)?;
    let mut samples = Samples::default();
    let mut bench = Bench { testbed: &testbed, samples: &mut samples };
    rounds(scale.rounds, &mut bench, |bench| {
        functions.iter_mut().try_for_each(|function| starts::one_round(function, bench))
    })?;
    rounds(scale.containers, &mut bench, |bench| {
        functions.iter_mut().try_for_each(|function| container::measure(&mut function.lane, bench))
    })?;
    for function in &functions {
        let subject = &function.lane.subject;
        progress(&format!("looking at the pages of {} in {} calls", subject.name, scale.calls));
        access::measure(subject, &mut bench, scale.calls)?;
    }
    let herds = herd::measure(&root, &mut bench, &scale.herd, &mut notes)?;
    notes.extend(criu::note(functions.iter().map(|function| &function.lane), &mut samples));
    Ok(Report {
        benchmark: "tiering",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::judge(&functions, &herds, &samples),
        rows: samples.rows(),
        notes,
    })
}

fn scale(options: &Options) -> Scale {
    if options.quick {
        let herd = herd::Scale { rounds: 2, batch: 50, whole: 300, watched: 16 };
        Scale { rounds: 2, calls: 16, containers: 1, herd }
    } else {
        let herd = herd::Scale { rounds: 9, batch: 500, whole: 10_000, watched: 64 };
        Scale { rounds: 31, calls: 128, containers: 9, herd }
    }
}

/// Room for an image of each, two more of the largest, and for what is rounded up.
fn pool_bytes(subjects: &[Subject]) -> u64 {
    let sum: u64 = subjects.iter().map(|subject| subject.megabytes + 64).sum();
    let largest = subjects.iter().map(|subject| subject.megabytes).max().unwrap_or(0);
    (sum + 2 * largest + 512) << 20
}

fn start(
    subjects: Vec<Subject>,
    testbed: &Testbed,
    criu: &Result<Rc<criu::Program>, String>,
    notes: &mut Vec<String>,
) -> Result<Vec<Function>, BenchError> {
    let program = testbed.path("sleeper");
    sleeper::compile_to(&program)?;
    let mut functions = Vec::new();
    for subject in subjects {
        progress(&format!("starting {}, warming it, checkpointing it", subject.name));
        let mut lane = match Lane::start(subject, testbed, criu)? {
            Ok(lane) => lane,
            Err(note) => {
                notes.push(note);
                continue;
            }
        };
        starts::learn(&mut lane, testbed)?;
        let sleeper = Sleeper::start(&program, lane.subject.megabytes)?;
        functions.push(Function { lane, sleeper });
    }
    Ok(functions)
}
