//! Every program of the table in every flavour, each as a test `FLAVOUR::PROGRAM`.

use std::process::ExitCode;

use farfork_tests::driver::Tests;
use farfork_tests::{Flavour, Program, table, trial};

/// Why a program is not run like this.
fn missing(flavour: Flavour, program: &Program, rotation: Option<usize>) -> Option<String> {
    if rotation.is_some_and(|rotation| !program.is_in_short_run(flavour, rotation)) {
        return Some(format!(
            "{}: the short run has other flavours of the program (FARFORK_TEST_LONG=1 has all)",
            flavour.name()
        ));
    }
    trial::missing(flavour, program)
}

/// Which flavours the short run has; none is left out of the long one.
fn rotation() -> Option<usize> {
    let set = std::env::var("FARFORK_TEST_ROTATION").ok();
    let number = set.map_or(0, |text| text.parse().expect("FARFORK_TEST_ROTATION is a number"));
    (!farfork_tests::is_long()).then_some(number)
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let rotation = rotation();
    let (mut count, mut all) = (0, 0);
    let mut trials: Vec<(Flavour, &'static Program)> = table::all()
        .flat_map(|program| program.flavours().into_iter().map(move |flavour| (flavour, program)))
        .collect();
    // The longest begin first, so that none of them is left at the end, beside an idle processor.
    trials.sort_by_key(|(flavour, _)| *flavour != Flavour::Chain);
    for (flavour, program) in trials {
        let name = format!("{}::{}", flavour.name(), program.name);
        let missing = missing(flavour, program, rotation);
        (count, all) = (count + usize::from(missing.is_none()), all + 1);
        tests.add(name, missing, move || trial::run(flavour, program));
    }
    if let Some(rotation) = rotation {
        eprintln!(
            "{count} of {all} programs in flavours (FARFORK_TEST_ROTATION={rotation}); in ghosts most are \
             cloned by one policy. FARFORK_TEST_LONG=1 has all of them, by all policies."
        );
    }
    tests.run()
}
