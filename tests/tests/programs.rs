//! Every program of the table in every flavour, each as a test `FLAVOUR::PROGRAM`.

use farfork_tests::{Flavour, Outcome, Program, Trouble, table, testbed};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;

/// What cannot run here is shown as ignored, and the reasons once each.
fn trial(
    flavour: Flavour,
    program: &'static Program,
    reasons: &mut BTreeMap<String, usize>,
) -> Trial {
    let name = format!("{}::{}", flavour.name(), program.name);
    let missing = flavour.missing(program);
    let ignored = missing.is_some();
    if let Some(reason) = missing {
        *reasons.entry(reason).or_default() += 1;
    }
    let shown = name.clone();
    Trial::test(name, move || finish(&shown, flavour.run(program))).with_ignored_flag(ignored)
}

fn finish(name: &str, outcome: Outcome) -> Result<(), Failed> {
    match outcome {
        Ok(()) => Ok(()),
        Err(Trouble::Skipped(reason)) => {
            eprintln!("SKIPPED {name}: {reason}");
            Ok(())
        }
        Err(Trouble::Failed(report)) => Err(Failed::from(report)),
    }
}

fn main() {
    // What this program inherited must not become an external descriptor of the subjects.
    farfork_sys::inherited::close_on_exec_from(3).expect("Linux 5.11");
    let arguments = Arguments::from_args();
    let mut reasons = BTreeMap::new();
    let mut trials = Vec::new();
    for program in table::all() {
        for flavour in program.flavours() {
            trials.push(trial(flavour, program, &mut reasons));
        }
    }
    for (reason, count) in reasons {
        eprintln!("SKIPPED {count} tests: {reason}");
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    testbed::tear_down();
    conclusion.exit()
}
