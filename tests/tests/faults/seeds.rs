//! Seeds: the frozen copy of a process, and what it shows when anything is killed at any step.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Child, ExitCode, Stdio};

use farfork_checkpoint::prepare;
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::store::Descriptor;
use farfork_pool::{Pool, failpoint};
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
    let prepared = match prepare(pid) {
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
        let region = SeedRegion::new(descriptor, parts, prepared.copied.clone(), memory);
        writer.reserve(bytes).expect("room");
        region.read(0, writer.bytes_mut(0..bytes)).expect("the seed's bytes");
        writer.keep(&[0..bytes]).expect("the file's end");
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

fn shadow_at_every_step() -> Outcome {
    let scene = Scene::set(32)?;
    let mut subject = scene.subject("steady")?;
    let before = killed::mapped_bytes(&subject);
    for step in 0.. {
        let mut child = preparer(&scene, &subject, Some(step))?;
        drop(child.stdin.take());
        let status = child.wait().map_err(during("waiting for a process that prepares"))?;
        let is_killed = killed::was_killed(status, step)?;
        // No second copy runs: what is left of it is dead.
        await_until("the copy is dead", || {
            children(&subject).iter().all(|pid| farfork_sys::proc::state(*pid) == Some('Z'))
        })?;
        demand(children(&subject).len() <= 1, format!("{:?}", children(&subject)))?;
        killed::verify(&mut subject, step)?;
        if !is_killed {
            println!("{step} steps");
            break;
        }
    }
    demand(children(&subject).is_empty(), "a dead copy stays")?;
    let pages = (killed::mapped_bytes(&subject) - before) / 4096;
    demand(pages == 0, format!("{pages} scratch pages are left behind"))?;
    subject.must_pass()?;
    scene.strike()
}
