//! Ghosts whose clones are frozen: they notice nothing, and are killed, or go on, whichever process dies
//! meanwhile.

use std::fs;
use std::time::Duration;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during};

pub const CASES: &[Case] = &[
    ("goes_on_where_it_was", goes_on),
    ("is_killed", is_killed),
    ("is_killed_by_another_process", is_killed_by_another_process),
    ("loses_its_agent", loses_its_agent),
    ("is_not_there", is_not_there),
];

/// How often a process answers meanwhile that does not pause.
const ANSWERS: u32 = 20;

/// A parent, and its clone in a ghost that pauses before it has done anything.
fn stage() -> Outcome<(Scene, String, Subject, Subject)> {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let parent = scene.subject("steady")?;
    scene.checkpoint(&parent, "a/b")?;
    let ghost = scene.works(&["ghost", "start"])?;
    let mut command = scene.command(&["restore", "a/b", "--ghost", &ghost])?;
    let clone = Subject::start("clone", &mut command, PATIENCE)?;
    await_until("a clone runs in the ghost", || pid(&scene, &ghost).is_ok())?;
    scene.works(&["ghost", "pause", &ghost])?;
    demand(is_frozen(&ghost), "it does not pause")?;
    Ok((scene, ghost, parent, clone))
}

fn pid(scene: &Scene, ghost: &str) -> Outcome<i32> {
    let text = scene.works(&["ghost", "list", "--json"])?;
    let list: serde_json::Value = serde_json::from_str(&text).map_err(during("reading a list"))?;
    let found = list.as_array().and_then(|list| list.iter().find(|one| one["id"] == ghost));
    let pid = found.and_then(|found| found["pid"].as_i64());
    pid.map_or_else(|| crate::scene::fail("no clone runs in it"), |pid| Ok(pid as i32))
}

/// What the clone is asked it answers at once where it runs, as its parent does, which is asked after it.
fn says_nothing(clone: &mut Subject, parent: &mut Subject) -> Outcome {
    clone.send(b"v");
    for _ in 0..ANSWERS {
        parent.send(b"v");
        parent.await_line("OK")?;
    }
    clone.hear(Duration::ZERO);
    demand(!clone.said("OK"), "it has answered while it paused")
}

fn goes_on() -> Outcome {
    let (scene, ghost, mut parent, mut clone) = stage()?;
    says_nothing(&mut clone, &mut parent)?;
    scene.works(&["ghost", "resume", &ghost])?;
    clone.await_line("OK")?;
    clone.must_pass()?;
    parent.must_pass()?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn is_killed() -> Outcome {
    let (scene, ghost, _parent, mut clone) = stage()?;
    scene.works(&["ghost", "stop", &ghost])?;
    scene.has_no_ghost(&ghost)?;
    demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
    scene.strike()
}

/// Such a signal may wait until it goes on (cgroup v1), and is its end then.
fn is_killed_by_another_process() -> Outcome {
    let (scene, ghost, _parent, mut clone) = stage()?;
    let pid = pid(&scene, &ghost)?;
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(during("killing"))?;
    // It may be gone already.
    let _ = scene.works(&["ghost", "resume", &ghost]);
    scene.has_no_ghost(&ghost)?;
    demand(clone.finish()?.code() == Some(137), "expected the exit status of SIGKILL")?;
    scene.strike()
}

/// A frozen clone outlives its agent. Only the next agent can thaw it.
fn loses_its_agent() -> Outcome {
    let (mut scene, ghost, _parent, mut clone) = stage()?;
    let pid = pid(&scene, &ghost)?;
    scene.kill_agent();
    demand(!clone.finish()?.success(), "who has started it hears that the agent is gone")?;
    scene.agent()?;
    await_until("it goes on under an agent that knows nothing of it", || !is_frozen(&ghost))?;
    kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(during("killing"))?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}

fn is_frozen(ghost: &str) -> bool {
    let files = |name: &str| {
        let groups = farfork::cgroups(ghost).into_iter();
        groups.filter_map(|group| fs::read_to_string(group.join(name)).ok()).collect::<Vec<_>>()
    };
    let (state, freeze) = (files("freezer.state"), files("cgroup.freeze"));
    state.iter().any(|text| text.starts_with("FR")) || freeze.iter().any(|text| text.trim() == "1")
}

fn is_not_there() -> Outcome {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    scene.fails(
        &["ghost", "pause", "01234567"],
        1,
        &["no ghost on this node is named 01234567"],
    )?;
    let ghost = scene.works(&["ghost", "start"])?;
    scene.fails(&["ghost", "pause", &ghost], 1, &["no clone runs in ghost"])?;
    scene.works(&["ghost", "stop", &ghost])?;
    scene.strike()
}
