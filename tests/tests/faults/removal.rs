//! Images that go while clones of them run.

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::Case;
use crate::pages::parent_of;
use crate::scene::{PATIENCE, Scene, await_until, demand, during};

pub const CASES: &[Case] = &[
    ("under_running_clones", under_running_clones),
    ("under_clones_without_an_agent", under_clones_without_an_agent),
];

fn clone(scene: &Scene, number: usize) -> Outcome<Subject> {
    let mut command = scene.command(&["restore", "a/b"])?;
    let mut clone = Subject::start(&format!("clone {number}"), &mut command, PATIENCE)?;
    clone.send(b"v");
    Ok(clone)
}

fn running(scene: &Scene) -> usize {
    scene.works(&["ps", "--json"]).map_or(0, |text| text.matches("\"pid\"").count())
}

/// How many descriptors of pin files the agent has.
fn pin_descriptors(agent: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{agent}/fd")).into_iter().flatten().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains(".pins/")).count()
}

/// Bytes of the pool that are taken, and those of them that no listed image has.
fn used(scene: &Scene) -> Outcome<(u64, u64)> {
    let said = scene.works(&["pool", "info", "--json"])?;
    let info: Value = serde_json::from_str(&said).map_err(during("reading pool info"))?;
    let number = |key: &str| info[key].as_u64().unwrap_or(u64::MAX);
    Ok((number("used_bytes"), number("unlisted_bytes")))
}

/// The memory comes back when the last clone has gone, and not before: other images that are
/// written all the while never show in a clone.
fn under_running_clones() -> Outcome {
    let mut scene = Scene::set(24)?;
    let free = scene.free_bytes()?;
    let agent = scene.agent()?;
    let mut parent = scene.subject("watcher")?;
    scene.checkpoint(&parent, "a/b")?;
    let held = free - scene.free_bytes()?;
    let (used_by_all, unlisted) = used(&scene)?;
    let mut clones = (0..3).map(|i| clone(&scene, i)).collect::<Outcome<Vec<_>>>()?;
    await_until("three clones run", || running(&scene) == 3)?;
    // One is the file itself.
    await_until("the agent has one lock for all three", || pin_descriptors(agent) == 2)?;
    scene.works(&["images", "rm", "a/b"])?;
    let (now, unlisted_now) = used(&scene)?;
    demand(now + (64 << 10) > used_by_all, format!("{now} of {used_by_all} bytes are used"))?;
    demand(unlisted_now >= unlisted + held, format!("{unlisted_now} bytes are unlisted"))?;
    scene.fails(&["restore", "a/b"], 1, &["there is no image a/b"])?;
    let mut other = scene.subject("steady")?;
    for round in 0..8 {
        // Up to the last chunk, and beyond.
        let pid = other.pid().to_string();
        for number in 0.. {
            let name = format!("x/n{number}");
            let mut call = scene.command(&["checkpoint", "--name", &name, "--pid", &pid])?;
            if !call.output().is_ok_and(|output| output.status.success()) {
                demand(number > 0, format!("round {round}: no image fits beside the removed one"))?;
                break;
            }
        }
        demand(free - scene.free_bytes()? >= held, "memory of running clones was given back")?;
        let listed = scene.works(&["images", "list"])?;
        for name in listed.split_whitespace().filter(|word| word.starts_with("x/")) {
            scene.works(&["images", "rm", name])?;
        }
    }
    for (number, clone) in clones.iter_mut().enumerate() {
        demand(free - scene.free_bytes()? == held, format!("clone {number}: space"))?;
        clone.must_pass()?;
    }
    parent.must_pass()?;
    other.must_pass()?;
    await_until("the space is back", || scene.free_bytes().is_ok_and(|now| now == free))?;
    await_until("pool info shows it", || {
        used(&scene)
            .is_ok_and(|(now, unlisted)| now + held < used_by_all + (64 << 10) && unlisted < held)
    })?;
    scene.check()?;
    let output = farfork::run(scene.command(&["images", "list"])?)?;
    demand(output.stdout.is_empty(), farfork::text(&output))?;
    scene.strike()
}

/// With the parent's pids, no PID namespace ends with a killed init. Without an agent, too, the clone then goes
/// on, and the memory that it maps is not given back.
fn under_clones_without_an_agent() -> Outcome {
    for tiering in ["mow", "moa", "hybrid"] {
        let mut scene = Scene::set(48)?;
        let free = scene.free_bytes()?;
        scene.agent()?;
        let mut parent = scene.subject("watcher")?;
        let pid = parent.pid().to_string();
        scene.works(&["checkpoint", "--kill", "--pid", &pid, "--name", "a/b"])?;
        parent.finish()?;
        let held = free - scene.free_bytes()?;
        let options = ["restore", "a/b", "--detach", "--pid-mode", "same", "--tiering", tiering];
        let mut clone = Subject::start("clone", &mut scene.command(&options)?, PATIENCE)?;
        clone.leave()?;
        let init = parent_of(pid.parse().map_err(during("reading a pid"))?)?;
        scene.kill_agent();
        kill(init, Signal::SIGKILL).map_err(during("killing an init"))?;
        let path = format!("/proc/{init}/exe");
        await_until("the init is gone", || std::fs::read_link(&path).is_err())?;
        // The next agent looks which images are still in use.
        scene.agent()?;
        scene.works(&["images", "rm", "a/b"])?;
        scene.check()?;
        demand(
            free - scene.free_bytes()? == held,
            format!("{tiering}: its memory was given back"),
        )?;
        clone.send_byte();
        clone.await_line("PASS")?;
        scene.kill_agent();
        scene.agent()?;
        scene.check()?;
        await_until("the space is back", || scene.free_bytes().is_ok_and(|now| now == free))?;
        scene.strike()?;
    }
    Ok(())
}
