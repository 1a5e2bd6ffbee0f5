//! Virtual machines from snapshots: `farfork bench vm`.
//!
//! ```text
//!  rounds   for each walk: file │ plain │ farfork-unrecorded │ farfork │ resident
//!           ─► ms from the restore to the guest's end
//! ```
//! Invariants: the same guest of the mini VMM walks in the same order in each case, reads every word of the
//! pages that it visits, and its result is checked. Which case comes first changes with each round. The
//! baselines are farfork's own: no monitor of others runs here.

mod handler;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use farfork_image::catalog::Catalog;
use farfork_image::vm;
use farfork_minivmm::{Backing, Monitor, Pattern, Walk};
use farfork_pool::Pool;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::error::{BenchError, io};
use crate::goals::Goal;
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::{Options, program, progress};

use handler::Handler;

/// The share of pages of zeros is the one that Aquifer reports of real snapshots.
const PATTERN: Pattern =
    Pattern { memory_bytes: 128 << 20, zero_permille: 828, group_pages: 4, seed: 11 };
const POOL_BYTES: u64 = 256 << 20;
const NAME: &str = "bench/vm";

/// Mapped as it is touched: Firecracker's backend `File`.
const FILE: &str = "file";
/// One page for each fault: a handler such as Firecracker's example.
const PLAIN: &str = "plain";
/// The page server, which knows nothing of the snapshot's pages.
const UNRECORDED: &str = "farfork-unrecorded";
/// The page server, after one machine with the same walk.
const FARFORK: &str = "farfork";
/// All of the memory was mapped before the clock starts: the bound.
const RESIDENT: &str = "resident";
const CASES: [&str; 5] = [FILE, PLAIN, UNRECORDED, FARFORK, RESIDENT];

const JUMPING: &str = "10 % of the pages, here and there";
const IN_ORDER: &str = "10 % of the pages, in order";
const WHOLE: &str = "all pages, in order";
const MS: &str = "ms";

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    options.check(&[])?;
    let machine = Machine::this();
    let bench = Bench::new()?;
    let (mut samples, mut uncounted) = (Samples::default(), Samples::default());
    let rounds = if options.quick { 9 } else { 41 };
    for round in 0..=rounds {
        progress(&format!("round {round} of {rounds}"));
        bench.round(round, if round == 0 { &mut uncounted } else { &mut samples })?;
    }
    let mut notes = bench.notes.clone();
    notes.push(
        "All cases are farfork's own mini VMM; the guests are synthetic, and so are their shares of zeros \
         and touched pages. All files lie in memory (tmpfs), so that `file` meets no disk. The clock of \
         `resident` starts when all pages are mapped."
            .to_owned(),
    );
    Ok(Report {
        benchmark: "vm",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals(&samples),
        rows: samples.rows(),
        notes,
    })
}

fn goals(samples: &Samples) -> Vec<Goal> {
    let against = |metric: &'static str, other: &'static str, limit: f64| {
        let [ours, theirs] = [FARFORK, other].map(|case| samples.values(case, metric));
        Goal::ratio(format!("{metric}: farfork / {other}"), limit, ours, theirs)
    };
    let of = |metric| {
        [
            against(metric, FILE, 1.0 / 2.2),
            against(metric, PLAIN, 1.0 / 1.1),
            against(metric, RESIDENT, 1.15),
        ]
    };
    [JUMPING, IN_ORDER, WHOLE].into_iter().flat_map(of).collect()
}

