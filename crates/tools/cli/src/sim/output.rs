//! What simulations print and write.

use std::error::Error;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sim::report::Report;
use farfork_sim::trace::{self, Trace};
use farfork_sim::{Outcome, Scheduling, Settings, Shown, csv, page};
use farfork_sys::words;
use serde_json::{Map, Value, json};

use crate::output::print_json;
use crate::progress::Progress;
use crate::size;

/// A run that has ended.
pub(crate) struct Ran {
    name: String,
    settings: Settings,
    report: Report,
    outcome: Outcome,
    /// The values that make it different from the others.
    pub(crate) set: Map<String, Value>,
    /// SHA-256 of each file with a profile.
    profiles: Value,
}

/// SHA-256 of files, by their names.
pub(crate) fn checksums(paths: &[PathBuf]) -> Result<Value, Box<dyn Error>> {
    let mut all = Map::new();
    for path in paths {
        all.insert(path.display().to_string(), trace::checksum(path)?.into());
    }
    Ok(all.into())
}

impl Ran {
    /// A run of a trace.
    pub(crate) fn new(
        name: &str,
        settings: &Settings,
        trace: &Trace,
        seed: u64,
        outcome: Outcome,
        profiles: Value,
    ) -> Ran {
        let report = Report::of(trace, &outcome.summary, outcome.wall, seed);
        let set = Map::from_iter([("policies".to_owned(), Value::from(name))]);
        Ran { name: name.to_owned(), settings: *settings, report, outcome, set, profiles }
    }

    /// Its figures, and what was simulated.
    fn document(&self) -> Result<Value, Box<dyn Error>> {
        let mut document = serde_json::to_value(&self.report)?;
        if self.settings.scheduling == Scheduling::Paper {
            document["settings"] = json!({
                "policy": "paper",
                "policies": {"share": self.settings.policies.share},
                "profiles_sha256": self.profiles,
            });
            return Ok(document);
        }
        document["settings"] = json!({
            "nodes": self.settings.nodes,
            "node_memory_bytes": self.settings.node_bytes,
            "processors": self.outcome.processors,
            "ghosts": self.settings.ghosts,
            "pool_bandwidth": self.settings.pool_bandwidth,
            "far_bandwidth": self.settings.far_bandwidth,
            "far_bytes": self.settings.far_bytes,
            "pool_bytes": self.settings.pool_bytes,
            "policies": self.settings.policies,
            "profiles_sha256": self.profiles,
        });
        Ok(document)
    }

    /// Whether rows of its trace were malformed.
    pub(crate) fn is_partial(&self) -> bool {
        self.report.rows_malformed > 0
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            name: &self.name,
            report: &self.report,
            summary: &self.outcome.summary,
            settings: &self.settings,
        }
    }
}

/// A run that could not take place: its values, and why.
pub(crate) struct Failed {
    pub(crate) name: String,
    pub(crate) set: Map<String, Value>,
    pub(crate) reason: String,
}

/// Where results go.
pub(crate) struct Output<'a> {
    report: Option<&'a Path>,
    is_json: bool,
}

impl<'a> Output<'a> {
    /// A report in files, if that is wanted, and figures on standard output.
    pub(crate) fn new(report: Option<&'a Path>, is_json: bool) -> Result<Self, Box<dyn Error>> {
        let end = report.and_then(Path::extension);
        if let (Some(report), true) = (report, end.is_some_and(|end| end == "json" || end == "csv"))
        {
            let path = report.display();
            return Err(format!("cannot write the report to {path}: give a name that ends in .html; files with the endings json and csv are written beside it").into());
        }
        Ok(Output { report, is_json })
    }

    /// Refuses a report one of whose files would overwrite what is read.
    pub(crate) fn spare<'i>(
        &self,
        inputs: impl IntoIterator<Item = &'i PathBuf>,
    ) -> Result<(), Box<dyn Error>> {
        let Some(report) = self.report else { return Ok(()) };
        let written: Vec<PathBuf> = [&[report.to_owned()][..], &beside(report)].concat();
        let written: Vec<PathBuf> =
            written.iter().filter_map(|path| path.canonicalize().ok()).collect();
        for input in inputs {
            // Every file of a directory with a trace belongs to it.
            let Ok(real) = input.canonicalize() else { continue };
            if let Some(path) = written.iter().find(|path| path.starts_with(&real)) {
                let path = path.display();
                return Err(format!(
                    "the report would overwrite {path}, which is read; give --report another name"
                )
                .into());
            }
        }
        Ok(())
    }

    /// Prints and writes runs.
    pub(crate) fn print(
        &self,
        ran: &[Ran],
        failed: &[Failed],
        notes: &[String],
    ) -> Result<(), Box<dyn Error>> {
        let document = document(ran, failed)?;
        if let Some(path) = self.report {
            let shown: Vec<Shown<'_>> = ran.iter().map(Ran::shown).collect();
            write(path, &page(&shown, notes))?;
            let [json, figures, timelines] = beside(path);
            write(&json, &format!("{document:#}\n"))?;
            write(&figures, &csv::figures(&shown))?;
            write(&timelines, &csv::timelines(&shown))?;
        }
        match ran {
            _ if self.is_json => print_json(&document)?,
            [one] if failed.is_empty() => print(&one.report, one.settings.scheduling.words()),
            _ => table(ran, failed),
        }
        Ok(())
    }
}

/// The files beside a page: figures as JSON and as CSV, and timelines as CSV.
fn beside(page: &Path) -> [PathBuf; 3] {
    ["json", "csv", "time.csv"].map(|end| page.with_extension(end))
}

