//! What every test program's own `main` does around its tests.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{Outcome, Trouble, testbed};

/// To be called first.
pub fn begin() {
    // What this program inherited must not become an external descriptor of the subjects.
    farfork_sys::inherited::close_on_exec_from(3).expect("Linux 5.11");
}

/// What the test `name` ends with; one that cannot be made here says so and passes.
pub fn finish(name: &str, outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Ok(()) => Ok(()),
        Err(Trouble::Skipped(reason)) => {
            eprintln!("SKIPPED {name}: {reason}");
            Ok(())
        }
        Err(Trouble::Failed(report)) => Err(Failed::from(report)),
    }
}

/// Runs the tests that the command line asks for, and takes away what they shared.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    run_and(trials, || {})
}

/// The same, with something of the program's own to take away first.
pub fn run_and(trials: Vec<Trial>, tear_down: impl FnOnce()) -> ExitCode {
    if nix::unistd::geteuid().is_root() {
        // Objects of System V that a killed program leaves go with this program.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWIPC).expect("a namespace for objects");
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    tear_down();
    testbed::tear_down();
    conclusion.exit_code()
}
