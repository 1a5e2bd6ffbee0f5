//! What goes wrong, or on for long, one test each: the exit status and the words are those that users are
//! promised, and nothing half-made stays behind. Tests are named `MODULE::WHAT`.

mod agent;
mod checkpoint;
mod copies;
mod damage;
mod endurance;
mod frozen;
mod gateway;
mod ghosts;
mod hang;
mod killed;
mod limits;
mod making;
mod media;
mod mounts;
mod pages;
mod pauses;
mod platform;
mod promotion;
mod removal;
mod restore;
mod scene;
mod seeds;
mod share;
mod stage;
mod states;
mod steps;
mod tracer;
mod trial;
mod ways;

use std::process::{Command, ExitCode};

use farfork_tests::driver::{self, Tests};
use farfork_tests::way::Way;
use farfork_tests::{Outcome, Trouble};
use ways::Crossed;

/// A test of this program.
type Case = (&'static str, fn() -> Outcome);

const CASES: &[(&str, &[Case])] = &[
    ("agent", agent::CASES),
    ("checkpoint", checkpoint::CASES),
    ("copies", copies::CASES),
    ("damage", damage::CASES),
    ("endurance", endurance::CASES),
    ("frozen", frozen::CASES),
    ("gateway", gateway::CASES),
    ("ghosts", ghosts::CASES),
    ("pauses", pauses::CASES),
    ("hang", hang::CASES),
    ("killed", killed::CASES),
    ("limits", limits::CASES),
    ("making", making::CASES),
    (MEDIA, media::CASES),
    ("mounts", mounts::CASES),
    ("pages", pages::CASES),
    ("promotion", promotion::CASES),
    ("removal", removal::CASES),
    ("restore", restore::CASES),
    ("seeds", seeds::CASES),
    ("share", share::CASES),
    ("states", states::CASES),
    ("steps", steps::CASES),
    ("trial", trial::CASES),
];

/// What is crossed with policies and places.
const CROSSED: &[(&str, &[Crossed])] = &[
    ("making", making::CROSSED),
    ("pages", pages::CROSSED),
    ("restore", ways::CROSSED),
    ("steps", steps::CROSSED),
];

/// They ask for a medium that this machine may lack.
const MEDIA: &str = "media";

fn add_cases(tests: &mut Tests, missing: Option<&str>) {
    let all =
        CASES.iter().flat_map(|(module, cases)| cases.iter().map(move |case| (*module, *case)));
    for (module, (what, run)) in all {
        let unnamed = (module == MEDIA && !media::is_named())
            .then_some("no medium is named; tests/qemu/run.sh names some");
        let missing = missing.or(unnamed).map(str::to_owned);
        tests.add(format!("{module}::{what}"), missing, run);
    }
}

/// Every way of each test; those for which another stands run when there is time.
fn add_crossed(tests: &mut Tests, missing: Option<&str>) {
    let is_long = farfork_tests::is_long();
    let all = CROSSED.iter().flat_map(|(module, tests)| tests.iter().map(move |t| (module, t)));
    for (module, test) in all {
        for way in Way::all().filter(|way| (test.only)(*way)) {
            let covered = (!is_long && !(test.always)(way))
                .then_some("others stand for them; FARFORK_TEST_LONG=1 has them run");
            let name = format!("{module}::{}::{}", test.what, way.name());
            let (run, missing) = (test.run, missing.or(covered).map(str::to_owned));
            tests.add(name, missing, move || run(way));
        }
    }
}

fn main() -> ExitCode {
    let mut tests = Tests::begin();
    if let Some(status) = killed::act().or_else(seeds::act) {
        return status;
    }
    let missing = driver::without_clones();
    add_cases(&mut tests, missing.as_deref());
    add_crossed(&mut tests, missing.as_deref());
    tests.run()
}

/// This program once more, in another role.
fn again() -> Outcome<Command> {
    let own = std::env::current_exe().map_err(|error| Trouble::during("own path", error))?;
    Ok(Command::new(own))
}