struct Bench {
    directory: TempDir,
    unrecorded: Serve,
    /// One for each walk: the first machine of each, in the uncounted round, is recorded.
    recorded: Vec<Serve>,
    handler: Handler,
    /// What is measured, and what the guest has to read.
    walks: Vec<(&'static str, Walk, u64)>,
    notes: Vec<String>,
}

impl Bench {
    fn new() -> Result<Bench, BenchError> {
        let directory =
            tempfile::tempdir_in("/dev/shm").map_err(io("make a directory in", "/dev/shm"))?;
        let path = |name: &str| directory.path().join(name);
        let (state, memory) = (path("state"), path("memory"));
        let pool = Pool::create(&path("pool"), POOL_BYTES)?;
        let mut monitor = Monitor::start(&PATTERN, 1).map_err(failed)?;
        monitor.snapshot(&state, &memory).map_err(failed)?;
        let begun = Instant::now();
        let made = vm::import(&pool, Some("bench"), &state, &memory, &mut |_, _, _| ());
        let made = made.map_err(failed)?;
        let name = format!("{NAME}:unrecorded").parse().map_err(failed)?;
        Catalog::of(&pool).set(&name, made.cid)?;
        let notes = vec![format!(
            "A memory of {} MiB, {:.1} % zeros; the image takes {:.1} MiB of the pool; imported in {:.0} ms. \
             A {} runs the guest.",
            made.raw_bytes >> 20,
            100.0 - 100.0 * made.stored_bytes as f64 / made.raw_bytes as f64,
            made.pool_bytes as f64 / f64::from(1 << 20),
            begun.elapsed().as_secs_f64() * 1e3,
            if monitor.has_kvm() { "vCPU of KVM" } else { "thread of the host (there is no KVM)" },
        )];
        let pages = PATTERN.pages();
        let in_order = Walk { count: pages / 10, first: pages / 4, ..Walk::whole(pages) };
        let walks = [
            (JUMPING, Walk::jumping(pages, pages / 10)),
            (IN_ORDER, in_order),
            (WHOLE, Walk::whole(pages)),
        ];
        let mut expected =
            |(metric, walk)| Ok((metric, walk, monitor.walk(&walk).map_err(failed)?));
        let walks = walks.into_iter().map(&mut expected).collect::<Result<Vec<_>, BenchError>>()?;
        let unrecorded = Serve::start(directory.path(), "unrecorded", &["--no-record"])?;
        let start = |number: usize| {
            // An image of its own, so that it has a record of its own.
            let made = vm::import(&pool, Some("bench"), &state, &memory, &mut |_, _, _| ());
            let name = format!("{NAME}:{number}").parse().map_err(failed)?;
            Catalog::of(&pool).set(&name, made.map_err(failed)?.cid)?;
            Serve::start(directory.path(), &number.to_string(), &[])
        };
        let recorded = (0..walks.len()).map(start).collect::<Result<Vec<_>, BenchError>>()?;
        let handler = Handler::start(&path("plain"), &memory)?;
        Ok(Bench { directory, unrecorded, recorded, handler, walks, notes })
    }

    fn round(&self, round: usize, samples: &mut Samples) -> Result<(), BenchError> {
        for (number, (metric, walk, expected)) in self.walks.iter().enumerate() {
            for turn in 0..CASES.len() {
                let case = CASES[(round + turn) % CASES.len()];
                let (ms, found) = self.restore(case, number, walk)?;
                if found != *expected {
                    let reason = format!("{metric}: the guest has read other bytes");
                    return Err(BenchError::Answer { case: case.to_owned(), reason });
                }
                samples.add(case, metric, MS, ms);
            }
        }
        Ok(())
    }

    /// Restores a machine and runs it to its end: milliseconds, and what it has read.
    fn restore(&self, case: &str, number: usize, walk: &Walk) -> Result<(f64, u64), BenchError> {
        let path = |name: &str| self.directory.path().join(name);
        let memory = path("memory");
        let backing = match case {
            PLAIN => Backing::Uffd(&self.handler.socket),
            UNRECORDED => Backing::Uffd(&self.unrecorded.socket),
            FARFORK => Backing::Uffd(&self.recorded[number].socket),
            RESIDENT => Backing::Resident(&memory),
            _ => Backing::File(&memory),
        };
        let mut begun = Instant::now();
        let mut monitor = Monitor::restore(&path("state"), backing).map_err(failed)?;
        if case == RESIDENT {
            // Mapping all of it is not what the bound is about.
            monitor.walk(walk).map_err(failed)?;
            begun = Instant::now();
        }
        let found = monitor.walk(walk).map_err(failed)?;
        Ok((begun.elapsed().as_secs_f64() * 1e3, found))
    }
}

/// `farfork vm serve`, ready.
struct Serve {
    child: Child,
    socket: PathBuf,
}

impl Serve {
    fn start(directory: &Path, tag: &str, options: &[&str]) -> Result<Serve, BenchError> {
        let program = program::farfork()?;
        let socket = directory.join(format!("socket-{tag}"));
        let mut command = Command::new(&program);
        command.args(["vm", "serve"]).arg(format!("{NAME}:{tag}")).arg("--socket").arg(&socket);
        command.args(options);
        command.env("FARFORK_POOL", directory.join("pool"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(io("start", &program))?;
        let stdout = child.stdout.take();
        let serve = Serve { child, socket };
        let mut line = String::new();
        let read = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut line));
        match read {
            Some(Ok(length)) if length > 0 => Ok(serve),
            _ => Err(failed("farfork vm serve does not start")),
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        // All machines have ended: it ends at once.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Answer { case: "vm".to_owned(), reason: error.to_string() }
}
