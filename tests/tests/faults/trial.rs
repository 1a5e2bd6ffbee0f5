//! Images that are tried before they count: no process is lost for one that no clone can start from.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::process::Stdio;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::Case;
use crate::scene::{Scene, await_until, children, demand, during, failed_in_words};

pub const CASES: &[Case] = &[
    ("that_fails_leaves_all_as_it_was", that_fails),
    ("without_an_agent_kills_nothing", without_an_agent),
    ("whose_agent_is_killed_leaves_all_as_it_was", whose_agent_is_killed),
    ("that_is_left_out_kills", that_is_left_out),
    ("of_a_tree_leaves_nothing_behind", of_a_tree),
    ("lists_what_it_leaves_out", lists_what_it_leaves_out),
    ("leaves_files_alone", leaves_files_alone),
    ("lists_external_descriptors", lists_external_descriptors),
];

/// Number of the call `accept4`, as `/proc` shows it.
const ACCEPTING: &str = "288 ";
/// Number of the call `recvfrom`.
const RECEIVING: &str = "45 ";

const FAILED: [&str; 3] = ["goes on", "no image was made", "--no-verify"];

fn call<'a>(pid: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["checkpoint", "--name", "a/b", "--pid", pid], more].concat()
}

/// Demands that nothing of a trial is left on the node or in the pool.
fn is_clean(scene: &Scene) -> Outcome {
    demand(scene.works(&["ps", "--json"])? == "[]", "a clone is listed")?;
    await_until("the image is let go of", || scene.pins().is_ok_and(|pins| pins.is_empty()))?;
    scene.check()
}

/// Clones may not have descriptors with numbers as high as the parent's.
fn that_fails() -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent_with_files("64:64")?;
    let mut first = scene.subject("steady")?;
    let cid = scene.checkpoint(&first, "a/b")?;
    let mut subject = scene.subject("fd_high_numbers")?;
    let pid = subject.pid().to_string();
    let free = scene.free_bytes()?;
    for how in [&["--verify"][..], &["--kill"], &["--kill", "--json"]] {
        let words = [&FAILED[..], &["making a descriptor failed"]].concat();
        scene.fails(&call(&pid, how), 1, &words)?;
        demand(scene.works(&["images", "list", "--json"])?.contains(&cid), "the name has moved")?;
        demand(scene.free_bytes()? == free, "space is lost")?;
    }
    is_clean(&scene)?;
    subject.must_pass()?;
    first.must_pass()?;
    scene.strike()
}

fn without_an_agent() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    let mut command = scene.command(&call(&pid, &["--kill"]))?;
    // No agent listens there.
    command.env("FARFORK_RUN", "/dev/null/nowhere");
    failed_in_words("without an agent", &farfork::run(command)?, 1, &FAILED)?;
    demand(scene.works(&["images", "list"])?.is_empty(), "an image is listed")?;
    subject.must_pass()?;
    scene.check()?;
    scene.strike()
}

/// One that was stopped is killed when the checkpoint waits for it.
fn whose_agent_is_killed() -> Outcome {
    let mut scene = Scene::set(32)?;
    let agent = scene.agent()?;
    let mut subject = scene.subject("steady")?;
    let free = scene.free_bytes()?;
    // Until then it looks at the pool, with a lock for which the checkpoint would wait.
    let accepts = || {
        let threads = fs::read_dir(format!("/proc/{agent}/task")).into_iter().flatten().flatten();
        let mut calls = threads.map(|thread| fs::read_to_string(thread.path().join("syscall")));
        calls.any(|call| call.is_ok_and(|call| call.starts_with(ACCEPTING)))
    };
    await_until("the agent waits for requests", accepts)?;
    kill(Pid::from_raw(agent as i32), Signal::SIGSTOP).map_err(during("stopping the agent"))?;
    let mut command = scene.command(&call(&subject.pid().to_string(), &["--kill"]))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let checkpoint = command.spawn().map_err(during("starting a checkpoint"))?;
    // `timeout` has started it.
    let doing = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/syscall"));
    let receives = || {
        let mut all = children(checkpoint.id()).into_iter();
        all.any(|pid| doing(&pid).is_ok_and(|call| call.starts_with(RECEIVING)))
    };
    await_until("it waits for the agent's answer", receives)?;
    demand(scene.free_bytes()? < free, "there is no image yet")?;
    demand(scene.works(&["images", "list"])?.is_empty(), "it has its name already")?;
    scene.kill_agent();
    let output = checkpoint.wait_with_output().map_err(during("waiting"))?;
    failed_in_words("a checkpoint that lost its agent", &output, 1, &FAILED)?;
    demand(scene.free_bytes()? == free, "space is lost")?;
    subject.must_pass()?;
    scene.check()?;
    scene.strike()
}

