//! The cost of each kind of descriptor, thread and mapping in a restore, and the phases of restoring a
//! process with many of them: `farfork bench features`.
//!
//! ```text
//!  set up   for each kind: a process with N of them, one with 2 N; one with many of several kinds
//!  rounds   for each kind: clone of the first │ clone of the second ─► difference / N
//!           the process with many: clone ─► its phases
//! ```
//! Invariants: both processes of a kind are cloned one right after the other, so that noise of a round
//! slows down both. Before the second clone starts, the first has disappeared and a pause has passed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};
use farfork_node::client::{Client, StartedClone};
use farfork_types::Cid;
use farfork_types::wire::{DEFAULT_TIMEOUT_S, RestoreCall};

use crate::clones::{self, RESTORE, phase_metric};
use crate::error::{BenchError, io};
use crate::exchange::now_ns;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject;
use crate::testbed::Testbed;
use crate::{Options, progress};

const SOURCE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bench/programs/features.c"));

/// Kinds: argument of the program, name in reports, and count of the smaller process.
const KINDS: [(&str, &str, u32); 24] = [
    ("thread", "thread", 32),
    ("anonymous", "anonymous mapping", 250),
    ("private-file", "private mapping of a file", 250),
    ("shared-file", "shared mapping of a file", 250),
    ("shared", "shared anonymous mapping", 50),
    ("file", "regular file", 250),
    ("directory", "directory", 250),
    ("pipe", "pipe with both ends", 125),
    ("socketpair", "pair of Unix sockets", 125),
    ("eventfd", "eventfd", 250),
    ("timerfd", "timerfd", 250),
    ("signalfd", "signalfd", 250),
    ("epoll", "epoll with one watch", 250),
    ("memfd", "empty memfd", 250),
    ("inotify", "inotify with one watch", 16),
    ("udp", "UDP socket", 250),
    ("listener", "listening TCP socket", 125),
    ("raw", "raw socket", 250),
    ("packet", "packet socket", 64),
    ("terminal", "pair of pseudo-terminals", 64),
    ("pidfd", "pidfd of itself", 250),
    ("timer", "POSIX timer", 250),
    ("fanotify", "fanotify group with one mark", 16),
    ("aio", "context of Linux AIO", 64),
];
/// The process with many things: about 500 mappings, 64 threads and 1,000 descriptors.
const MANY: [(&str, u32); 9] = [
    ("thread", 63),
    ("anonymous", 200),
    ("private-file", 100),
    ("file", 400),
    ("pipe", 100),
    ("socketpair", 100),
    ("eventfd", 100),
    ("epoll", 50),
    ("udp", 50),
];
const POOL_BYTES: u64 = 1 << 30;
/// Between two clones.
const PAUSE: Duration = Duration::from_millis(3);
const PER_ONE: &str = "restore time of one more";

/// A process and its image. Dropped, it kills the process.
struct Warm {
    process: Child,
    cid: Cid,
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A kind and its two processes.
struct Pair {
    name: &'static str,
    count: u32,
    once: Warm,
    twice: Warm,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    let testbed = Testbed::new(POOL_BYTES)?;
    let program = testbed.path("features");
    subject::compile(SOURCE, &program, &["-pthread"])?;
    let start = |things: &[(&str, u32)]| warm(&testbed, &program, things);
    progress("starting a process with many things, checkpointing it");
    let many = start(&MANY)?;
    let mut pairs = Vec::new();
    for (kind, name, count) in KINDS {
        progress(&format!("starting processes with {count} and {} of: {name}", 2 * count));
        let (once, twice) = (start(&[(kind, count)])?, start(&[(kind, 2 * count)])?);
        pairs.push(Pair { name, count, once, twice });
    }
    let mut samples = Samples::default();
    let mut uncounted = Samples::default();
    let rounds = if options.quick { 6 } else { 41 };
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        // The first round warms files, caches and the agent.
        let samples = if round == 0 { &mut uncounted } else { &mut samples };
        one_round(&testbed, &many, &pairs, samples)?;
    }
    Ok(Report {
        benchmark: "features",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: Vec::new(),
        rows: samples.rows(),
        notes: vec![
            "Mappings of one kind are not adjacent, and each has one page with content. A pair of \
             descriptors counts as one."
                .to_owned(),
        ],
    })
}

/// Starts a process with these things and checkpoints it.
fn warm(testbed: &Testbed, program: &Path, things: &[(&str, u32)]) -> Result<Warm, BenchError> {
    let directory = program.with_file_name("");
    let mut command = Command::new(program);
    command.arg(directory).args(things.iter().map(|(kind, count)| format!("{kind}={count}")));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().map_err(io("start", program))?;
    let mut line = String::new();
    let read = process.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
    if !matches!(read, Some(Ok(_))) || line != "ready\n" {
        let _ = process.kill();
        let _ = process.wait();
        return Err(BenchError::Lacking {
            doing: format!("start a process with {things:?}"),
            reason: "it exited before it was ready".to_owned(),
            remedy: "raise the limit of open files, and fs.inotify.max_user_instances",
        });
    }
    let pid = process.id() as i32;
    // From here on, an error kills the process.
    let mut warm = Warm { process, cid: Cid::default() };
    let target = Target::Process(pid);
    // The program submits no requests.
    let terms = CheckpointOptions { aio_is_idle: true, ..CheckpointOptions::default() };
    let made = checkpoint(testbed.pool(), None, target, terms, &mut |_, _| {})?;
    warm.cid = made.cid;
    Ok(warm)
}

fn one_round(
    testbed: &Testbed,
    many: &Warm,
    pairs: &[Pair],
    samples: &mut Samples,
) -> Result<(), BenchError> {
    let clone = restore(testbed, many)?;
    let case = "many things";
    samples.add(case, RESTORE, "us", clone.running.restore_us);
    samples.add(case, "mappings", "count", farfork_node::usage::of(clone.running.pid).vmas as f64);
    for (phase, us) in &clone.running.phases_us {
        samples.add(case, phase_metric(phase), "us", *us);
    }
    clones::end(clone, testbed)?;
    for pair in pairs {
        let [once, twice] = [&pair.once, &pair.twice].map(|warm| time(testbed, warm));
        let (once, twice) = (once?, twice?);
        samples.add(pair.name, PER_ONE, "us", (twice - once) / f64::from(pair.count));
        samples.add(&format!("{} {}", pair.count, pair.name), RESTORE, "us", once);
        samples.add(&format!("{} {}", 2 * pair.count, pair.name), RESTORE, "us", twice);
    }
    Ok(())
}

fn time(testbed: &Testbed, warm: &Warm) -> Result<f64, BenchError> {
    let clone = restore(testbed, warm)?;
    let us = clone.running.restore_us;
    clones::end(clone, testbed)?;
    Ok(us)
}

fn restore(testbed: &Testbed, warm: &Warm) -> Result<StartedClone, BenchError> {
    std::thread::sleep(PAUSE);
    let null = File::open("/dev/null").map_err(io("open", "/dev/null"))?;
    let call = RestoreCall {
        pool: testbed.pool().path().to_owned(),
        cid: warm.cid.to_string(),
        name: "bench/features".to_owned(),
        detach: false,
        same_pid: false,
        ghost: None,
        inherit: Vec::new(),
        tiering: farfork_types::Tiering::Mow,
        local_share: None,
        profile: false,
        requested_ns: now_ns(),
        timeout_s: DEFAULT_TIMEOUT_S,
    };
    Ok(Client::connect(&testbed.node)?.restore(call, &[null.as_fd(); 3])?)
}
