//! The same again and again: chains of clones of clones, and cycles of checkpoint and clone, each by the
//! next policy and in the next place.

use std::time::Instant;

use farfork_tests::subject::Subject;
use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, farfork, is_long};

use crate::Case;
use crate::scene::{Scene, await_until};
use crate::ways::begin;

pub const CASES: &[Case] = &[("of_a_chain", of_a_chain), ("of_cycles", of_cycles)];

/// Clones of clones, each made of the one before.
const CHAIN: usize = 20;

/// Cycles of checkpoint and clone; the long run has the number that users are promised.
fn cycles() -> usize {
    if is_long() { 1000 } else { 40 }
}

/// Every policy in every place, again and again; ghosts, each of which has to be made, if there are to be any.
fn ways(has_ghosts: bool) -> impl Iterator<Item = Way> {
    let has_ghosts = has_ghosts && farfork::ghosts_possible().is_ok();
    let ways: Vec<Way> =
        Way::all().filter(|way| has_ghosts || way.place == Place::Scratch).collect();
    ways.into_iter().cycle()
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
    for way in ways(true).take(CHAIN) {
        scene.works(&["checkpoint", "--pid", &pid, "--name", "a/b"])?;
        let mut child = begin(&scene, "a/b", way, &[])?;
        verify(&mut child.clone)?;
        verify(&mut last)?;
        last.must_pass()?;
        (last, pid) = (child.clone, child.pid.to_string());
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
    for way in ways(is_long()).take(cycles()) {
        scene.checkpoint(&parent, "a/b")?;
        let mut child = begin(&scene, "a/b", way, &[])?;
        verify(&mut child.clone)?;
        verify(&mut parent)?;
        child.clone.must_pass()?;
        child.is_gone(&scene)?;
        scene.works(&["images", "rm", "a/b"])?;
        await_until("the space is back", || scene.free_bytes().is_ok_and(|now| now == free))?;
    }
    println!("{} cycles in {:?}", cycles(), begun.elapsed());
    parent.must_pass()?;
    scene.check()?;
    scene.strike()
}
