//! Clones with a page service, and page services that are dead or stopped.

use std::fs;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;

use farfork_tests::subject::Subject;
use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, Trouble, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::SeekFrom;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, demand, during};
use crate::ways::{Begun, Crossed, begin, ends_with_its_init, everywhere};

pub const CASES: &[Case] = &[
    ("end_with_their_init_in_their_parents_place", end_in_their_parents_place),
    ("need_a_known_policy", need_a_known_policy),
    ("come_from_mappings_without_holes", come_from_mappings_without_holes),
];

pub const CROSSED: &[Crossed] = &[
    Crossed {
        what: "are_supplied_without_an_agent",
        run: are_supplied_without_an_agent,
        only: is_supplied,
        always: |way| way.place != Place::EmptyGhost,
    },
    everywhere("end_with_their_init", ends_with_its_init, is_supplied),
    Crossed {
        what: "are_waited_for_when_their_init_ends",
        run: are_waited_for_when_their_init_ends,
        only: is_supplied,
        always: |_| true,
    },
    Crossed {
        what: "are_not_supplied_for_a_checkpoint",
        run: are_not_supplied_for_a_checkpoint,
        only: is_supplied,
        always: |way| way.place == Place::Scratch || way.is("hybrid", Place::AttachedGhost),
    },
];

/// By these, pages are supplied one by one.
fn is_supplied(way: Way) -> bool {
    SUPPLIED.contains(&way.tiering)
}

const SUPPLIED: [&str; 2] = ["moa", "hybrid"];

/// Most of its memory has not been touched when the agent dies.
fn are_supplied_without_an_agent(way: Way) -> Outcome {
    let (mut scene, mut parent) = stage()?;
    let Begun { mut clone, ghost, .. } = begin(&scene, "a/b", way, &["--detach"])?;
    clone.leave()?; // by now its init knows that the caller has its pid
    scene.kill_agent();
    clone.send_byte();
    clone.await_line("PASS")?;
    parent.must_pass()?;
    scene.agent()?;
    ghost.map_or(Ok(()), |ghost| scene.has_no_ghost(&ghost))?;
    scene.strike()
}

/// No PID namespace ends with the init there.
fn end_in_their_parents_place() -> Outcome {
    for tiering in SUPPLIED {
        let mut scene = Scene::set(160)?;
        scene.agent()?;
        let mut parent = scene.subject("malloc_torture")?;
        let pid = parent.pid().to_string();
        scene.works(&["checkpoint", "--kill", "--pid", &pid, "--name", "a/b"])?;
        parent.finish()?;
        let mut clone = clone(&scene, &["--tiering", tiering, "--pid-mode", "same"])?;
        let init = parent_of(pid_of(&clone)?)?;
        kill(init, Signal::SIGKILL).map_err(during("killing an init"))?;
        must_be_killed(&mut clone)?;
        scene.strike()?;
    }
    Ok(())
}

/// A clone that waits at a page, after its page service is gone.
fn are_waited_for_when_their_init_ends(way: Way) -> Outcome {
    let (scene, mut parent) = stage()?;
    scene.declare_all_hot(&parent, "a/b")?;
    let Begun { mut clone, pid, .. } = begin(&scene, "a/b", way, &[])?;
    let init = parent_of(pid)?;
    kill(init, Signal::SIGSTOP).map_err(during("stopping an init"))?;
    clone.send_byte();
    let waits = || sleeps_in(pid).iter().any(|place| place == "handle_userfault");
    await_until("the clone waits for a page", waits)
        .map_err(|_| Trouble::Failed(format!("the clone's threads are in {:?}", sleeps_in(pid))))?;
    kill(init, Signal::SIGKILL).map_err(during("killing an init"))?;
    must_be_killed(&mut clone)?;
    parent.must_pass()?;
    scene.strike()
}

/// Where in the kernel each thread of a process sleeps.
fn sleeps_in(pid: i32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("wchan")).ok()).collect()
}

