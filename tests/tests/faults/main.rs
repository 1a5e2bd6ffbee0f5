//! What goes wrong, or on for long, one test each: the exit status and the words are those that users are
//! promised, and nothing half-made stays behind. Tests are named `MODULE::WHAT`.

mod agent;
mod checkpoint;
mod copies;
mod endurance;
mod ghosts;
mod hang;
mod killed;
mod limits;
mod media;
mod pages;
mod pauses;
mod promotion;
mod removal;
mod restore;
mod scene;
mod steps;
mod tracer;

use std::process::{Command, ExitCode};

use farfork_tests::{Outcome, Trouble, driver, testbed};
use libtest_mimic::Trial;

/// A test of this program.
type Case = (&'static str, fn() -> Outcome);

const CASES: &[(&str, &[Case])] = &[
    ("agent", agent::CASES),
    ("checkpoint", checkpoint::CASES),
    ("copies", copies::CASES),
    ("endurance", endurance::CASES),
    ("ghosts", ghosts::CASES),
    ("pauses", pauses::CASES),
    ("hang", hang::CASES),
    ("killed", killed::CASES),
    ("limits", limits::CASES),
    (MEDIA, media::CASES),
    ("pages", pages::CASES),
    ("promotion", promotion::CASES),
    ("removal", removal::CASES),
    ("restore", restore::CASES),
    ("steps", steps::CASES),
];

/// They ask for a medium that this machine may lack.
const MEDIA: &str = "media";

fn trials(reason: Option<&str>) -> Vec<Trial> {
    let all =
        CASES.iter().flat_map(|(module, cases)| cases.iter().map(move |case| (*module, *case)));
    all.map(|(module, (what, run))| {
        let name = format!("{module}::{what}");
        let shown = name.clone();
        let is_missing = reason.is_some() || module == MEDIA && !media::is_named();
        Trial::test(name, move || driver::finish(&shown, run())).with_ignored_flag(is_missing)
    })
    .collect()
}

fn main() -> ExitCode {
    driver::begin();
    if let Some(status) = killed::act() {
        return status;
    }
    let missing = match testbed::possible() {
        Err(Trouble::Skipped(reason)) => Some(reason),
        _ => None,
    };
    if let Some(reason) = &missing {
        eprintln!("SKIPPED all tests: {reason}");
    }
    if !media::is_named() {
        eprintln!("SKIPPED tests of media: none is named; tests/qemu/run.sh does");
    }
    driver::run(trials(missing.as_deref()))
}

/// This program once more, in another role.
fn again() -> Outcome<Command> {
    let own = std::env::current_exe().map_err(|error| Trouble::during("own path", error))?;
    Ok(Command::new(own))
}