/// The report of one run, or all of many.
fn document(ran: &[Ran], failed: &[Failed]) -> Result<Value, Box<dyn Error>> {
    if let ([one], []) = (ran, failed)
        && one.set.keys().all(|key| key == "policies")
    {
        return one.document();
    }
    let mut runs = Vec::new();
    for one in ran {
        runs.push(json!({"set": one.set, "result": one.document()?}));
    }
    runs.extend(failed.iter().map(|one| json!({"set": one.set, "error": one.reason})));
    Ok(json!({"runs": runs, "version": env!("CARGO_PKG_VERSION"), "modelled": true}))
}

/// Writes a file anew.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text)
        .map_err(|error| format!("cannot write {}: {}", path.display(), words::of(&error)))
}

/// Reports malformed rows and assumptions on stderr.
pub(crate) fn warn(trace: &Trace) {
    for row in &trace.malformed {
        eprintln!("farfork: malformed row: {row}");
    }
    let more = trace.rows_malformed - trace.malformed.len() as u64;
    if more > 0 {
        eprintln!("farfork: {more} more rows are malformed");
    }
    for note in &trace.notes {
        eprintln!("farfork: {note}");
    }
}

/// Does long work while a terminal shows how many calls of all are done, or else the time.
pub(crate) fn during<T>(
    doing: &'static str,
    calls: Option<(&AtomicU64, u64)>,
    work: impl FnOnce() -> T,
) -> T {
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        let show = || {
            let mut progress = Progress::new(doing);
            while progress.is_shown() && !is_over.load(Ordering::Relaxed) {
                thread::park_timeout(Duration::from_millis(100));
                match calls {
                    Some((done, all)) => progress.calls(done.load(Ordering::Relaxed), all),
                    None => progress.time(begun.elapsed()),
                }
            }
        };
        // Without a thread for it there is no progress.
        let shower = thread::Builder::new().spawn_scoped(scope, show);
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        if let Ok(shower) = shower {
            shower.thread().unpark();
        }
        result
    })
}

/// Threads to use: as many as wanted, or one per processor.
pub(crate) fn threads(wanted: Option<u32>) -> usize {
    let all = || thread::available_parallelism().map_or(1, NonZero::get);
    wanted.map_or_else(all, |wanted| wanted as usize)
}

fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

fn print(report: &Report, decided: &str) {
    let Report { latency_us: latency, starts, instances, memory_bytes: memory, .. } = report;
    println!("modelled: {decided}, all times and memory are simulated");
    println!(
        "requests    {} ({} completed, {} failed; {} rows malformed)",
        report.requests, report.completed, report.failed, report.rows_malformed
    );
    println!(
        "latency     mean {:.1} ms, P50 {:.1} ms, P99 {:.1} ms, longest {:.1} ms",
        ms(latency.mean),
        ms(latency.p50),
        ms(latency.p99),
        ms(latency.max)
    );
    println!("violations  {} calls took over 110 % of their run", report.violations);
    println!(
        "starts      {} cold, {} clone, {} ghost, {} warm",
        starts.cold, starts.clone, starts.ghost, starts.warm
    );
    println!("instances   mean {:.2}, most {}", instances.mean, instances.max);
    println!(
        "memory      near: mean {}, P50 {}, most {}; pool: most {}; far: most {}",
        size::show(memory.near.mean),
        size::show(memory.near.p50),
        size::show(memory.near.max),
        size::show(memory.pool),
        size::show(memory.far)
    );
    let used = report.utilisation;
    if let (Some(mean), Some(p50), Some(p90)) =
        (used.percent_mean, used.percent_p50, used.percent_p90)
    {
        println!(
            "provisioned calls use {mean:.1} % of it (mean), P50 {p50:.1} %, P90 {p90:.1} % ({} calls of the trace)",
            used.calls
        );
    }
    println!("took        {:.1} s, {:.0} requests/s", report.wall_s, report.requests_per_s);
    let synthetic = if report.synthetic { " (synthetic)" } else { "" };
    println!("seed        {}, trace {}{synthetic}", report.seed, report.trace_sha256);
}

/// Runs, one per line.
fn table(ran: &[Ran], failed: &[Failed]) {
    let mut decided: Vec<&str> = ran.iter().map(|one| one.settings.scheduling.words()).collect();
    decided.sort_unstable();
    decided.dedup();
    println!("modelled: {}, all times and memory are simulated", decided.join("; "));
    let names = ran.iter().map(|one| &one.name).chain(failed.iter().map(|one| &one.name));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0).max(3);
    println!(
        "{:width$}  {:>9} {:>7} {:>10} {:>10} {:>9} {:>7} {:>7} {:>10} {:>10} {:>10}",
        "run",
        "requests",
        "failed",
        "P50 ms",
        "P99 ms",
        "violated",
        "cold",
        "clone",
        "near mean",
        "near most",
        "pool most"
    );
    for Ran { name, report, .. } in ran {
        let memory = &report.memory_bytes;
        println!(
            "{name:width$}  {:>9} {:>7} {:>10.1} {:>10.1} {:>9} {:>7} {:>7} {:>10} {:>10} {:>10}",
            report.requests,
            report.failed,
            ms(report.latency_us.p50),
            ms(report.latency_us.p99),
            report.violations,
            report.starts.cold,
            report.starts.clone + report.starts.ghost,
            size::show(memory.near.mean),
            size::show(memory.near.max),
            size::show(memory.pool)
        );
    }
    for Failed { name, reason, .. } in failed {
        println!("{name:width$}  not simulated: {reason}");
    }
}
