//! The autoscaler under bursts, with its own policies and with others: `farfork bench porter`.
//!
//! ```text
//!  set up   ask a fresh process of each function ─► a platform: deploy, call until all have images
//!  rounds   for each trace, for each amount of memory, for each system: a platform with what was set
//!            up ─► call each function once ─► replay the trace, open-loop
//! ```
//! Systems differ in nothing but the settings of their policies, and those that make no images begin
//! without any. Every answer is held against that of a fresh process; a call that fails counts as one
//! that took as long as any may.

mod client;
mod functions;
mod goals;
mod platform;
mod replay;
mod systems;
mod trace;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_porter::life::snapshot::Image;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use self::functions::Functions;
use self::platform::{Platform, Surroundings};
use self::replay::{Replayed, replay};
use self::systems::System;
use self::trace::Trace;
use crate::error::{BenchError, io};
use crate::machine::Machine;
use crate::report::Report;
use crate::samples::Samples;
use crate::subject::source_root;
use crate::testbed::Place;
use crate::{Options, progress};

/// Memory of each node, in MiB, by its share of what is ample.
const MEMORY: [(&str, u64); 3] = [("100 %", 4096), ("50 %", 2048), ("25 %", 1024)];
const POOL_BYTES: u64 = 3 << 30;
/// Room for the base image alone.
const SMALL_POOL_BYTES: u64 = 512 << 20;
/// As many calls as make an image, at most.
const WARM_CALLS: usize = 32;
/// How long the last image may take.
const IMAGE: Duration = Duration::from_secs(60);
/// Directories of a platform's state.
const WITH_IMAGES: &str = "with-images";
const WITHOUT: &str = "without";

/// Metrics that other files look for.
mod metric {
    pub const P50: &str = "P50";
    pub const P99: &str = "P99";
    pub const P99_OF_FUNCTIONS: &str = "P99, geometric mean of the functions'";
    pub const PERIOD: &str = "time for each call that was answered";
}

/// Everything around the platforms.
struct Bed {
    root: PathBuf,
    functions: Functions,
    runtime: Runtime,
    /// With an image of each function, once they are made.
    pool: Place,
    /// With the base image alone.
    small: Place,
    /// States and sockets of platforms, where functions can read what is theirs.
    place: TempDir,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let machine = Machine::this();
    options.check(&systems::NAMES)?;
    let root = source_root().ok_or_else(|| BenchError::Lacking {
        doing: "measure the platform".to_owned(),
        reason: "the sample functions are not below this directory, or not set up".to_owned(),
        remedy: "run this in farfork's source directory, after setup/all.sh",
    })?;
    let files = trace::files(&root.join("bench/traces"))?;
    let known = functions::names();
    let traces =
        files.iter().map(|file| Trace::read(file, &known)).collect::<Result<Vec<_>, _>>()?;
    let systems: Vec<System> =
        systems::all().into_iter().filter(|system| options.wants(system.name)).collect();
    let bed = Bed::new(root)?;
    bed.set_up(&systems)?;
    let (traces, memory) = match options.quick {
        true => (&traces[..1], &MEMORY[2..]),
        false => (&traces[..], &MEMORY[..]),
    };
    let mut samples = Samples::default();
    for (trace, number) in traces.iter().zip(1..) {
        for (share, megabytes) in memory {
            for system in &systems {
                progress(&format!("trace {number} of {}, {share}, {}", traces.len(), system.name));
                let replayed = bed.replay(system, *megabytes << 20, trace)?;
                add(&mut samples, &format!("{share}/{}", system.name), trace, &replayed);
            }
        }
    }
    Ok(Report {
        benchmark: "porter",
        quick: options.quick,
        machine,
        version: env!("CARGO_PKG_VERSION"),
        goals: goals::judge(&samples),
        rows: samples.rows(),
        notes: notes(),
    })
}

impl Bed {
    fn new(root: PathBuf) -> Result<Bed, BenchError> {
        let functions = Functions::load(&root)?;
        let (pool, small) = (Place::new(POOL_BYTES)?, Place::new(SMALL_POOL_BYTES)?);
        // Not below /tmp: functions have one of their own.
        let place =
            TempDir::with_prefix_in("farfork-bench-", "/run").map_err(io("make", "/run"))?;
        let may_pass = Permissions::from_mode(0o711);
        fs::set_permissions(place.path(), may_pass).map_err(io("open", place.path()))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start threads in", place.path()))?;
        Ok(Bed { root, functions, runtime, pool, small, place })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, system: &System, state: &Path, bytes: u64) -> Result<Platform, BenchError> {
        let pool = if system.has_images { &self.pool } else { &self.small };
        Platform::start(&Surroundings {
            python: &self.root.join(".venv/bin/python"),
            pool: pool.pool.path(),
            state,
            run: &self.path("run"),
            node_bytes: bytes,
            policies: &system.policies,
        })
    }

