//! Every program of the table in every flavour, each as a test `FLAVOUR::PROGRAM`.

use farfork_tests::{Flavour, Program, driver, table};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// What cannot run here is shown as ignored, and the reasons once each.
fn trial(
    flavour: Flavour,
    program: &'static Program,
    is_long: bool,
    reasons: &mut BTreeMap<String, usize>,
) -> Trial {
    let name = format!("{}::{}", flavour.name(), program.name);
    let covered = !is_long && program.is_covered(flavour);
    let missing = match covered {
        true => {
            Some(format!("{}: others cover it; FARFORK_TEST_LONG=1 has it run", flavour.name()))
        }
        false => flavour.missing(program),
    };
    let ignored = missing.is_some();
    if let Some(reason) = missing {
        *reasons.entry(reason).or_default() += 1;
    }
    let shown = name.clone();
    Trial::test(name, move || driver::finish(&shown, flavour.run(program)))
        .with_ignored_flag(ignored)
}

fn main() -> ExitCode {
    driver::begin();
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let mut reasons = BTreeMap::new();
    let mut trials = Vec::new();
    for program in table::all() {
        for flavour in program.flavours() {
            trials.push(trial(flavour, program, is_long, &mut reasons));
        }
    }
    for (reason, count) in reasons {
        eprintln!("SKIPPED {count} tests: {reason}");
    }
    driver::run(trials)
}