fn that_is_left_out() -> Outcome {
    let mut scene = Scene::set(32)?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    let said = scene.works(&call(&pid, &["--kill", "--no-verify", "--json"]))?;
    demand(!said.contains("verify"), "a trial is reported")?;
    scene.fails(&call(&pid, &["--verify", "--no-verify"]), 2, &["cannot be used with"])?;
    subject.leave()?;
    scene.agent()?;
    scene.strike()
}

fn verified(scene: &Scene, subject: &Subject, more: &[&str]) -> Outcome<Value> {
    let pid = subject.pid().to_string();
    let said = scene.works(&call(&pid, &[&["--verify", "--json"], more].concat()))?;
    let said: Value = serde_json::from_str(&said).map_err(during("reading what it says"))?;
    demand(said["verify"]["ran"].as_u64() > Some(20), format!("too little ran: {said}"))?;
    demand(said["verify"]["us"].as_u64() > Some(0), format!("no time is reported: {said}"))?;
    Ok(said)
}

fn of_a_tree() -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let mut subject = scene.subject("tree_stopped")?;
    let said = verified(&scene, &subject, &["--tree"])?;
    demand(said["processes"].as_u64() > Some(1), format!("expected a tree: {said}"))?;
    is_clean(&scene)?;
    subject.must_pass()?;
    scene.strike()
}

/// The parent holds its locks all the while.
fn lists_what_it_leaves_out() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let mut subject = scene.subject_in_place("fd_locks")?;
    let said = verified(&scene, &subject, &[])?;
    let skipped = said["verify"]["skipped"].as_array().cloned().unwrap_or_default();
    let is_lock = |own: &Value| own["op"].as_str().is_some_and(|op| op.contains("lock"));
    let has_reason = |own: &Value| own["why"].as_str().is_some_and(|why| why.contains("parent"));
    let all = skipped.iter().all(|own| is_lock(own) && has_reason(own));
    demand(all && !skipped.is_empty(), format!("expected locks: {said}"))?;
    is_clean(&scene)?;
    subject.must_pass()?;
    scene.strike()
}

/// What lies in a directory, with inodes.
fn files_in(directory: &Path) -> Outcome<BTreeSet<(OsString, u64)>> {
    let entries = fs::read_dir(directory).map_err(during("listing a directory"))?;
    Ok(entries.flatten().map(|entry| (entry.file_name(), entry.ino())).collect())
}

/// Sockets stay the parent's, with their files.
fn leaves_files_alone() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let mut subject = scene.subject_in_place("unix_listening_external")?;
    let directory = scene.directory().join("unix_listening_external");
    let before = files_in(&directory)?;
    let said = verified(&scene, &subject, &[])?;
    let skipped = said["verify"]["skipped"].as_array().cloned().unwrap_or_default();
    let is_bind = |own: &Value| own["op"].as_str().is_some_and(|op| op.starts_with("bind"));
    demand(skipped.iter().any(is_bind), format!("expected a bind to a path: {said}"))?;
    demand(files_in(&directory)? == before, "files were made or removed")?;
    is_clean(&scene)?;
    subject.must_pass()?;
    scene.strike()
}

fn lists_external_descriptors() -> Outcome {
    let mut scene = Scene::set(32)?;
    scene.agent()?;
    let mut subject = scene.subject_in_place("fd_fifo_external")?;
    let said = verified(&scene, &subject, &["--kill"])?;
    let external = said["external"].as_array().cloned().unwrap_or_default();
    let is_it = |own: &Value| own["fd"] == 3 && own["what"].as_str() != Some("");
    demand(external.iter().any(is_it), format!("expected descriptor 3: {said}"))?;
    subject.leave()?;
    is_clean(&scene)?;
    scene.strike()
}
