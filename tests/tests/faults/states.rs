//! A checkpointer is killed while its subject is traced by another process or waits in `vfork`, and subjects end
//! at every step of a checkpointer that may end, too. Whatever becomes of the checkpointer, the subject goes on, or ends, as if nothing had been.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::time::Duration;

use farfork_tests::Outcome;
use farfork_tests::subject::Subject;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::killed::{TOO_FEW_STEPS, checkpointer, mapped_bytes};
use crate::scene::{Scene, await_until, children, demand, during, fail};
use crate::stage::stride;

pub const CASES: &[Case] = &[
    ("traced_and_the_checkpointer_is_killed", traced),
    ("in_vfork_and_the_checkpointer_is_killed", in_vfork),
    ("killed_meanwhile", || ends(Signal::SIGKILL, false)),
    ("ended_meanwhile", || ends(Signal::SIGTERM, false)),
    ("killed_with_its_checkpointer", || ends(Signal::SIGKILL, true)),
];

/// How a checkpoint ends that is killed at step `kill`, and during which `event` happens. It has the limit of
/// all waits.
fn checkpoint(
    scene: &Scene,
    subject: &Subject,
    kill: Option<u64>,
    event: Option<&str>,
) -> Outcome<Output> {
    let mut child = checkpointer(scene, subject, kill, event)?;
    let ended = await_until("a checkpointer ends", || !matches!(child.try_wait(), Ok(None)));
    if ended.is_err() {
        let _ = child.kill();
    }
    ended?;
    child.wait_with_output().map_err(during("waiting for a checkpointer"))
}

/// Kills checkpointers of `subject` at many moments: they have no steps, since they are refused before they
/// change anything. At last one ends by itself, as `is_right` says.
fn kill_at_many_moments(
    scene: &Scene,
    subject: &Subject,
    is_right: impl Fn(&Output) -> bool,
) -> Outcome {
    let before = mapped_bytes(subject);
    for ms in (0..60).step_by(stride(7)) {
        let mut child = checkpointer(scene, subject, None, None)?;
        std::thread::sleep(Duration::from_millis(ms));
        let _ = child.kill();
        child.wait().map_err(during("waiting for a checkpointer"))?;
        let after = mapped_bytes(subject);
        demand(after == before, format!("{ms} ms: {before} bytes, {after} after"))?;
    }
    let output = checkpoint(scene, subject, None, None)?;
    demand(is_right(&output), String::from_utf8_lossy(&output.stderr))
}

fn is_refused_with(output: &Output, word: &str) -> bool {
    output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains(word)
}

fn traced() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("refuse_ptraced")?;
    kill_at_many_moments(&scene, &subject, |output| is_refused_with(output, "trace"))?;
    subject.must_pass()?;
    scene.works(&["pool", "check"])?;
    scene.strike()
}

/// The first thread stands still, and cannot be interrupted, until its child has gone.
fn in_vfork() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("vfork_waits")?;
    subject.send(b"v");
    let found = || children(subject.pid()).first().copied();
    await_until("the subject waits in vfork", || found().is_some())?;
    let child = found().unwrap_or_default();
    let checked = kill_at_many_moments(&scene, &subject, |output| is_refused_with(output, "vfork"));
    kill(Pid::from_raw(child), Signal::SIGKILL).map_err(during("killing a child"))?;
    checked?;
    // Its other thread goes on, and then it is checkpointed.
    let made = || {
        let output = checkpoint(&scene, &subject, None, None);
        output.is_ok_and(|output| output.status.success())
    };
    await_until("it is checkpointed", made)?;
    subject.must_pass()?;
    scene.works(&["pool", "check"])?;
    scene.strike()
}

/// At every step the subject gets `signal`; the checkpointer goes on, or is killed soon after that. The subject
/// ends by the signal, and nothing stays behind.
fn ends(signal: Signal, kills_both: bool) -> Outcome {
    let scene = Scene::set(32)?;
    let mut failed = 0;
    for (round, step) in (0..).zip((0..).step_by(stride(97))) {
        let mut subject = scene.subject("steady")?;
        let event = format!("{step}:signal:{}", signal as i32);
        let kill_at = kills_both.then_some(step + 1 + round % 5);
        let output = checkpoint(&scene, &subject, kill_at, Some(&event))?;
        if output.status.code() == Some(i32::from(TOO_FEW_STEPS)) {
            println!("{step} steps, {failed} failed");
            subject.must_pass()?;
            break;
        }
        let status = subject.finish()?;
        demand(status.signal() == Some(signal as i32), format!("step {step}: {status}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => {}
            Some(1) if !said.trim().is_empty() => failed += 1,
            None if kills_both && output.status.signal() == Some(9) => failed += 1,
            _ => return fail(format!("step {step}: {}, {said}", output.status)),
        }
        scene.works(&["pool", "check"])?;
    }
    // A process that stands still takes SIGTERM when it goes on.
    demand(failed > 2 || signal == Signal::SIGTERM, "nothing was seen")?;
    scene.strike()
}
