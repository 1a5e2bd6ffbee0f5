//! Far memory: nodes are network namespaces that are joined by one cable. One node serves the images of its
//! pool, clones start on the other.

mod answers;
mod bed;
mod failures;
mod machines;
mod tier;

use std::process::ExitCode;

use farfork_tests::driver::Tests;

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    answers::add(&mut tests);
    failures::add(&mut tests);
    machines::add(&mut tests);
    tier::add(&mut tests);
    tests.run()
}
