//! Nodes on one host read through shared memory. What fails there ends as over a network.

use farfork_tests::Outcome;
use farfork_tests::driver::Tests;
use farfork_tests::nodes::{demand, missing};
use farfork_tests::program::Program;
use nix::sys::signal::Signal;

use crate::bed::Bed;
use crate::failures::must_end;

/// Adds the tests.
pub fn add(tests: &mut Tests) {
    tests.add("far::shm_answers", missing(), answers);
    tests.add("far::shm_server_killed", missing(), server_killed);
    tests.add("far::shm_server_stopped", missing(), server_stopped);
}

/// The connection of the first image is of this kind.
pub fn must_use(bed: &Bed, transport: &str) -> Outcome {
    let status = bed.status()?;
    demand(status["images"][0]["transport"] == transport, "the transport", &status)
}

/// All bytes are right, on demand and prefetched. The cable does not matter any more.
fn answers() -> Outcome {
    let mut bed = Bed::set("shm")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve_with(&[])?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    must_use(&bed, "shm")?;
    bed.cut()?;
    clone.send_byte();
    bed.must_pass(pid)?;
    bed.clone(&image, &[])?.must_pass()
}

/// A server that starts anew without shared memory is read by TCP.
fn server_killed() -> Outcome {
    let mut bed = Bed::hasty("shm-killed")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve_with(&[])?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    must_use(&bed, "shm")?;
    bed.signal_server(Signal::SIGKILL)?;
    must_end(&bed, clone, pid, &["Connection refused", "broke"])?;
    bed.serve()?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()?;
    must_use(&bed, "tcp")
}

fn server_stopped() -> Outcome {
    let mut bed = Bed::hasty("shm-stopped")?;
    let image = bed.image(&Program::c("far_pages"))?;
    bed.serve_with(&[])?;
    let (mut clone, pid) = bed.detached(&image, &["--no-prefetch"])?;
    clone.send(b"t");
    clone.await_line("NOTE touched 1")?;
    must_use(&bed, "shm")?;
    bed.signal_server(Signal::SIGSTOP)?;
    must_end(&bed, clone, pid, &["did not answer within the deadline"])?;
    bed.signal_server(Signal::SIGCONT)?;
    bed.clone(&image, &["--no-prefetch"])?.must_pass()
}
