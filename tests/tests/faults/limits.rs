//! Ghosts' limits of memory and processes, as the kernel has them: by either version of cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Case;
use crate::ghosts::{await_running, clone, ends_for_want_of_memory, number, runs, stage, start};
use crate::scene::{PATIENCE, Scene, demand, during, fail};

pub const CASES: &[Case] = &[
    ("are_those_that_were_asked_for", are_those_that_were_asked_for),
    ("of_memory_end_one_clone_alone", of_memory_end_one_clone_alone),
    ("of_processes_refuse_more", of_processes_refuse_more),
    ("are_counted_where_the_clone_is", are_counted_where_the_clone_is),
];

const ASKED: [&str; 4] = ["--memory", "64M", "--pids-limit", "24"];
const IMAGE: &[&str] = &["--image", "a/b"];
const MEMORY: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
const CHARGED: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];

/// A file of a ghost's cgroups, by its names in both versions.
fn file(ghost: &str, names: &[&str]) -> Outcome<PathBuf> {
    let groups = farfork::cgroups(ghost);
    let all = groups.iter().flat_map(|group| names.iter().map(|name| group.join(name)));
    let found = all.into_iter().find(|path| path.exists());
    found.map_or_else(|| fail(format!("none of {names:?} in {groups:?}")), Ok)
}

/// What the kernel may have charged to a group before any of it is taken: 64 pages for each processor
/// (`MEMCG_CHARGE_BATCH`).
fn ahead() -> u64 {
    thread::available_parallelism().map_or(1, |processors| processors.get() as u64) * 64 * 4096
}

fn read(path: &Path) -> Outcome<String> {
    let text = fs::read_to_string(path).map_err(during("reading a cgroup"))?;
    Ok(text.trim().to_owned())
}

fn are_those_that_were_asked_for() -> Outcome {
    let (scene, _subject) = stage()?;
    for ghost in [start(&scene, &ASKED)?, start(&scene, &[&ASKED, IMAGE].concat())?] {
        let of = |names: &[&str]| file(&ghost, names).and_then(|path| read(&path));
        let limits = (of(&MEMORY)?, of(&["pids.max"])?);
        demand(limits == ("67108864".into(), "24".into()), format!("limits: {limits:?}"))?;
        let mut clone = clone(&scene, &ghost)?;
        await_running(&scene, &ghost)?;
        let pid = runs(&scene, &ghost)?;
        // The processes in them.
        for names in [MEMORY.as_slice(), &["pids.max"]] {
            let members = read(&file(&ghost, names)?.with_file_name("cgroup.procs"))?;
            let is_in = members.lines().any(|member| member == pid.to_string());
            demand(is_in, format!("{pid} is not below {names:?}, but {members:?}"))?;
        }
        kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(during("killing"))?;
        clone.finish()?;
        scene.has_no_ghost(&ghost)?;
    }
    scene.strike()
}

/// Starts Python with a program, and makes an image of it once it has said that it is ready.
fn python(scene: &Scene, program: &str, image: &str) -> Outcome<Subject> {
    let mut command = Command::new("python3");
    command.args(["-c", program]);
    let mut subject = Subject::start(image, &mut command, PATIENCE)?;
    subject.await_ready()?;
    scene.checkpoint(&subject, image)?;
    Ok(subject)
}

fn of_memory_end_one_clone_alone() -> Outcome {
    let (scene, _subject) = stage()?;
    let eats = "print('READY', flush=True); input(); b = [bytes(1 << 20) * 4 for _ in range(99)]";
    let _parent = python(&scene, eats, "a/eats")?;
    for image in [&[][..], &["--image", "a/eats"]] {
        let neighbour = start(&scene, &ASKED)?;
        let mut other = clone(&scene, &neighbour)?;
        await_running(&scene, &neighbour)?;
        let ghost = start(&scene, &[&ASKED, image].concat())?;
        let mut command = scene.command(&["restore", "a/eats", "--ghost", &ghost])?;
        let mut eater = Subject::start("eater", &mut command, PATIENCE)?;
        eater.send_byte();
        ends_for_want_of_memory(eater)?;
        scene.has_no_ghost(&ghost)?;
        // The neighbour and the agent go on.
        other.must_pass()?;
        scene.has_no_ghost(&neighbour)?;
    }
    scene.strike()
}

fn of_processes_refuse_more() -> Outcome {
    let (scene, _subject) = stage()?;
    let forks = "
import os, time
print('READY', flush=True); input()
count = 0
while count < 99:
    try: made = os.fork()
    except BlockingIOError: break
    if made == 0: time.sleep(999)
    count += 1
print('PASS' if 9 < count < 24 else f'made {count}', flush=True)
os._exit(0)";
    let _parent = python(&scene, forks, "a/forks")?;
    for image in [&[][..], &["--image", "a/forks"]] {
        let ghost = start(&scene, &[&ASKED, image].concat())?;
        let mut command = scene.command(&["restore", "a/forks", "--ghost", &ghost])?;
        Subject::start("clone", &mut command, PATIENCE)?.must_pass()?;
        scene.has_no_ghost(&ghost)?;
    }
    scene.strike()
}

/// Memory of a clone is charged to its ghost. farfork reports the kernel's share of it.
fn are_counted_where_the_clone_is() -> Outcome {
    let (scene, _subject) = stage()?;
    let takes = "print('READY', flush=True); input(); b = b'x' * (24 << 20); \
                 print('TAKEN', flush=True); input()";
    let _parent = python(&scene, takes, "a/takes")?;
    let ghost = start(&scene, &ASKED)?;
    let charged = file(&ghost, &CHARGED)?;
    let charged = || read(&charged)?.parse::<u64>().map_err(during("reading a figure"));
    let before = charged()?;
    let mut command = scene.command(&["restore", "a/takes", "--ghost", &ghost])?;
    let mut clone = Subject::start("clone", &mut command, PATIENCE)?;
    clone.send_byte();
    clone.await_line("TAKEN")?;
    let took = charged()?.saturating_sub(before);
    let least = (24 << 20) - ahead();
    demand((least..36 << 20).contains(&took), format!("{took} bytes more are charged"))?;
    let kernels = number(&scene, &ghost, "kernel_bytes")?;
    demand((1..8 << 20).contains(&kernels), format!("{kernels} bytes of the kernel's"))?;
    scene.works(&["ghost", "stop", &ghost])?;
    clone.finish()?;
    scene.has_no_ghost(&ghost)?;
    scene.strike()
}