/// A clone is killed with its init, and its caller gets the reason.
pub fn must_be_killed(clone: &mut Subject) -> Outcome {
    let status = clone.finish()?;
    let is_reported = status.code() == Some(137) || status.signal() == Some(9);
    let is_explained = clone.transcript().contains("its init was killed");
    demand(is_reported && is_explained, format!("saw {status}\n{}", clone.transcript()))
}

/// The init of a clone.
pub fn parent_of(pid: i32) -> Outcome<Pid> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(path).map_err(during("looking at a clone"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap_or_default();
    line.trim().parse().map(Pid::from_raw).map_err(during("finding a clone's init"))
}

/// Untouched pages of a clone are the image's for its own clones, too. A checkpoint does not make them
/// local.
fn are_not_supplied_for_a_checkpoint(way: Way) -> Outcome {
    let (scene, mut parent) = stage()?;
    let Begun { clone: mut first, pid, .. } = begin(&scene, "a/b", way, &[])?;
    let before = own_kib(pid)?;
    scene.works(&["checkpoint", "--pid", &pid.to_string(), "--name", "a/c"])?;
    let after = own_kib(pid)?;
    demand(after < before + 1024, format!("{before} KiB of its own became {after}"))?;
    scene.works(&["images", "rm", "a/b"])?;
    begin(&scene, "a/c", way, &[])?.clone.must_pass()?;
    first.must_pass()?;
    parent.must_pass()?;
    scene.strike()
}

fn own_kib(pid: i32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(path).map_err(during("looking at a clone"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().map_err(during("its own memory"))
}

/// The kernel makes huge pages of small ones that lie apart in one mapping (khugepaged), and fills the holes between them: images
/// would grow.
fn come_from_mappings_without_holes() -> Outcome {
    let mut scene = Scene::set(160)?;
    scene.agent()?;
    let mut parent = scene.subject("steady")?;
    let pid = parent.pid().to_string();
    scene.works(&["checkpoint", "--pid", &pid, "--name", "a/b"])?;
    for tiering in SUPPLIED {
        let mut clone = clone(&scene, &["--tiering", tiering])?;
        let pid = pid_of(&clone)?;
        for pid in [pid, parent_of(pid)?.as_raw()] {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
            let maps = maps.map_err(during("looking at mappings"))?;
            let of_image: Vec<_> = maps.lines().filter_map(mapping_of_image).collect();
            demand(!of_image.is_empty(), format!("no mapping of an image in {maps}"))?;
            for (path, range) in of_image {
                let file = fs::File::open(&path).map_err(during("opening an image"))?;
                let hole = rustix::fs::seek(&file, SeekFrom::Hole(range.start));
                let hole = hole.map_err(during("looking for a hole"))?;
                demand(hole >= range.end, format!("{range:#x?} has a hole at {hole:#x}: {maps}"))?;
            }
        }
        clone.send(b"v");
        clone.await_line("OK")?;
        clone.must_pass()?;
    }
    parent.send(b"v");
    parent.await_line("OK")?;
    parent.must_pass()?;
    scene.strike()
}

/// The file of an image, and which of its bytes a line of `/proc/PID/maps` shows.
fn mapping_of_image(line: &str) -> Option<(String, Range<u64>)> {
    let (range, rest) = line.split_once(' ')?;
    let path = rest.split_once('/').filter(|(_, path)| path.contains("/images/"))?.1;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let offset = number(rest.split_whitespace().nth(1)?)?;
    Some((format!("/{path}"), offset..offset + number(end)? - number(start)?))
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

/// A place with an image `a/b` of a program with much memory.
pub fn stage() -> Outcome<(Scene, Subject)> {
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

/// The pid in the output of `restore --json`.
pub fn pid_of(clone: &Subject) -> Outcome<i32> {
    let reported = clone.after("    \"pid\": ").pop().unwrap_or_default();
    reported.trim_end_matches(',').parse().map_err(during("finding a clone's pid"))
}
