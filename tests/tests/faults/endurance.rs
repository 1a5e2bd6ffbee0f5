//! The same again and again: chains of clones of clones, and cycles of checkpoint and clone.

use std::time::Instant;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until};

pub const CASES: &[Case] = &[("of_a_chain", of_a_chain), ("of_cycles", of_cycles)];

/// Clones of clones, each made of the one before.
const CHAIN: usize = 20;

/// Cycles of checkpoint and clone; the long run has the number that users are promised.
fn cycles() -> usize {
    if std::env::var_os("FARFORK_TEST_LONG").is_some() { 1000 } else { 40 }
}

/// Starts a clone of `name` and waits until it runs; its pid here.
fn clone(scene: &Scene, name: &str, label: &str) -> Outcome<(Subject, String)> {
    let mut command = scene.command(&["restore", "--json", name])?;
    let mut clone = Subject::start(label, &mut command, PATIENCE)?;
    clone.await_line("]")?;
    let pid = clone.after("    \"pid\": ").pop().unwrap_or_default();
    Ok((clone, pid.trim_end_matches(',').to_owned()))
}

fn verify(subject: &mut Subject) -> Outcome {
    subject.send(b"v");
    subject.await_line("OK")
}

/// Every generation is right, and goes on when the one before it has ended and its image is gone.
fn of_a_chain() -> Outcome {
    let mut scene = Scene::set(48)?;
    let free = scene.free_bytes()?;
    scene.agent()?;
    let mut last = scene.subject("steady")?;
    let mut pid = last.pid().to_string();
    for generation in 1..=CHAIN {
        scene.works(&["checkpoint", "--pid", &pid, "--name", "a/b"])?;
        let (mut child, child_pid) = clone(&scene, "a/b", &format!("generation {generation}"))?;
        verify(&mut child)?;
        verify(&mut last)?;
        last.must_pass()?;
        (last, pid) = (child, child_pid);
    }
    last.must_pass()?;
    scene.works(&["images", "rm", "a/b"])?;
    await_until("the space is back", || scene.free_bytes().is_ok_and(|now| now == free))?;
    scene.check()?;
    scene.strike()
}

/// The parent goes on all the while, every clone verifies itself, and no space is lost.
fn of_cycles() -> Outcome {
    let mut scene = Scene::set(48)?;
    let free = scene.free_bytes()?;
    scene.agent()?;
    let mut parent = scene.subject("steady")?;
    let begun = Instant::now();
    for cycle in 0..cycles() {
        scene.checkpoint(&parent, "a/b")?;
        let (mut child, _) = clone(&scene, "a/b", &format!("clone of cycle {cycle}"))?;
        verify(&mut child)?;
        verify(&mut parent)?;
        child.must_pass()?;
        scene.works(&["images", "rm", "a/b"])?;
        await_until("the space is back", || scene.free_bytes().is_ok_and(|now| now == free))?;
    }
    println!("{} cycles in {:?}", cycles(), begun.elapsed());
    parent.must_pass()?;
    scene.check()?;
    scene.strike()
}
