//! Forks from a live process against checkpoints and local forks: `farfork bench seeds`.
//!
//! ```text
//!  set up   for each size: start a process that has touched so much memory
//!  rounds   for each size: local fork │ prepare │ checkpoint
//!           clone of the seed, nothing fetched, by tcp │ clone of the image in the pool │ the first by shm
//! rounds   for each size and share of a C function: a clone on demand │ adaptive │ adaptive by shm │ with the
//!           pages of an earlier clone first │ fetched whole
//! herds    many children of one seed
//! ```
//! Invariants: all cases of a round are of the same process, one after the other; each seed is reclaimed and
//! each clone killed before the next case begins.

mod micro;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::clones::RESTORE;
use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::testbed::Testbed;
use crate::{Options, progress, usage};
use micro::Herds;

const SIZES_MB: [u64; 3] = [16, 128, 512];
/// Rounds with the C function.
const MICRO_ROUNDS: usize = 7;
const POOL_BYTES: u64 = 2 << 30;
const US: &str = "us";
/// Goals: how much later a clone of a seed may run its first instruction than one from the pool.
const LATER: [(&str, f64); 2] = [(SEED, 2000.0), (SEED_BY_MEMORY, 300.0)];

/// Touches memory, and forks on demand: it prints how long the fork took in the parent.
const PARENT: &str = "
import mmap, os, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096): memory[at] = 1
print('READY', flush=True)
for line in sys.stdin:
    before = time.perf_counter()
    child = os.fork()
    if child == 0: os._exit(0)
    took = time.perf_counter() - before
    os.waitpid(child, 0)
    print(took * 1e6, flush=True)
";

/// A process of one size.
struct Parent {
    megabytes: u64,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&[])?;
    let machine = Machine::this();
    let testbed = Testbed::new(POOL_BYTES)?;
    let mut parents = SIZES_MB.into_iter().map(Parent::start).collect::<Result<Vec<_>, _>>()?;
    let (mut samples, mut uncounted) = (Samples::default(), Samples::default());
    let rounds = if options.quick { 7 } else { 31 };
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        let samples = if round == 0 { &mut uncounted } else { &mut samples };
        parents.iter_mut().try_for_each(|parent| parent.measure(&testbed, samples))?;
    }
    let program = micro::program(&testbed)?;
    for round in 0..rounds.min(MICRO_ROUNDS) {
        progress(&format!("micro-function, round {} of {}", round + 1, rounds.min(MICRO_ROUNDS)));
        micro::measure(&testbed, &program, &mut samples)?;
    }
    let herds = Herds::new(options.quick);
    herds.measure(&testbed, &program, &mut samples)?;
    let judge = |megabytes: u64, (start, most): (&str, f64)| {
        let of = |start: &str| samples.values(&case(megabytes, start), RESTORE).to_vec();
        let later =
            of(start).iter().zip(of(POOL)).map(|(seed, pool)| seed - pool).collect::<Vec<_>>();
        let goal = format!("{megabytes} MB: a {start} starts later than from the pool, us");
        Goal::median(goal, most, &later)
    };
    let all = SIZES_MB.into_iter().flat_map(|megabytes| LATER.map(|goal| judge(megabytes, goal)));
    let goals = all.chain(herds.goal(&samples)).collect();
    let notes = vec![NOTE.to_owned()];
    let (benchmark, version) = ("seeds", env!("CARGO_PKG_VERSION"));
    let (quick, rows) = (options.quick, samples.rows());
    Ok(Report { benchmark, quick, machine, version, goals, rows, notes })
}

const NOTE: &str = "Parent: Python that has touched so much anonymous memory. The local fork is timed in the \
    parent, by os.fork(). Keeper and node are on one machine: TCP on the loopback device, every frame \
    sealed, unless shm (shared memory) is named. \"The whole command\" is from its start to its end, with the process that mounts the seed; \
    each round has a new seed. The micro-function is a C program that writes a number into each page; a clone \
    adds up those of a share of them (in thousandths), and counts when its sum has come and is right. Each \
    of its clones has a new seed, except for herds.";
const SEED: &str = "clone of the seed, on demand";
const SEED_BY_MEMORY: &str = "clone of the seed, on demand, by shm";
const POOL: &str = "clone from the pool";
const FORK: &str = "local fork";
const PREPARE: &str = "prepare";
const CHECKPOINT: &str = "checkpoint";

fn case(megabytes: u64, what: &str) -> String {
    format!("python-{megabytes}M/{what}")
}

impl Parent {
    fn start(megabytes: u64) -> Result<Parent, BenchError> {
        let mut command = Command::new("python3");
        command.args(["-c", PARENT, &megabytes.to_string()]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start", "python3"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(missing(&case(megabytes, FORK), "it has no pipes"));
        };
        let mut parent = Parent { megabytes, child, input, output: BufReader::new(output) };
        match parent.line()?.as_str() {
            "READY" => Ok(parent),
            other => Err(missing(&case(megabytes, FORK), other)),
        }
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(io("read from", "python3"))?;
        Ok(line.trim().to_owned())
    }

