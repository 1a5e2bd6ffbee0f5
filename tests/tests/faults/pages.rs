//! Clones whose pages are supplied one by one, and those who are not there to do it.

use std::os::unix::process::ExitStatusExt;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail};

pub const CASES: &[Case] = &[
    ("are_supplied_without_an_agent", are_supplied_without_an_agent),
    ("end_with_their_init", end_with_their_init),
    ("are_waited_for_when_their_init_ends", are_waited_for_when_their_init_ends),
    ("are_not_supplied_for_a_checkpoint", are_not_supplied_for_a_checkpoint),
    ("need_a_known_policy", need_a_known_policy),
];

const SUPPLIED: [&str; 2] = ["moa", "hybrid"];

/// Most of its memory has not been touched when the agent dies.
fn are_supplied_without_an_agent() -> Outcome {
    for tiering in SUPPLIED {
        let (mut scene, mut parent) = stage()?;
        let mut clone = clone(&scene, &["--tiering", tiering, "--detach"])?;
        clone.finish()?; // by now its init knows that somebody knows of it
        scene.kill_agent();
        clone.send_byte();
        clone.await_line("PASS")?;
        parent.must_pass()?;
        scene.agent()?;
        scene.strike()?;
    }
    Ok(())
}

/// There is no clone without its page service.
fn end_with_their_init() -> Outcome {
    for tiering in SUPPLIED {
        let (scene, mut parent) = stage()?;
        let mut clone = clone(&scene, &["--tiering", tiering])?;
        kill(init_of_clone(&scene)?, Signal::SIGKILL).map_err(during("killing an init"))?;
        must_be_killed(&mut clone)?;
        parent.must_pass()?;
        scene.strike()?;
    }
    Ok(())
}

/// A clone that stands at a page, which nobody supplies any more.
fn are_waited_for_when_their_init_ends() -> Outcome {
    for tiering in SUPPLIED {
        let (scene, mut parent) = stage()?;
        declare_all_hot(&scene, &parent)?;
        let mut clone = clone(&scene, &["--tiering", tiering])?;
        let init = init_of_clone(&scene)?;
        kill(init, Signal::SIGSTOP).map_err(during("stopping an init"))?;
        clone.send_byte();
        let Some(pid) = children(init.as_raw() as u32).pop() else { return fail("no clone") };
        let sleeps_in =
            || std::fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        await_until("the clone waits for a page", || sleeps_in() == "handle_userfault")
            .map_err(|_| Trouble::Failed(format!("the clone is in '{}'", sleeps_in())))?;
        kill(init, Signal::SIGKILL).map_err(during("killing an init"))?;
        must_be_killed(&mut clone)?;
        parent.must_pass()?;
        scene.strike()?;
    }
    Ok(())
}

fn must_be_killed(clone: &mut Subject) -> Outcome {
    let status = clone.finish()?;
    let is_told = status.code() == Some(137) || status.signal() == Some(9);
    demand(is_told, format!("saw {status}\n{}", clone.transcript()))
}

/// The only one of the agent's children that has a child of its own.
fn init_of_clone(scene: &Scene) -> Outcome<Pid> {
    let all = children(scene.agent_pid()?);
    let found = all.into_iter().find(|pid| !children(*pid as u32).is_empty());
    found.map_or_else(
        || fail("no init among the children of the agent"),
        |pid| Ok(Pid::from_raw(pid)),
    )
}

/// What `hybrid` supplies.
fn declare_all_hot(scene: &Scene, parent: &Subject) -> Outcome {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", parent.pid()));
    let maps = maps.map_err(during("looking at the parent"))?;
    let ranges = maps.lines().filter_map(|line| line.split(' ').next());
    let set = |range| scene.works(&["hot", "set", "a/b", range]);
    // Not all of it is in the image.
    demand(ranges.map(set).filter(Outcome::is_ok).count() > 0, "nothing could be declared hot")
}

/// A clone's pages that nobody has touched are the image's to its own clones, too, and do not become
/// local by being looked at.
fn are_not_supplied_for_a_checkpoint() -> Outcome {
    for tiering in SUPPLIED {
        let (scene, mut parent) = stage()?;
        let mut first = clone(&scene, &["--tiering", tiering])?;
        let pid = first.after("    \"pid\": ").pop().unwrap_or_default();
        let pid = pid.trim_end_matches(',').to_owned();
        let before = own_kib(&pid)?;
        scene.works(&["checkpoint", "--pid", &pid, "--name", "a/c"])?;
        let after = own_kib(&pid)?;
        demand(after < before + 1024, format!("{before} KiB of its own became {after}"))?;
        scene.works(&["images", "rm", "a/b"])?;
        let mut command = scene.command(&["restore", "a/c", "--tiering", tiering])?;
        Subject::start("clone of the clone", &mut command, PATIENCE)?.must_pass()?;
        first.must_pass()?;
        parent.must_pass()?;
        scene.strike()?;
    }
    Ok(())
}

fn own_kib(pid: &str) -> Outcome<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(path).map_err(during("looking at a clone"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().map_err(during("its own memory"))
}

fn need_a_known_policy() -> Outcome {
    let (scene, mut parent) = stage()?;
    let output = farfork::run(scene.command(&["restore", "a/b", "--tiering", "warm"])?)?;
    let said = farfork::text(&output);
    let is_right = output.status.code() == Some(2) && said.contains("mow, moa, hybrid or copy");
    demand(is_right, format!("saw {}\n{said}", output.status))?;
    parent.must_pass()?;
    scene.strike()
}

fn stage() -> Outcome<(Scene, Subject)> {
    let mut scene = Scene::set(160)?;
    scene.agent()?;
    let parent = scene.subject("malloc_torture")?;
    scene.checkpoint(&parent, "a/b")?;
    Ok((scene, parent))
}

fn clone(scene: &Scene, more: &[&str]) -> Outcome<Subject> {
    let mut command = scene.command(&[&["restore", "a/b", "--json"], more].concat())?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.await_line("]")?;
    Ok(clone)
}
