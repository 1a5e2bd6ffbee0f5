//! Clones that map a copy of their image in this machine's memory, by which all policies work on every
//! medium. `FARFORK_COPY_IMAGES=true` has all other tests start their clones like that.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use farfork_sys::cgroup::OwnGroup;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble};
use serde_json::Value;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during, fail};

pub const CASES: &[Case] = &[
    ("are_what_clones_map", are_what_clones_map),
    ("outlive_their_agent", outlive_their_agent),
    ("are_made_once", are_made_once),
    ("are_refused_where_there_is_no_room", are_refused_without_room),
    ("go_when_they_are_unused", go_when_they_are_unused),
];

/// A clone that has verified part of itself, and goes on; and its pid.
fn clone(scene: &Scene, image: &str, more: &[&str]) -> Outcome<(Subject, u32)> {
    let before = pids(scene)?;
    let mut command = scene.command(&[&["restore", image], more].concat())?;
    let clone = Subject::start("clone", &mut command, PATIENCE)?;
    let mut pid = None;
    await_until("a clone runs", || {
        let now = pids(scene).unwrap_or_default();
        pid = now.into_iter().find(|pid| !before.contains(pid));
        pid.is_some()
    })?;
    pid.map_or_else(|| fail("no clone"), |pid| Ok((clone, pid)))
}

fn pids(scene: &Scene) -> Outcome<Vec<u32>> {
    let list: Value =
        serde_json::from_str(&scene.works(&["ps", "--json"])?).map_err(during("reading a list"))?;
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(all.iter().filter_map(|clone| clone["pid"].as_u64()).map(|pid| pid as u32).collect())
}

/// How many mappings of a process are of images in the pool, and of copies of such.
fn mapped(scene: &Scene, pid: u32) -> Outcome<(usize, usize)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(during("reading maps"))?;
    let count = |what: &str| maps.lines().filter(|line| line.contains(what)).count();
    let images = format!("{}/images/", scene.pool_path().display());
    Ok((count(&format!(" {images}")), count("/memfd:farfork:")))
}

/// Inodes of the copies that a process has open.
fn open_copies(pid: u32) -> Vec<u64> {
    use std::os::unix::fs::MetadataExt;
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_copy = |path: &Path| {
        let target = fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:farfork:")
    };
    let copies = fds.map(|fd| fd.path()).filter(|path| is_copy(path));
    copies.filter_map(|path| Some(fs::metadata(path).ok()?.ino())).collect()
}

fn image_bytes(scene: &Scene, image: &str) -> Outcome<u64> {
    let shown = scene.works(&["images", "show", "--json", image])?;
    let shown: Value = serde_json::from_str(&shown).map_err(during("reading an image"))?;
    shown["pool_bytes"].as_u64().map_or_else(|| fail(format!("no bytes in {shown}")), Ok)
}

/// Under every policy; and a checkpoint of such a clone takes it for a clone.
fn are_what_clones_map() -> Outcome {
    let mut scene = Scene::set(128)?;
    scene.agent_that_copies()?;
    let mut parent = scene.subject("mprotect_patterns")?;
    scene.checkpoint(&parent, "a/b")?;
    for tiering in ["mow", "moa", "hybrid", "copy"] {
        let (mut clone, pid) = clone(&scene, "a/b", &["--tiering", tiering])?;
        let (pool, copies) = mapped(&scene, pid)?;
        demand(pool == 0 && copies > 5, format!("{tiering}: {pool} of the pool, {copies} not"))?;
        clone.must_pass()?;
    }
    let (mut first, pid) = clone(&scene, "a/b", &[])?;
    scene.works(&["checkpoint", "--pid", &pid.to_string(), "--name", "a/c"])?;
    let bytes = [image_bytes(&scene, "a/b")?, image_bytes(&scene, "a/c")?];
    demand(bytes[1] <= bytes[0] + (4 << 20), format!("a clone has more to carry: {bytes:?}"))?;
    let (mut second, _) = clone(&scene, "a/c", &[])?;
    for subject in [&mut second, &mut first, &mut parent] {
        subject.must_pass()?;
    }
    scene.check()?;
    scene.strike()
}