    fn measure(&mut self, testbed: &Testbed, samples: &mut Samples) -> Result<(), BenchError> {
        let megabytes = self.megabytes;
        let case = |what: &str| case(megabytes, what);
        self.input.write_all(b"f\n").map_err(io("write to", "python3"))?;
        let took = self.line()?;
        let took = took.parse().map_err(|_| missing(&case(FORK), &took))?;
        samples.add(&case(FORK), "time in the parent", US, took);
        let pid = self.child.id().to_string();
        let run = |arguments: &[&str]| farfork(testbed, &case(arguments[0]), arguments);
        let prepare = ["prepare", "--json", "--listen", "127.0.0.1", "--pid", &pid];
        let (seed, _) = run(&[&prepare[..], &["--tcp-only"]].concat())?;
        for (field, metric) in [
            ("prepare_us", "in all"),
            ("frozen_us", "stands still"),
            ("fork_us", "of which the fork"),
        ] {
            samples.add(&case(PREPARE), metric, US, number(&seed[field]));
        }
        samples.add(
            &case(PREPARE),
            "descriptor",
            "KiB",
            number(&seed["descriptor_bytes"]) / 1024.0,
        );
        let name = format!("bench/seed{megabytes}");
        let (image, _) = run(&["checkpoint", "--json", "--pid", &pid, "--name", &name])?;
        samples.add(&case(CHECKPOINT), "in all", US, number(&image["total_us"]));
        samples.add(&case(CHECKPOINT), "stands still", US, number(&image["frozen_us"]));
        let handle = seed["handle"].as_str().unwrap_or_default();
        let (local, _) = run(&prepare)?;
        let by_memory = local["handle"].as_str().unwrap_or_default();
        let resume = ["resume", "--json", "--detach", "--no-prefetch"];
        let restore = ["restore", "--json", "--detach"];
        for (what, command, of) in [
            (SEED, &resume[..], handle),
            (POOL, &restore, name.as_str()),
            (SEED_BY_MEMORY, &resume, by_memory),
        ] {
            let (clones, us) = run(&[command, &[of]].concat())?;
            add_clone(&case(what), &clones[0], us, samples);
        }
        [handle, by_memory]
            .into_iter()
            .try_for_each(|of| run(&["reclaim", "--json", "--wait", "0", of]).map(drop))
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Notes how a clone has started, and ends it.
fn add_clone(case: &str, clone: &Value, us: f64, samples: &mut Samples) {
    samples.add(case, RESTORE, US, number(&clone["restore_us"]));
    samples.add(case, "the whole command", US, us);
    if let Some(bytes) = clone["fetched_bytes"].as_f64() {
        samples.add(case, "fetched when it runs", "KiB", bytes / 1024.0);
    }
    let pid = clone["pid"].as_i64().unwrap_or_default() as i32;
    let _ = kill(Pid::from_raw(pid.max(2)), Signal::SIGKILL);
    usage::await_end(pid);
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn missing(case: &str, reason: &str) -> BenchError {
    BenchError::Answer { case: case.to_owned(), reason: reason.to_owned() }
}

/// Runs a command of `farfork`: the document that it prints, and microseconds that it took.
fn farfork(testbed: &Testbed, case: &str, arguments: &[&str]) -> Result<(Value, f64), BenchError> {
    let program = crate::program::farfork()?;
    // Not pipes: their end would come with that of the clone, which has the same output.
    let paths = ["seeds.out", "seeds.err"].map(|name| testbed.path(name));
    let file = |path: &Path| File::create(path).map_err(io("make", path));
    let mut command = Command::new(&program);
    command.args(arguments).env("FARFORK_NODE", &testbed.node);
    command.env("FARFORK_POOL", testbed.pool().path()).stdin(Stdio::null());
    command.stdout(file(&paths[0])?).stderr(file(&paths[1])?);
    let begun = Instant::now();
    let status = command.status().map_err(io("run", program))?;
    let us = begun.elapsed().as_secs_f64() * 1e6;
    let read = |path: &Path| std::fs::read(path).map_err(io("read", path));
    let (output, errors) = (read(&paths[0])?, read(&paths[1])?);
    let failed = || missing(case, String::from_utf8_lossy(&errors).trim());
    if !status.success() {
        return Err(failed());
    }
    // A clone may print behind it.
    let mut documents = serde_json::Deserializer::from_slice(&output).into_iter();
    let document = documents.next().and_then(Result::ok).ok_or_else(failed)?;
    Ok((document, us))
}
