//! Seeds: the frozen copy of a process, and what it shows when anything is killed at any step.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};

use farfork_checkpoint::prepare;
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::store::Descriptor;
use farfork_pool::{Pool, failpoint};
use farfork_seed::Ancestry;
use farfork_seed::region::SeedRegion;
use farfork_tests::Outcome;
use farfork_tests::subject::Subject;

use crate::scene::{Scene, await_until, demand, during};
use crate::{Case, again, killed};

pub const CASES: &[Case] = &[
    ("shadow_shows_the_moment_of_its_fork", shadow_shows_the_moment_of_its_fork),
    ("shadow_at_every_step", shadow_at_every_step),
];

/// Prepares a process in the name of another test, if this process was started for that: writes the seed
/// as an image for each line that it reads.
pub fn act() -> Option<ExitCode> {
    let pid = std::env::var("FARFORK_PREPARE_PID").ok()?.parse().ok()?;
    let pool = Pool::open(&PathBuf::from(std::env::var_os("FARFORK_POOL")?)).ok()?;
    failpoint::arm();
    let prepared = match prepare(pid, None) {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("{error}");
            return Some(ExitCode::FAILURE);
        }
    };
    println!("PREPARED {}", prepared.shadow.pid());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut writer = pool.begin(None).expect("an image");
        let descriptor = Descriptor::of(&prepared.model, writer.cid());
        let bytes = descriptor.file_bytes;
        let (parts, memory) = (prepared.parts.clone(), prepared.shadow.memory());
        let (ancestry, _) = Ancestry::of(prepared.ancestor.clone(), &parts, None);
        let copied = prepared.copied.clone();
        let region = SeedRegion::new(descriptor, parts, copied, ancestry, memory);
        writer.reserve(bytes).expect("room");
        region.read(0, writer.bytes_mut(0..bytes)).expect("the seed's bytes");
        writer.keep(std::slice::from_ref(&(0..bytes))).expect("the file's end");
        let (cid, _held) = writer.publish().expect("publishing");
        let name: ImageName = line.parse().expect("a name");
        Catalog::of(&pool).set(&name, cid).expect("naming");
        println!("WRITTEN");
    }
    let reclaimed = prepared.shadow.reclaim();
    Some(if reclaimed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn preparer(scene: &Scene, subject: &Subject, step: Option<u64>) -> Outcome<Child> {
    let mut command = again()?;
    command.env("FARFORK_PREPARE_PID", subject.pid().to_string());
    command.env("FARFORK_POOL", scene.pool_path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(step) = step {
        command.env("FARFORK_KILL_AT_STEP", step.to_string());
    }
    command.spawn().map_err(during("starting a process that prepares"))
}

fn order(subject: &mut Subject, command: &[u8]) -> Outcome {
    subject.send(command);
    subject.await_line("OK")
}

/// Children of a process, dead ones as well.
fn children(subject: &Subject) -> Vec<i32> {
    farfork_sys::proc::children(subject.pid() as i32)
}

fn shadow_shows_the_moment_of_its_fork() -> Outcome {
    let mut scene = Scene::set(64)?;
    scene.agent()?;
    let mut parent = scene.subject("seed_memory")?;
    let mut seeds = Vec::new();
    for generation in ["1", "11"] {
        let mut child = preparer(&scene, &parent, None)?;
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut next = move || lines.next().and_then(Result::ok).unwrap_or_default();
        let prepared = next();
        demand(prepared.starts_with("PREPARED"), format!("saw {prepared}"))?;
        // What the parent writes does not reach the seed, nor does it see a child.
        order(&mut parent, b"c")?;
        order(&mut parent, b"w")?;
        seeds.push((generation, child, next));
    }
    for (generation, child, next) in &mut seeds {
        let name = format!("seeds/g{generation}");
        let mut stdin = child.stdin.as_ref().expect("a pipe");
        writeln!(stdin, "{name}").map_err(during("asking for an image"))?;
        demand(next() == "WRITTEN", "the seed was not written")?;
        let mut command = scene.command(&["restore", &name])?;
        let mut clone = Subject::start("clone", &mut command, crate::scene::PATIENCE)?;
        clone.must_pass()?;
        let seen = clone.after("GENERATION");
        demand(seen == [generation.to_owned()], format!("expected {generation}, saw {seen:?}"))?;
    }
    for (_, child, _) in &mut seeds {
        drop(child.stdin.take());
        let status = child.wait().map_err(during("waiting for a process that prepares"))?;
        demand(status.success(), format!("reclaiming: {status}"))?;
    }
    demand(children(&parent).is_empty(), format!("children stay: {:?}", children(&parent)))?;
    order(&mut parent, b"v")?;
    // A checkpoint sees nothing of what was there.
    scene.checkpoint(&parent, "seeds/parent")?;
    parent.must_pass()?;
    scene.strike()
}

/// What became of a process that prepares and reclaims, and was to be killed at a step.
struct Attempt {
    is_killed: bool,
    /// Whether the seed was made before.
    has_prepared: bool,
}

fn attempt(scene: &Scene, subject: &mut Subject, step: u64) -> Outcome<Attempt> {
    let mut child = preparer(scene, subject, Some(step))?;
    drop(child.stdin.take());
    let output = child.wait_with_output().map_err(during("waiting for a process that prepares"))?;
    let is_killed = killed::was_killed(output.status, step)?;
    // No second copy runs: what is left of it is dead.
    await_until("the copy is dead", || {
        children(subject).iter().all(|pid| farfork_sys::proc::state(*pid) == Some('Z'))
    })?;
    let left = children(subject);
    demand(left.len() <= 1, format!("step {step}: dead copies stay: {left:?}"))?;
    killed::verify(subject, step)?;
    Ok(Attempt { is_killed, has_prepared: output.stdout.starts_with(b"PREPARED") })
}

/// The first step of which `is_wanted` holds, as it does of all after it.
fn first_step(mut is_wanted: impl FnMut(u64) -> Outcome<bool>) -> Outcome<u64> {
    let (mut below, mut at) = (0, 1 << 14);
    while below < at {
        let middle = (below + at) / 2;
        if is_wanted(middle)? { at = middle } else { below = middle + 1 }
    }
    Ok(at)
}

/// Steps before the seed is made in which the copy is forked and becomes nothing but memory.
const FORKING: u64 = 120;

fn shadow_at_every_step() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("steady")?;
    let before = killed::mapped_bytes(&subject);
    let end = first_step(|step| Ok(!attempt(&scene, &mut subject, step)?.is_killed))?;
    let made = first_step(|step| Ok(attempt(&scene, &mut subject, step)?.has_prepared))?;
    // Up to the fork it is a checkpoint, which others kill at every step.
    let stride = if farfork_tests::is_long() { 1 } else { 16 };
    let forking = made.saturating_sub(FORKING);
    for step in (0..forking).step_by(stride).chain(forking..=end) {
        attempt(&scene, &mut subject, step)?;
    }
    println!("{end} steps, {made} until the seed is made");
    demand(children(&subject).is_empty(), "a dead copy stays")?;
    let pages = (killed::mapped_bytes(&subject) - before) / 4096;
    demand(pages == 0, format!("{pages} scratch pages are left behind"))?;
    subject.must_pass()?;
    scene.strike()
}
