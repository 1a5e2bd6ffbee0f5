//! A checkpointer that is killed: at every step of its work, and at any moment. The process that
//! it held goes on as if nothing had happened.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use farfork_checkpoint::{CheckpointOptions, Disposition, Target};
use farfork_pool::{Pool, failpoint};
use farfork_sys::freezer::Freezer;
use farfork_sys::proc;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork, testbed};
use nix::sys::signal::{Signal, kill, killpg, raise};
use nix::unistd::Pid;

use crate::scene::{Scene, await_until, demand, during};
use crate::stage::{steps, stride};
use crate::{Case, again};

pub const CASES: &[Case] = &[
    ("at_every_step", at_every_step),
    ("at_any_moment", at_any_moment),
    ("while_it_kills_a_tree", while_it_kills_a_tree),
];

/// Checkpoints in the name of another test, if this process was started for that.
pub fn act() -> Option<ExitCode> {
    let pid = std::env::var("FARFORK_CHECKPOINT_PID").ok()?.parse().ok()?;
    let pool = PathBuf::from(std::env::var_os("FARFORK_POOL")?);
    let pool = Pool::open(&pool).ok()?;
    if std::env::var_os("FARFORK_CHECKPOINT_ENDS").is_some() {
        return Some(end_tree(&pool, pid));
    }
    failpoint::arm();
    if let Some((step, event)) = event(pid) {
        failpoint::happen_after(step, Some(event));
    }
    let target = Target::Process(pid);
    let options = CheckpointOptions::default();
    let made = farfork_checkpoint::checkpoint(&pool, None, target, options, &mut |_, _| {});
    let is_left = failpoint::happen_after(0, None);
    Some(match made {
        Ok(_) if is_left => ExitCode::from(TOO_FEW_STEPS),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

/// Checkpoints a tree and ends it. Steps count from there.
fn end_tree(pool: &Pool, pid: i32) -> ExitCode {
    let options = CheckpointOptions { disposition: Disposition::Kill, ..Default::default() };
    let made =
        farfork_checkpoint::checkpoint(pool, None, Target::Tree(pid), options, &mut |_, _| {});
    failpoint::arm();
    match made.and_then(|made| made.settle()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What is to happen at a step, and at which: `STEP:freeze:CGROUP`, `STEP:signal:NUMBER` (to the subject),
/// `STEP:stop:` (the checkpointer itself).
fn event(pid: i32) -> Option<(u64, Box<dyn FnOnce()>)> {
    let text = std::env::var("FARFORK_EVENT_AT_STEP").ok()?;
    let (step, rest) = text.split_once(':')?;
    let (kind, what) = rest.split_once(':')?;
    let (kind, what) = (kind.to_owned(), what.to_owned());
    let event = move || match kind.as_str() {
        "freeze" => {
            let freezer = Freezer::among(&[PathBuf::from(what)]).expect("the group freezes");
            freezer.freeze().expect("freezing");
        }
        "signal" => {
            let signal = what.parse::<i32>().ok().and_then(|number| number.try_into().ok());
            let _ = kill(Pid::from_raw(pid), signal.unwrap_or(Signal::SIGCONT));
        }
        _ => drop(raise(Signal::SIGSTOP)),
    };
    Some((step.parse().ok()?, Box::new(event)))
}

/// The exit status if the checkpoint was made before the event could happen.
pub const TOO_FEW_STEPS: u8 = 3;

/// A checkpointer that is killed at `step`, if it is, and for which `event` happens.
pub fn checkpointer(
    scene: &Scene,
    subject: &Subject,
    step: Option<u64>,
    event: Option<&str>,
) -> Outcome<Child> {
    let mut command = call(scene, subject.pid() as i32, step)?;
    if let Some(event) = event {
        command.env("FARFORK_EVENT_AT_STEP", event);
    }
    command.spawn().map_err(during("starting a checkpointer"))
}

fn call(scene: &Scene, pid: i32, step: Option<u64>) -> Outcome<Command> {
    let mut command = again()?;
    command.env("FARFORK_CHECKPOINT_PID", pid.to_string());
    command.env("FARFORK_POOL", scene.pool_path()).stdin(Stdio::null()).stderr(Stdio::piped());
    if let Some(step) = step {
        command.env("FARFORK_KILL_AT_STEP", step.to_string());
    }
    Ok(command)
}

pub fn was_killed(status: ExitStatus, step: u64) -> Outcome<bool> {
    let killed = status.signal() == Some(9);
    demand(
        killed || status.success(),
        format!("step {step}: the checkpointer ended with {status}"),
    )?;
    Ok(killed)
}

pub fn verify(subject: &mut Subject, step: u64) -> Outcome {
    subject.send(b"v");
    subject.await_line("OK").map_err(|trouble| match trouble {
        farfork_tests::Trouble::Failed(why) => {
            farfork_tests::Trouble::Failed(format!("killed at step {step}: {why}"))
        }
        skipped => skipped,
    })
}

/// What a checkpointer may leave: pages that it had mapped when it was killed.
pub fn mapped_bytes(subject: &Subject) -> u64 {
    let maps =
        std::fs::read_to_string(format!("/proc/{}/statm", subject.pid())).unwrap_or_default();
    maps.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// An image that is not published goes with its checkpointer, and nothing has to look for it.
fn leaves_nothing(scene: &Scene, free: u64) -> Outcome {
    let names = |of: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(scene.pool_path().join(of)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    // One that had its place already: `pool check` removes it, since it has no name.
    let published =
        names("images").iter().filter_map(|path| path.metadata().ok()).collect::<Vec<_>>();
    let held: u64 = published.iter().map(|found| found.blocks() * 512).sum();
    // Pages that the kernel was just giving to it go with the last thread of the killed one.
    await_until("what was written is gone", || {
        scene.free_bytes().is_ok_and(|now| now + held == free)
    })?;
    // Where files can be without a name, there is nothing to be swept.
    let left = names("new");
    demand(left.is_empty() || testbed::medium().is_some(), format!("files stay: {left:?}"))
}

fn at_every_step() -> Outcome {
    let scene = Scene::set(32)?;
    let free = scene.free_bytes()?;
    let mut subject = scene.subject("steady")?;
    let before = mapped_bytes(&subject);
    for step in steps(stride(3)) {
        let mut child = checkpointer(&scene, &subject, Some(step), None)?;
        let status = child.wait().map_err(during("waiting for a checkpointer"))?;
        let killed = was_killed(status, step)?;
        verify(&mut subject, step)?;
        leaves_nothing(&scene, free)?;
        if !killed {
            println!("{step} steps");
            break;
        }
    }
    let pages = (mapped_bytes(&subject) - before) / 4096;
    demand(pages == 0, format!("{pages} scratch pages are left behind"))?;
    // Killed after the image was published and before it had a name.
    let checked = scene.works(&["pool", "check"])?;
    demand(
        checked.contains("before it had a name") && checked.ends_with("the pool is sound"),
        checked,
    )?;
    demand(scene.free_bytes()? == free, "space is lost")?;
    subject.must_pass()?;
    scene.strike()
}

fn at_any_moment() -> Outcome {
    let scene = Scene::set(32)?;
    let free = scene.free_bytes()?;
    let mut subject = scene.subject("steady")?;
    let pid = subject.pid().to_string();
    for round in 0..50u64 {
        let mut command = std::process::Command::new(farfork::binary()?);
        command.args(["checkpoint", "--name", "a/b", "--pid", &pid, "--pool"]);
        command.arg(scene.pool_path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(during("starting a checkpoint"))?;
        std::thread::sleep(Duration::from_micros(1_000 + round * 7_919 % 30_000));
        let _ = child.kill();
        child.wait().map_err(during("waiting for a checkpoint"))?;
        verify(&mut subject, round)?;
        let listed = scene.works(&["images", "list"])?;
        if listed.contains("a/b") {
            scene.works(&["images", "rm", "a/b"])?;
        }
    }
    // A helper that was giving memory to the pool's cgroup may outlive its checkpointer a moment.
    await_until("all space is back", || {
        let checked = scene.works(&["pool", "check"]).unwrap_or_default();
        checked.ends_with("the pool is sound") && scene.free_bytes().is_ok_and(|now| now == free)
    })?;
    subject.must_pass()?;
    scene.strike()
}

/// A shell with a child and with another shell that has two. Both go on when a child ends.
const TREE: &str =
    "bash -c 'sleep 1000 & while :; do sleep 1000; done' & while :; do sleep 1000; done";

fn tree_of(root: i32) -> Vec<i32> {
    let mut pids = vec![root];
    let mut next = 0;
    while let Some(pid) = pids.get(next) {
        pids.extend(proc::children(*pid));
        next += 1;
    }
    pids
}

/// All of the tree ends with it: no part goes on without the others.
fn while_it_kills_a_tree() -> Outcome {
    let scene = Scene::set(32)?;
    for step in steps(stride(3)) {
        let mut shell = Command::new("bash");
        shell.args(["-c", TREE]).stdin(Stdio::null()).stdout(Stdio::null());
        shell.process_group(0).stderr(Stdio::null());
        let mut shell = shell.spawn().map_err(during("starting bash"))?;
        let root = shell.id() as i32;
        let is_sleep =
            |pid: &i32| proc::text(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
        await_until("all sleep", || tree_of(root).iter().filter(|pid| is_sleep(pid)).count() == 3)?;
        let pids = tree_of(root);
        let mut command = call(&scene, root, Some(step))?;
        let ends = command.env("FARFORK_CHECKPOINT_ENDS", "1").output();
        let ends = ends.map_err(during("ending a tree"))?;
        let killed = ends.status.signal() == Some(9);
        demand(killed || ends.status.success(), farfork::text(&ends))?;
        let has_ended = |pid: &i32| proc::state(*pid).is_none_or(|state| state == 'Z');
        let all = await_until("all of the tree have ended", || pids.iter().all(has_ended));
        let _ = killpg(Pid::from_raw(root), Signal::SIGKILL);
        all?;
        shell.wait().map_err(during("waiting for bash"))?;
        // The image has no name.
        scene.works(&["pool", "check"])?;
        if !killed {
            println!("{step} steps");
            demand(step > 10, "it took no steps")?;
            break;
        }
    }
    scene.strike()
}
