//! Every program of the table in every flavour, each as a test `FLAVOUR::PROGRAM`.

use std::process::ExitCode;

use farfork_tests::driver::Tests;
use farfork_tests::{Flavour, Program, table};

/// Why a program is not run like this.
fn missing(flavour: Flavour, program: &Program, is_long: bool) -> Option<String> {
    if !is_long && program.is_covered(flavour) {
        let covered =
            format!("{}: others cover it; FARFORK_TEST_LONG=1 has it run", flavour.name());
        return Some(covered);
    }
    flavour.missing(program)
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    let is_long = farfork_tests::is_long();
    if !is_long {
        eprintln!(
            "in ghosts most programs are cloned by one policy: FARFORK_TEST_LONG=1 has them cloned by all"
        );
    }
    for program in table::all() {
        for flavour in program.flavours() {
            let name = format!("{}::{}", flavour.name(), program.name);
            let missing = missing(flavour, program, is_long);
            tests.add(name, missing, move || flavour.run(program));
        }
    }
    tests.run()
}
