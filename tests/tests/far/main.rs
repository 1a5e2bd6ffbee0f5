//! Far memory: nodes are network namespaces that are joined by one cable. One node serves the images of its
//! pool, clones start on the other.

mod answers;
mod bed;
mod exact;
mod failures;
mod holds;
mod machines;
mod shared_memory;
mod tier;
mod tls;

use std::process::ExitCode;

use farfork_tests::driver::Tests;

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    answers::add(&mut tests);
    exact::add(&mut tests);
    failures::add(&mut tests);
    holds::add(&mut tests);
    machines::add(&mut tests);
    shared_memory::add(&mut tests);
    tier::add(&mut tests);
    tls::add(&mut tests);
    tests.run()
}
