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
mod mounts;
mod pages;
mod pauses;
mod promotion;
mod removal;
mod restore;
mod scene;
mod steps;
mod tracer;
mod ways;

use std::process::{Command, ExitCode};

use farfork_tests::way::Way;
use farfork_tests::{Outcome, Trouble, driver, testbed};
use libtest_mimic::Trial;
use ways::Crossed;

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
    ("mounts", mounts::CASES),
    ("pages", pages::CASES),
    ("promotion", promotion::CASES),
    ("removal", removal::CASES),
    ("restore", restore::CASES),
    ("steps", steps::CASES),
];

/// What is crossed with policies and places.
const CROSSED: &[(&str, &[Crossed])] = &[("pages", pages::CROSSED), ("restore", ways::CROSSED)];

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

/// Every way of each test; those for which another stands run when there is time.
fn crossed(reason: Option<&str>) -> Vec<Trial> {
    let is_long = std::env::var_os("FARFORK_TEST_LONG").is_some();
    let (mut trials, mut covered) = (Vec::new(), 0);
    let tests = CROSSED.iter().flat_map(|(module, tests)| tests.iter().map(move |t| (module, t)));
    for (module, test) in tests {
        for way in Way::all().filter(|way| (test.only)(*way)) {
            let name = format!("{module}::{}::{}", test.what, way.name());
            let (shown, run) = (name.clone(), test.run);
            let is_covered = !is_long && !(test.always)(way);
            covered += u32::from(is_covered);
            let trial = Trial::test(name, move || driver::finish(&shown, run(way)));
            trials.push(trial.with_ignored_flag(reason.is_some() || is_covered));
        }
    }
    if covered > 0 {
        eprintln!(
            "SKIPPED {covered} tests: others stand for them; FARFORK_TEST_LONG=1 has them run"
        );
    }
    trials
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
    let reason = missing.as_deref();
    driver::run(trials(reason).into_iter().chain(crossed(reason)).collect())
}

/// This program once more, in another role.
fn again() -> Outcome<Command> {
    let own = std::env::current_exe().map_err(|error| Trouble::during("own path", error))?;
    Ok(Command::new(own))
}
