//! Schedules of clients on simulated memory: what takes turns is each access to memory, and stores become visible late, as on
//! x86-64. Random schedules and those by priorities (PCT: Burckhardt et al., ASPLOS 2010), by shuttle. With
//! `FARFORK_TEST_LONG=1` thirty times as many.

mod machine;
mod mailboxes;
mod structures;
mod world;

use farfork::seeded::Fault;
use world::{Stage, World};

type Scenario = fn(&Stage) -> Result<(), String>;

/// What is played, and in how many schedules.
const SCENARIOS: [(&str, Scenario, usize); 8] = [
    ("exchange", mailboxes::exchange, 60),
    ("recovery", mailboxes::recovery, 160),
    ("waiting", mailboxes::waiting, 100),
    ("changes", structures::changes, 100),
    ("sending", structures::sending, 60),
    ("releases", structures::releases, 60),
    ("sharing", structures::sharing, 40),
    ("recovery of structures", structures::recovery, 60),
];

/// Faults that schedules must show, and where. Only late stores show the last two.
const FOUND: [(Fault, Scenario); 13] = [
    (Fault::SendCommitsBeforeSlot, mailboxes::recovery),
    (Fault::SendMovesTailLast, mailboxes::recovery),
    (Fault::ReceiveEmptiesSlotFirst, mailboxes::recovery),
    (Fault::RecoveryFreesBeforeSlots, mailboxes::recovery),
    (Fault::RecoveryFreesIdFirst, mailboxes::recovery),
    (Fault::StoresBeforeIntent, structures::changes),
    (Fault::IntentCommitsFirst, structures::changes),
    (Fault::RecoveryForgetsIntent, structures::changes),
    (Fault::DyingIsFreedInList, structures::changes),
    (Fault::SkipsLastPlace, structures::sending),
    (Fault::WakesBeforeCommit, mailboxes::waiting),
    (Fault::SleepIsNotOrdered, mailboxes::waiting),
    (Fault::HoldEndsByStore, structures::releases),
];

/// Schedules in which a seeded fault must show.
const TO_FIND: usize = 4000;

fn times() -> usize {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 30 } else { 1 }
}

#[test]
fn no_schedule_breaks_a_region() {
    let world = World::new();
    for (name, scenario, schedules) in SCENARIOS {
        for seed in 0..times() as u64 {
            if let Err(failure) = world.explore(None, seed, schedules, scenario) {
                panic!("{name}, seed {seed}: {failure}");
            }
        }
    }
}

#[test]
fn seeded_faults_are_found() {
    let world = World::new();
    for (fault, scenario) in FOUND {
        let found = world.explore(Some(fault), 0, TO_FIND, scenario);
        println!("{fault:?}: {found:?}");
        assert!(found.is_err(), "{fault:?} was not found");
    }
}