/// A clone goes on when its agent is killed, and can be checkpointed beside another that copies anew.
fn outlive_their_agent() -> Outcome {
    let mut scene = Scene::set(128)?;
    scene.agent_that_copies()?;
    let mut parent = scene.subject("mprotect_patterns")?;
    scene.checkpoint(&parent, "a/b")?;
    let (mut first, pid) = clone(&scene, "a/b", &["--tiering", "hybrid"])?;
    scene.kill_agent();
    scene.agent_that_copies()?;
    scene.works(&["checkpoint", "--pid", &pid.to_string(), "--name", "a/c"])?;
    let (mut second, _) = clone(&scene, "a/c", &[])?;
    first.send_byte();
    first.finish()?;
    demand(first.said("PASS"), "the first clone did not pass")?; // its status went with the agent
    second.must_pass()?;
    parent.must_pass()?;
    scene.strike()
}

/// Clones of one image that are asked for at the same time have one copy.
fn are_made_once() -> Outcome {
    let mut scene = Scene::set(64)?;
    let agent = scene.agent_that_copies()?;
    let mut parent = scene.subject("steady")?;
    scene.checkpoint(&parent, "a/b")?;
    let restore = || Subject::start("clone", &mut scene.command(&["restore", "a/b"])?, PATIENCE);
    let mut clones = (0..8).map(|_| restore()).collect::<Outcome<Vec<Subject>>>()?;
    await_until("eight clones run", || pids(&scene).is_ok_and(|all| all.len() == 8))?;
    let copies = open_copies(agent);
    demand(copies.len() == 1, format!("copies in the agent: {copies:?}"))?;
    clones.iter_mut().try_for_each(Subject::must_pass)?;
    parent.must_pass()?;
    scene.strike()
}

/// The kernel would kill the agent.
fn are_refused_without_room() -> Outcome {
    let group = format!("farfork-copies-{}", std::process::id());
    let group = OwnGroup::make(&group).map_err(during("making a cgroup"))?;
    let mut scene = Scene::set(64)?;
    let agent = scene.agent_that_copies()?;
    let parent = scene.subject("steady")?;
    scene.checkpoint(&parent, "a/b")?;
    fs::write(group.procs_file(), agent.to_string()).map_err(during("moving the agent"))?;
    let limit = |bytes| group.limit(bytes).map_err(during("limiting memory"));
    limit(image_bytes(&scene, "a/b")? + (2 << 20))?;
    let words = ["copied into this node's memory", "raise the limit"];
    scene.fails(&["restore", "a/b"], 1, &words)?;
    limit(512 << 20)?;
    let (mut clone, _) = clone(&scene, "a/b", &[])?;
    clone.must_pass()?;
    scene.strike()
}

/// A minute after the last clone, the memory is free again.
fn go_when_they_are_unused() -> Outcome {
    if !farfork_tests::is_long() {
        return Err(Trouble::Skipped("it takes a minute: FARFORK_TEST_LONG=1 runs it".into()));
    }
    let mut scene = Scene::set(64)?;
    let agent = scene.agent_that_copies()?;
    let parent = scene.subject("steady")?;
    scene.checkpoint(&parent, "a/b")?;
    let (mut first, _) = clone(&scene, "a/b", &[])?;
    let before = open_copies(agent);
    thread::sleep(Duration::from_secs(70));
    let now = open_copies(agent);
    demand(now == before && now.len() == 1, format!("a clone's copy: {before:?}, {now:?}"))?;
    first.must_pass()?;
    await_until("the copy is gone", || open_copies(agent).is_empty())?;
    let (mut second, _) = clone(&scene, "a/b", &[])?;
    demand(open_copies(agent).len() == 1, "there is no copy for the second clone")?;
    second.must_pass()?;
    scene.strike()
}
