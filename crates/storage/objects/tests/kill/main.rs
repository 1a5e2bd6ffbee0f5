//! Clients are killed in the middle of their operations; everything is accounted for afterwards.
//!
//! A run forks a client that prepares an operation, executes it up to some instruction (by single steps) or up
//! to some store to shared memory, and is killed by SIGKILL. A living client works on before and after it
//! recovers the dead one. Then the owner of every object is checked, each message must be there exactly once
//! and in order, both mailboxes must work for new clients, and all free memory must be allocable once.
//!
//! Fast operations are killed at each instruction, all operations at each store. Of thousands of equal stores, and of the instructions
//! of structures, some are left out unless `FARFORK_TEST_LONG=1` is set; with it, there are more random kills, too.

mod child;
mod ends;
mod forked;
mod guards;
mod node;
mod objects;
mod operations;
mod platforms;
mod random;
mod stage;
mod structures;
mod watch;

use farfork::seeded::Fault;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::operations::{ALL, Dead, FAST, Kill, Operation, kill_everywhere};
use crate::platforms::{Counting, Faulty, FaultyCounting, Plain, seed};
use crate::stage::{Stage, place};
use crate::structures::Deed;

/// Of a client that died between the last two stores of a send.
const RECOVER: Operation = Operation::Recover { dead: Dead::Send, stores: 2 };

/// The end of names of tests of fast operations.
const AT_INSTRUCTIONS: &str = " survives a kill at each instruction";

fn is_long() -> bool {
    std::env::var_os("FARFORK_TEST_LONG").is_some()
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Forked children must have one thread.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for operation in FAST {
        let name = format!("{operation:?}{AT_INSTRUCTIONS}");
        trials.push(trial(name, move || at_instructions(operation)));
    }
    trials.push(trial("the same with protected metadata", || Ok(with_protection()?)));
    for deed in structures::FAST {
        let name = format!("{deed:?} of structures survives a kill at instructions");
        trials.push(trial(name, move || {
            // What lies between two stores cannot differ for others, and each store has its kill below.
            let stride = if is_long() { 1 } else { 7 };
            let kills = structures::kill_everywhere::<Plain>(deed, stride, Kill::Instruction)?;
            println!("{deed:?}: {kills} kills, at one of {stride} instructions");
            assert!(kills > 10, "it finished after {kills} kills");
            Ok(())
        }));
    }
    trials.push(trial("a guarded operation survives a kill at instructions", || {
        // Thousands, most of them of loops that are all alike.
        let stride = if is_long() { 1 } else { 101 };
        let kills = guards::kill_everywhere::<Plain>(guards::Deed::Pay, stride, Kill::Instruction)?;
        println!("{kills} kills, at one of {stride} instructions");
        assert!(kills > 10, "it finished after {kills} kills");
        Ok(())
    }));
    trials.push(found_in_guards(Fault::GuardCommitsFirst, guards::Deed::Pay));
    trials.push(found_in_guards(Fault::StepCountsFirst, guards::Deed::Pay));
    trials.push(found_in_guards(Fault::RecoveryForgetsGuard, guards::Deed::Pay));
    trials.push(found_in_guards(Fault::LoadIsNotRecorded, guards::Deed::Pay));
    trials.push(found_in_guards(Fault::GuardUnlocksFirst, guards::Deed::Meet));
    trials.push(trial("an overdue operation is ended", || Ok(guards::ends_overdue()?)));
    trials.push(trial("a child after fork becomes a client", || Ok(forked::becomes_a_client()?)));
    trials.push(trial("a child after fork waits for no thread of its parent", || {
        Ok(forked::waits_for_no_thread()?)
    }));
    trials.push(trial("children after fork keep no lock of their parent", || {
        Ok(forked::keeps_no_lock()?)
    }));
    trials.push(found_in(Fault::StoresBeforeIntent, Deed::Unlink));
    trials.push(found_in(Fault::IntentCommitsFirst, Deed::Unlink));
    trials.push(found_in(
        Fault::RecoveryForgetsIntent,
        Deed::Recover { dead: &Deed::Unlink, stores: 10 },
    ));
    trials.push(found_in(Fault::DyingIsFreedInList, Deed::Release));
    trials.push(found(Fault::SendCommitsBeforeSlot, Operation::Send, true));
    trials.push(found(Fault::SendMovesTailLast, Operation::Send, true));
    trials.push(found(Fault::ReceiveEmptiesSlotFirst, Operation::Receive, true));
    trials.push(found(Fault::RecoveryFreesBeforeSlots, RECOVER, false));
    trials.push(found(Fault::RecoveryFreesIdFirst, RECOVER, false));
    trials.push(found(Fault::RecoveryClearsMarksFirst, RECOVER, false));
    trials.push(found(Fault::ClaimMarksLast, Operation::ManyObjects, false));
    trials.push(found(Fault::ReceiveMarksLast, Operation::Receive, true));
    trials.push(found(Fault::RunCommitsFirst, Operation::AllocateRun, false));
    trials.push(found(Fault::FreeTakesRunLast, Operation::FreeRun, false));
    trials.push(found(Fault::ReleaseFreesFirstSpanFirst, Operation::FreeRun, false));
    trials.push(trial("a watcher recovers clients and may be killed", || Ok(watch::recovers()?)));
    trials
        .push(trial("clients that are out of memory are killed", || Ok(random::out_of_memory()?)));
    for way in ends::ALL {
        trials.push(trial(format!("clients that end by {way:?} leave nothing"), move || {
            Ok(ends::leave_nothing(way, if is_long() { 2000 } else { 40 })?)
        }));
    }
    trials.push(trial("a frozen client delays no other one", || Ok(ends::frozen()?)));
    for is_node_local in [false, true] {
        trials.extend(at_all_stores(is_node_local));
    }
    trials.extend(node_losses());
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test of regions with their metadata beside the objects.
fn trial(
    name: impl Into<String>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        place(false);
        test()
    })
}

