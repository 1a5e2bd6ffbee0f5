//! `farfork sim`.

use std::error::Error;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use farfork_sim::fast::{self, FINEST_US};
use farfork_sim::profile::Profiles;
use farfork_sim::report::Report;
use farfork_sim::trace::{self, Format, Trace};
use farfork_sim::{Ended, JournalFile, Settings, page, profile, run_journalled};
use farfork_sys::words;

use crate::output::print_json;
use crate::{CommandResult, serve, size};

/// The trace, and what serves it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files of one trace: calls, and tables that belong to them.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Format of the trace: own, azure2019 or azure2021. Default: what the header of the first file says.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Profiles of functions. Functions without one take what the median function of the benchmarks takes.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    profile: Vec<PathBuf>,
    /// JSON file with settings of the policies, as for farfork serve. Settings not given keep their defaults.
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
    /// Number of nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Memory budget of the instances of one node.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    node_memory: u64,
    /// Size of the pool.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    pool: u64,
    /// Seed of everything random: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads to use. One run is sequential and uses one, whatever is given.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Write the report to this file, as one HTML page that needs no network.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the decisions to this file, which is made anew: a journal for farfork replay, with times in
    /// milliseconds since the first call.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Run the platform itself under a simulated clock, instead of its decisions alone. Slow; for comparison. A
    /// journal is begun anew after 64 MiB then, and the previous part is kept.
    #[arg(long)]
    oracle: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A trace with malformed rows is a failure, though the rest of it is simulated.
pub(crate) fn run(args: &Args) -> CommandResult {
    let policies = args.policies.as_deref().map(serve::policies).transpose()?;
    let settings = Settings {
        nodes: args.nodes,
        node_bytes: args.node_memory,
        pool_bytes: args.pool,
        policies: policies.unwrap_or_default(),
    };
    let trace = trace::read(&args.trace, args.format, args.seed)?;
    warn(&trace);
    let profiles = profile::read(&args.profile, &trace)?;
    let ended = simulate(args, &trace, &profiles, &settings)?;
    let report = Report::new(&trace, &ended, args.seed);
    if let Some(path) = &args.report {
        fs::write(path, page(&trace, &ended, &settings, &report))
            .map_err(|error| format!("cannot write {}: {}", path.display(), words::of(&error)))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&report);
    }
    Ok(if report.rows_malformed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn simulate(
    args: &Args,
    trace: &Trace,
    profiles: &Profiles,
    settings: &Settings,
) -> Result<Ended, Box<dyn Error>> {
    let failed = |path: &Path, error: &io::Error| {
        format!("cannot write {}: {}", path.display(), words::of(error))
    };
    let path = args.journal.as_deref();
    let file = path.map(|path| fs::File::create(path).map_err(|error| failed(path, &error)));
    let file = file.transpose()?;
    if args.oracle {
        let journal =
            path.map(|path| JournalFile::open(path).map_err(|error| failed(path, &error)));
        return Ok(run_journalled(trace, profiles, settings, journal.transpose()?)?);
    }
    let mut file = file.map(BufWriter::new);
    let journal = file.as_mut().map(|file| file as &mut dyn Write);
    let ended = fast::run(trace, profiles, settings, FINEST_US, journal)?;
    if let (Some(file), Some(path)) = (&mut file, path) {
        file.flush().map_err(|error| failed(path, &error))?;
    }
    Ok(ended)
}

/// Reports malformed rows and assumptions on stderr.
fn warn(trace: &Trace) {
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

fn print(report: &Report) {
    let ms = |us: u64| us as f64 / 1000.0;
    let Report { latency_us: latency, starts, instances, memory_bytes: memory, .. } = report;
    println!("modelled: the platform's scheduler decided, all times and memory are simulated");
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
        "memory      near: mean {}, P50 {}, most {}; pool: most {}",
        size::show(memory.near.mean),
        size::show(memory.near.p50),
        size::show(memory.near.max),
        size::show(memory.pool)
    );
    println!("took        {:.1} s, {:.0} requests/s", report.wall_s, report.requests_per_s);
    println!("seed        {}, trace {}", report.seed, report.trace_sha256);
}
