//! File systems that are mounted while an agent runs.

use std::fs;
use std::path::Path;

use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, compile, farfork};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail};
use crate::{Case, ghosts};

pub const CASES: &[Case] = &[
    ("are_seen_by_clones_that_start_later", are_seen_by_clones_that_start_later),
    ("of_ghosts_have_no_template_replaced", of_ghosts_have_no_template_replaced),
];

/// The template of an agent, once it has mounts of its own: it sees none after that.
fn template(agent: u32) -> Outcome<i32> {
    let mounts = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let is_apart = |pid: &i32| {
        let (theirs, own) = (mounts(*pid), mounts(agent as i32));
        theirs.is_some() && own.is_some() && theirs != own
    };
    let found = || children(agent).into_iter().find(is_apart);
    await_until("the agent has its template", || found().is_some())?;
    found().map_or_else(|| fail("no template"), Ok)
}

/// A file system in memory. Dropped, it is unmounted.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn at(place: &Path) -> Outcome<Mounted<'_>> {
        let options = c"size=1M";
        mount("none", place, "tmpfs", MountFlags::empty(), options).map_err(during("mounting"))?;
        Ok(Mounted(place))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// Where it is mounted lies a file of the same name, with other bytes.
fn are_seen_by_clones_that_start_later() -> Outcome {
    let mut scene = Scene::set(32)?;
    let agent = scene.agent_among_mounts()?;
    template(agent)?;
    let place = scene.directory().join("place");
    fs::create_dir(&place)
        .and_then(|()| fs::write(place.join("regular"), [7; 10_000]))
        .map_err(during("making a file below a mount point"))?;
    let mounted = Mounted::at(&place)?;
    let mut command = compile::command(&Program::c("fd_regular"))?;
    let mut parent = Subject::start("parent", command.current_dir(&place), PATIENCE)?;
    parent.await_ready()?;
    scene.checkpoint(&parent, "a/b")?;
    for _ in 0..2 {
        let mut clone =
            Subject::start("clone", &mut scene.command(&["restore", "a/b"])?, PATIENCE)?;
        clone.must_pass()?;
    }
    parent.must_pass()?;
    drop(mounted);
    scene.strike()
}

fn of_ghosts_have_no_template_replaced() -> Outcome {
    farfork::ghosts_possible()?;
    let mut scene = Scene::set(32)?;
    // Here only the agent mounts anything.
    let agent = scene.agent()?;
    let first = template(agent)?;
    let mut parent = scene.subject("watcher")?;
    scene.checkpoint(&parent, "a/b")?;
    for more in [&[][..], &["--tmpfs", "/var/tmp"], &["--image", "a/b"]] {
        let ghost = ghosts::start(&scene, more)?;
        for inside in [&[][..], &["--ghost", &ghost]] {
            let call = [&["restore", "a/b"], inside].concat();
            Subject::start("clone", &mut scene.command(&call)?, PATIENCE)?.must_pass()?;
        }
        scene.has_no_ghost(&ghost)?;
        let is_there = children(agent).contains(&first);
        demand(is_there, format!("the template was replaced for a ghost with {more:?}"))?;
    }
    parent.must_pass()?;
    scene.strike()
}