/// Kills at stores, and at random, with metadata in either place.
fn at_all_stores(is_node_local: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let suffix = if is_node_local { ", metadata in node-local memory" } else { "" };
    let mut add = |name: String, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
        trials.push(Trial::test(name + suffix, move || {
            place(is_node_local);
            test()
        }));
    };
    for operation in ALL {
        let name = format!("{operation:?} survives a kill at each store");
        add(name, Box::new(move || at_stores(operation)));
    }
    for deed in structures::ALL {
        let name = format!("{deed:?} of structures survives a kill at each store");
        add(
            name,
            Box::new(move || {
                let kills = structures::kill_everywhere::<Counting>(deed, 1, Kill::Store)?;
                println!("{deed:?}: {kills} kills, one at each store");
                assert!(kills > 0, "it finished at once");
                Ok(())
            }),
        );
    }
    for deed in guards::ALL {
        let name = format!("{deed:?} of a guarded operation survives a kill at each store");
        add(
            name,
            Box::new(move || {
                let kills = guards::kill_everywhere::<Counting>(deed, 1, Kill::Store)?;
                println!("{deed:?}: {kills} kills, one at each store");
                assert!(kills > 0, "it finished at once");
                Ok(())
            }),
        );
    }
    let kills = if is_long() { 100_000 } else { 300 };
    let name = "random kills and stops with living peers".to_owned();
    add(name, Box::new(move || Ok(random::kills(kills)?)));
    trials
}

/// All clients die at once, and node-local metadata is lost.
fn node_losses() -> Vec<Trial> {
    let mut trials = Vec::new();
    for deed in node::ALL {
        trials.push(Trial::test(
            format!("{deed:?}: a node may be lost at each store"),
            move || {
                let stride = if deed == node::Deed::Many && !is_long() { 97 } else { 1 };
                let losses = node::lose_everywhere::<Counting>(deed, stride)?;
                println!("{deed:?}: {losses} losses, at one of {stride} stores");
                assert!(losses > 0, "it finished at once");
                Ok(())
            },
        ));
    }
    trials.push(Trial::test("metadata that was rebuilt replaces the lost", || {
        Ok(node::forgets_the_lost::<Plain>()?)
    }));
    trials.push(Trial::test("what a dead client left is not taken for a structure", || {
        let (kills, likely) = node::sends_leavings::<Counting>()?;
        println!("{kills} kills, {likely} of which left the beginning of a record");
        assert!(kills > 100 && likely > 10, "the memory was another client's");
        Ok(())
    }));
    let fault = Fault::SealsBeforeCommit;
    trials.push(Trial::test(format!("{fault:?} is found"), move || {
        seed(fault);
        let found = node::sends_leavings::<FaultyCounting>();
        println!("{found:?}");
        found.err().ok_or("it was not found")?;
        Ok(())
    }));
    let faults = [
        (Fault::RebuildInvalidatesLast, node::Deed::RebuildBesideMapped),
        (Fault::RebuildInvalidatesLast, node::Deed::RebuildBesideFile),
        (Fault::RebuildKeepsUnsent, node::Deed::Send),
        (Fault::RebuildKeepsSlots, node::Deed::Send),
        (Fault::RebuildKeepsCounts, node::Deed::Link),
        (Fault::RebuildPublishesFirst, node::Deed::Rebuild),
    ];
    for (fault, deed) in faults {
        trials.push(Trial::test(format!("{fault:?} is found by {deed:?}"), move || {
            seed(fault);
            let found = node::lose_everywhere::<FaultyCounting>(deed, 1);
            println!("at stores: {found:?}");
            found.err().ok_or("losses at stores did not find it")?;
            Ok(())
        }));
    }
    let fault = Fault::RebuildKeepsGeneration;
    trials.push(Trial::test(format!("{fault:?} is found"), move || {
        seed(fault);
        let found = node::forgets_the_lost::<Faulty>();
        println!("{found:?}");
        found.err().ok_or("it was not found")?;
        Ok(())
    }));
    trials
}