    /// Deploys all functions, and has images made of them for the systems that begin with some.
    fn set_up(&self, systems: &[System]) -> Result<(), BenchError> {
        let first = |has_images| systems.iter().find(|system| system.has_images == has_images);
        for (system, name) in [(first(true), WITH_IMAGES), (first(false), WITHOUT)] {
            let Some(system) = system else { continue };
            progress(&format!("setting functions up, {name}"));
            let platform = self.start(system, &self.path(name), MEMORY[0].1 << 20)?;
            self.runtime.block_on(async {
                for (name, function) in self.functions.iter() {
                    platform.client.deploy(name, &function.action).await?;
                }
                if system.has_images { self.warm(&platform).await } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    /// Calls each function until it has an image.
    async fn warm(&self, platform: &Platform) -> Result<(), BenchError> {
        for (name, _) in self.functions.iter() {
            for number in 0..WARM_CALLS {
                self.call_once(platform, name, number).await?;
                let seen = platform.client.snapshot().await?;
                match seen.functions.get(&format!("guest/{name}")).map(|function| function.image) {
                    Some(Image::Ready) => break,
                    Some(Image::Making) => self.await_image(platform, name).await?,
                    _ => {}
                }
            }
            self.await_image(platform, name).await?;
        }
        Ok(())
    }

    async fn await_image(&self, platform: &Platform, name: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        while begun.elapsed() < IMAGE {
            let seen = platform.client.snapshot().await?;
            if seen.functions.get(&format!("guest/{name}")).is_some_and(|f| f.image == Image::Ready)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let reason = "there is none".to_owned();
        Err(BenchError::Platform { doing: format!("making an image of {name}"), reason })
    }

    async fn call_once(
        &self,
        platform: &Platform,
        name: &str,
        number: usize,
    ) -> Result<(), BenchError> {
        let doing = || format!("calling {name}");
        let Some(example) = self.functions.example(name, number) else { return Ok(()) };
        let answer = platform.client.call(name, &example.args).await;
        let answer = answer.map_err(|reason| BenchError::Platform { doing: doing(), reason })?;
        let result = &answer.document()["response"]["result"];
        match answer.status == 200 && example.is_answered_by(result) {
            true => Ok(()),
            false => Err(BenchError::Platform { doing: doing(), reason: answer.in_words() }),
        }
    }

    /// One trace on a platform of its own, which begins with what was set up.
    fn replay(&self, system: &System, bytes: u64, trace: &Trace) -> Result<Replayed, BenchError> {
        let begin = self.path(if system.has_images { WITH_IMAGES } else { WITHOUT });
        let state = self.path("state");
        copy(&begin, &state)?;
        let platform = self.start(system, &state, bytes)?;
        let replayed = self.runtime.block_on(async {
            for (name, _) in self.functions.iter() {
                self.call_once(&platform, name, 0).await?;
            }
            replay(&platform.client, trace, &self.functions).await
        });
        drop(platform);
        fs::remove_dir_all(&state).map_err(io("remove", &state))?;
        replayed
    }
}

/// Copies a directory, with what its files are.
fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    let copied = Command::new("cp").arg("--archive").arg(from).arg(to).status();
    let copied = copied.map_err(io("copy", from))?;
    let failed = || std::io::Error::other("cp says why");
    if copied.success() { Ok(()) } else { Err(io("copy", from)(failed())) }
}

/// What came of one trace becomes one sample of each metric.
fn add(samples: &mut Samples, case: &str, trace: &Trace, replayed: &Replayed) {
    let all: Vec<f64> = replayed.calls.iter().map(latency_us).collect();
    samples.add(case, metric::P50, "us", percentile(&all, 50));
    samples.add(case, metric::P99, "us", percentile(&all, 99));
    let mut logarithms = Vec::new();
    for function in trace.functions() {
        let own = replayed.calls.iter().filter(|call| call.function == function);
        let own: Vec<f64> = own.map(latency_us).collect();
        let case = format!("{case}/{function}");
        samples.add(&case, metric::P50, "us", percentile(&own, 50));
        samples.add(&case, metric::P99, "us", percentile(&own, 99));
        logarithms.push(percentile(&own, 99).ln());
    }
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    samples.add(case, metric::P99_OF_FUNCTIONS, "us", mean.exp());
    let good = replayed.calls.iter().filter(|call| call.outcome.is_ok());
    let in_time = good.filter(|call| call.ended <= trace.span()).count();
    let period = trace.span().as_secs_f64() * 1e6 / in_time.max(1) as f64;
    samples.add(case, metric::PERIOD, "us", period);
    let share = |count: usize| 100.0 * count as f64 / replayed.calls.len().max(1) as f64;
    samples.add(case, "answered before the trace's end", "%", share(in_time));
    let failed = replayed.calls.iter().filter(|call| call.outcome.is_err()).count();
    samples.add(case, "failed", "%", share(failed));
    for start in ["cold", "clone", "warm"] {
        let is_it = |call: &&replay::Call| call.outcome.as_ref().is_ok_and(|kind| kind == start);
        let metric = match start {
            "cold" => "cold starts",
            "clone" => "clones",
            _ => "warm calls",
        };
        samples.add(case, metric, "%", share(replayed.calls.iter().filter(is_it).count()));
    }
    let bytes = &replayed.local_bytes;
    let sum: u64 = bytes.iter().sum();
    samples.add(case, "local memory, mean", "bytes", sum as f64 / bytes.len().max(1) as f64);
    let most = bytes.iter().max().copied().unwrap_or_default();
    samples.add(case, "local memory, most", "bytes", most as f64);
}

/// One that failed took as long as any may.
fn latency_us(call: &replay::Call) -> f64 {
    match call.outcome {
        Ok(_) => call.took.as_secs_f64() * 1e6,
        Err(_) => client::PATIENCE.as_secs_f64() * 1e6,
    }
}

/// The least value that so many of a hundred do not exceed.
fn percentile(values: &[f64], share: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * share).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

fn notes() -> Vec<String> {
    [
        "Pool and local memory are the same DRAM here: what pages cost in a slower pool is in none of \
         these figures, and so is what tiering saves.",
        "cold-start and keep-warm are the same platform without images of functions: their first \
         instances are clones of the runtime's base image in ghosts that wait, which is faster than a \
         container that starts an interpreter.",
        "CRIU is not measured here: it restores no function into a container that waits; full-copy \
         does what restoring from files in memory does, with farfork's plan.",
    ]
    .map(str::to_owned)
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((percentile(&values, 50), percentile(&values, 99)), (100.0, 198.0));
        assert_eq!((percentile(&[3.0], 50), percentile(&[3.0], 99)), (3.0, 3.0));
        assert_eq!(percentile(&[1.0, 2.0], 99), 2.0);
        assert!(percentile(&[], 99).is_nan());
    }

    #[test]
    fn what_fails_counts_as_slow_and_not_as_throughput() {
        let arrival = |at| trace::Arrival { at: Duration::from_secs(at), function: "f".to_owned() };
        let trace = Trace { arrivals: (0..=4).map(arrival).collect() };
        let call = |ended: u64, outcome: Result<&str, &str>| replay::Call {
            function: "f".to_owned(),
            took: Duration::from_secs(1),
            ended: Duration::from_secs(ended),
            outcome: outcome.map(str::to_owned).map_err(str::to_owned),
        };
        let calls = vec![
            call(1, Ok("warm")),
            call(2, Ok("clone")),
            call(3, Err("no")),
            call(4, Ok("warm")),
            call(5, Ok("cold")),
        ];
        let mut samples = Samples::default();
        add(&mut samples, "s", &trace, &Replayed { calls, local_bytes: vec![1, 3] });
        let one = |metric: &str| samples.values("s", metric)[0];
        assert_eq!(one(metric::P50), 1e6);
        assert_eq!(one(metric::P99), 90e6);
        assert_eq!(one(metric::PERIOD), 4e6 / 3.0, "the last came too late, one failed");
        assert_eq!((one("failed"), one("warm calls"), one("cold starts")), (20.0, 40.0, 20.0));
        assert_eq!((one("local memory, mean"), one("local memory, most")), (2.0, 3.0));
        assert_eq!(samples.values("s/f", metric::P99), [90e6]);
    }
}
