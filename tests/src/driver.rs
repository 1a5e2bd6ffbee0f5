//! What every test program's own `main` does around its tests.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::sync::locked;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{Outcome, Trouble, testbed};

/// Tests that found, as they ran, that they cannot be made here: their names, and why.
static SKIPPED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// How long tests took that took long, and their names.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());
const LONG: Duration = Duration::from_secs(2);

/// The tests of a program, and what some of them lack.
#[derive(Default)]
pub struct Tests {
    trials: Vec<Trial>,
    missing: BTreeMap<String, usize>,
}

impl Tests {
    /// None yet. To be called before anything else.
    pub fn begin() -> Tests {
        // What this program inherited must not become an external descriptor of the subjects.
        farfork_sys::inherited::close_on_exec_from(3).expect("Linux 5.11");
        Tests::default()
    }

    /// Adds a test; one that lacks something is counted as ignored.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        missing: Option<String>,
        run: impl FnOnce() -> Outcome + Send + 'static,
    ) {
        let name = name.into();
        let is_ignored = missing.is_some();
        if let Some(reason) = missing {
            *self.missing.entry(reason).or_default() += 1;
        }
        let shown = name.clone();
        let trial = Trial::test(name, move || {
            let begun = Instant::now();
            let outcome = run();
            finish(shown, begun.elapsed(), outcome)
        });
        self.trials.push(trial.with_ignored_flag(is_ignored));
    }

    /// Runs those that the command line asks for, and takes away what they shared.
    pub fn run(self) -> ExitCode {
        self.run_and(|| {})
    }

    /// The same, with something of the program's own to take away first.
    pub fn run_and(self, tear_down: impl FnOnce()) -> ExitCode {
        if nix::unistd::geteuid().is_root() {
            // Objects of System V that a killed program leaves go with this program.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWIPC)
                .expect("a namespace for objects");
        }
        for (reason, count) in self.missing {
            eprintln!("SKIPPED {count} tests: {reason}");
        }
        let mut arguments = Arguments::from_args();
        // Most tests wait: for a clock, a process to be killed, or a container.
        let processors = thread::available_parallelism().map_or(1, |count| count.get());
        arguments.test_threads.get_or_insert(2 * processors);
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        // Not before: other tests' lines are printed in pieces. setup/summary.py counts these.
        for (name, reason) in locked(&SKIPPED).iter() {
            println!("skipped: {reason} [{name}]");
        }
        for (took, name) in locked(&TIMES).iter() {
            println!("took: {:.1} s [{name}]", took.as_secs_f64());
        }
        tear_down();
        testbed::tear_down();
        conclusion.exit_code()
    }
}

/// The result of the test `name`. A skipped test passes, and is listed at the end.
fn finish(name: String, took: Duration, outcome: Outcome) -> Result<(), Failed> {
    if took >= LONG {
        locked(&TIMES).push((took, name.clone()));
    }
    match outcome {
        Ok(()) => Ok(()),
        Err(Trouble::Skipped(reason)) => {
            locked(&SKIPPED).push((name, reason));
            Ok(())
        }
        Err(Trouble::Failed(report)) => Err(Failed::from(report)),
    }
}

/// Why there can be no clones here, if so.
pub fn without_clones() -> Option<String> {
    match testbed::possible() {
        Err(Trouble::Skipped(reason)) => Some(reason),
        _ => None,
    }
}
