//! Where pages lie, and ghosts, on the papers' functions: `farfork bench tiering`.
//!
//! ```text
//!  set up   every function: answers of a fresh process ─► start, warm, checkpoint ─► profile the image
//!  rounds   for each function: cold │ CRIU │ local fork │ clones: copied, on access, hybrid,
//!            by default │ in an empty ghost │ in a pre-attached ghost │ warm │ a bare wake-up
//!  rounds   for each function: container │ cold start in it
//!  once     for each function: which pages its calls touch
//!  herds    of the smallest function and program: by one thread │ by two │ by two from two
//!            pools │ in ghosts │ 10,000 clones from scratch │ 10,000 of the function in ghosts
//! ```
//! The invariants of all cases are in [`crate::cases`]. The calls of one round have the same input, and
//! different rounds have different inputs. Functions use one thread, because a fork has only one.

mod access;
mod container;
mod goals;
mod herd;
mod pages;
mod sleeper;
mod starts;

use std::rc::Rc;

use crate::cases::{Bench, Lane, clone, criu, fitting, rounds};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::{Subject, needed_root, pool_bytes};
use crate::testbed::Testbed;
use crate::{Options, progress};
use sleeper::Sleeper;

/// Numbers of repetitions.
struct Scale {
    rounds: usize,
    /// Different calls of each function.
    calls: u64,
    containers: usize,
    herd: herd::Scale,
}

/// One function that is being measured.
struct Function {
    lane: Lane,
    /// The bare wake-up that its ghosts are compared with.
    sleeper: Sleeper,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let scale = scale(options);
    let root = needed_root()?;
    let mut notes = Vec::new();
    let subjects = Subject::functions(&root, options, scale.calls, &herd::SUBJECTS)?;
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
    let herds = herd::measure(&root, &mut bench, options, &scale.herd, &mut notes)?;
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
        let herd = herd::Scale {
            rounds: 2,
            batch: 50,
            ghosts: 20,
            rounds_of_ghosts: 2,
            whole: 300,
            whole_in_ghosts: 60,
            batch_in_ghosts: 20,
            watched: 16,
        };
        Scale { rounds: 2, calls: 16, containers: 1, herd }
    } else {
        let herd = herd::Scale {
            rounds: 9,
            batch: 500,
            ghosts: 200,
            rounds_of_ghosts: 6,
            whole: 10_000,
            whole_in_ghosts: 10_000,
            batch_in_ghosts: 250,
            watched: 64,
        };
        Scale { rounds: 31, calls: 128, containers: 9, herd }
    }
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
        clone::learn(&mut lane, testbed)?;
        let sleeper = Sleeper::start(&program, lane.subject.megabytes)?;
        functions.push(Function { lane, sleeper });
    }
    Ok(functions)
}