fn at_instructions(operation: Operation) -> Result<(), Failed> {
    let mut stage = Stage::new();
    let kills = kill_everywhere::<Plain>(&mut stage, operation, 1, Kill::Instruction)?;
    println!("{operation:?}: {kills} kills, one at each instruction");
    assert!(kills > 10, "{operation:?} finished after {kills} kills");
    Ok(())
}

/// Tests of fast operations in a process that protects metadata: two of them, or all.
fn with_protection() -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    let processors = std::fs::read_to_string("/proc/cpuinfo").map_err(words)?;
    if !processors.split_whitespace().any(|flag| flag == "ospke") {
        println!("skipped: the processor or the kernel has no protection keys");
        return Ok(());
    }
    let own = std::env::current_exe().map_err(words)?;
    let tried =
        FAST.iter().filter(|one| is_long() || matches!(one, Operation::Allocate | Operation::Send));
    for operation in tried {
        let mut command = std::process::Command::new(&own);
        command.args(["--exact", &format!("{operation:?}{AT_INSTRUCTIONS}")]);
        let output = command.env("FARFORK_PROTECTED", "1").output().map_err(words)?;
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        if !output.status.success() || !said.contains("1 passed; 0 failed") {
            return Err(format!("{output:?}"));
        }
    }
    Ok(())
}

fn at_stores(operation: Operation) -> Result<(), Failed> {
    // Thousands of objects: their stores are all alike.
    let is_sampled = operation == Operation::ManyObjects && !is_long();
    let stride = if is_sampled { 97 } else { 1 };
    let kills = kill_everywhere::<Counting>(&mut Stage::new(), operation, stride, Kill::Store)?;
    println!("{operation:?}: {kills} kills, at one of {stride} stores");
    assert!(kills > 0, "{operation:?} finished after {kills} kills");
    Ok(())
}

/// A seeded fault is found by kills at stores, and at instructions of a fast operation.
fn found(fault: Fault, operation: Operation, is_fast: bool) -> Trial {
    let name = format!("{fault:?} is found");
    trial(name, move || {
        seed(fault);
        let found = kill_everywhere::<FaultyCounting>(&mut Stage::new(), operation, 1, Kill::Store);
        println!("at stores: {found:?}");
        found.err().ok_or("kills at stores did not find it")?;
        if is_fast {
            let mut stage = Stage::new();
            let found = kill_everywhere::<Faulty>(&mut stage, operation, 1, Kill::Instruction);
            println!("at instructions: {found:?}");
            found.err().ok_or("kills at instructions did not find it")?;
        }
        Ok(())
    })
}

/// A seeded fault is found by kills of a client in a guarded operation.
fn found_in_guards(fault: Fault, deed: guards::Deed) -> Trial {
    let name = format!("{fault:?} is found");
    trial(name, move || {
        seed(fault);
        let found = guards::kill_everywhere::<FaultyCounting>(deed, 1, Kill::Store);
        println!("at stores: {found:?}");
        found.err().ok_or("kills at stores did not find it")?;
        Ok(())
    })
}

/// A seeded fault is found by kills of a client that changes structures.
fn found_in(fault: Fault, deed: Deed) -> Trial {
    let name = format!("{fault:?} is found");
    trial(name, move || {
        seed(fault);
        let found = structures::kill_everywhere::<FaultyCounting>(deed, 1, Kill::Store);
        println!("at stores: {found:?}");
        found.err().ok_or("kills at stores did not find it")?;
        Ok(())
    })
}
