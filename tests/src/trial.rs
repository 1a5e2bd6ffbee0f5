//! A program in a flavour: what one test does.

use crate::stage::Stage;
use crate::start::start;
use crate::{Flavour, Outcome, Program, Trouble, compile, farfork, testbed};

/// Why `program` cannot be run in `flavour` here, if it cannot.
pub fn missing(flavour: Flavour, program: &Program) -> Option<String> {
    let cloned = !matches!(flavour, Flavour::Plain | Flavour::Naive);
    let pool = if cloned { testbed::possible() } else { Ok(()) };
    let ghosts = if flavour.is_in_ghost() { farfork::ghosts_possible() } else { Ok(()) };
    match pool.and(ghosts).and_then(|()| compile::possible(program)) {
        Err(Trouble::Skipped(reason)) => Some(reason),
        _ => None,
    }
}

/// Runs `program` in `flavour`.
pub fn run(flavour: Flavour, program: &Program) -> Outcome {
    match flavour {
        Flavour::Plain => start(flavour, program)?.must_pass(),
        Flavour::Naive => naive(program),
        _ => {
            let mut stage = Stage::set(flavour, program)?;
            let outcome = stage.play();
            stage.strike(outcome)
        }
    }
}

fn naive(program: &Program) -> Outcome {
    let mut subject = start(Flavour::Naive, program)?;
    subject.send_byte();
    let status = subject.finish()?;
    if subject.said("PASS") {
        return subject
            .fail(&format!("expected anything but PASS on file-backed memory, {status}"));
    }
    Ok(())
}
