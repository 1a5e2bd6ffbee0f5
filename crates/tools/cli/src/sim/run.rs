//! `farfork sim --trace FILE…`: one run, or one per set of policies.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

use farfork_sim::many::{Job, run_all};
use farfork_sim::summary::Summary;
use farfork_sim::trace::{self, Format, Stream};
use farfork_sim::{JournalFile, Outcome, Scheduling, Settings, profile, run_journalled};
use farfork_sys::words;

use super::output::{Output, Ran, checksums, during, warn};
use crate::{CommandResult, serve, size};

/// The trace, and what serves it.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Files of one trace: calls, and tables that belong to them. A directory stands for its files that end in
    /// .csv.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Format of the trace: own, azure2019, azure2021, huawei2025 or invitro. Default: what the headers say.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Profiles of functions. Functions without one take what the median function of the benchmarks takes.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    profile: Vec<PathBuf>,
    /// JSON files with settings of the policies, as for farfork serve. Settings not given keep their defaults. Several
    /// files give a run each, side by side in one report.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    policies: Vec<PathBuf>,
    /// What decides: the platform's scheduler (platform, the default), or the paper of elastic memory (paper), which starts a new instance for each call that finds none
    /// idle, keeps it for 60 s after its last call, and knows no queue and no limits of memory; of the policies it
    /// takes only 'share'.
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["nodes", "node_memory", "pool", "processors", "ghosts", "pool_bandwidth", "far_bandwidth", "far", "oracle"])]
    policy: Option<Scheduling>,
    /// Number of nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    nodes: u32,
    /// Memory budget of the instances of one node.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    node_memory: u64,
    /// Processors of each node, which its calls and starts share: more of them than processors slow each other down.
    /// Default: the cores of the profiles, if they name any; else they do not slow each other down.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    processors: Option<u32>,
    /// Simulate ghosts: containers made in advance, empty or with an image, as the platform keeps them. Without this each
    /// start finds an empty one.
    #[arg(long)]
    ghosts: bool,
    /// Bytes that all nodes move from and to the pool in a second: starts of clones, checkpoints, promotion, and calls that
    /// read from it. Default: not limited.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pool_bandwidth: Option<u64>,
    /// The same of far memory, from which the calls of instances with a share of near memory read the rest.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    far_bandwidth: Option<u64>,
    /// Size of far memory. Where it is full, instances have all memory near. Default: not limited.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    far: Option<u64>,
    /// Size of the pool.
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    pool: u64,
    /// Seed of everything random: equal seeds give equal results.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads to use. One run is sequential and uses one; several runs are simulated side by side. Default: one per
    /// processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Write the report to this file, as one HTML page that needs no network. Beside it: the same with the endings
    /// json, csv (one row per run) and time.csv (one row per interval).
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the decisions to this file, which is made anew: a journal for farfork replay, with times in
    /// milliseconds since the first call. For one run.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Run the platform itself under a simulated clock, instead of its decisions alone. Slow, and the whole trace is
    /// in memory; for comparison. A journal is begun anew after 64 MiB then, and the previous part is kept.
    #[arg(long)]
    oracle: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. A trace with malformed rows is a failure, though the rest of it is simulated.
pub(crate) fn run(args: &RunArgs) -> CommandResult {
    if args.policies.len() > 1 && (args.oracle || args.journal.is_some()) {
        return Err("--oracle and --journal are for one run: give one file with --policies".into());
    }
    let output = Output::new(args.report.as_deref(), args.json)?;
    output.spare(args.trace.iter().chain(&args.profile).chain(&args.policies))?;
    let jobs = settings(args)?;
    let read = || trace::open(&args.trace, args.format, args.seed);
    let stream = during("reading the trace", None, read)?;
    warn(&stream.trace);
    let profiles = profile::read(&args.profile, &stream.trace)?;
    let results = if let [(_, settings)] = &*jobs {
        vec![one(args, &stream, &profiles, settings)]
    } else {
        let job = |(_, settings): &(String, Settings)| Job {
            stream: &stream,
            profiles: &profiles,
            settings: *settings,
        };
        let all: Vec<Job<'_>> = jobs.iter().map(job).collect();
        let done = AtomicU64::new(0);
        let count = stream.count() * all.len() as u64;
        let work = || run_all(&all, super::output::threads(args.threads), &done);
        during("simulating", Some((&done, count)), work)
            .into_iter()
            .map(|result| result.map_err(Into::into))
            .collect()
    };
    let (mut ran, checksums) = (Vec::new(), checksums(&args.profile)?);
    for ((name, settings), result) in jobs.iter().zip(results) {
        let checksums = checksums.clone();
        ran.push(Ran::new(name, settings, &stream.trace, args.seed, result?, checksums));
    }
    output.print(&ran, &[], &stream.trace.notes)?;
    Ok(if stream.trace.rows_malformed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The name of each run, and what it simulates.
fn settings(args: &RunArgs) -> Result<Vec<(String, Settings)>, Box<dyn Error>> {
    let of = |policies| Settings {
        nodes: args.nodes,
        node_bytes: args.node_memory,
        pool_bytes: args.pool,
        policies,
        scheduling: args.policy.unwrap_or_default(),
        processors: args.processors,
        ghosts: args.ghosts,
        pool_bandwidth: args.pool_bandwidth,
        far_bandwidth: args.far_bandwidth,
        far_bytes: args.far,
    };
    if args.policies.is_empty() {
        return Ok(vec![("default policies".to_owned(), of(farfork_policy::Settings::default()))]);
    }
    let stem = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let named = |path: &PathBuf| {
        let same = args.policies.iter().filter(|other| stem(other) == stem(path)).count();
        let name = if same == 1 { stem(path) } else { path.display().to_string() };
        Ok((name, of(serve::policies(path)?)))
    };
    args.policies.iter().map(named).collect()
}

/// One run, with a journal if that is wanted.
fn one(
    args: &RunArgs,
    stream: &Stream,
    profiles: &profile::Profiles,
    settings: &Settings,
) -> Result<Outcome, Box<dyn Error>> {
    let failed = |path: &Path, error: &io::Error| {
        format!("cannot write {}: {}", path.display(), words::of(error))
    };
    let path = args.journal.as_deref();
    let file = path.map(|path| File::create(path).map_err(|error| failed(path, &error)));
    let file = file.transpose()?;
    if args.oracle {
        let journal =
            path.map(|path| JournalFile::open(path).map_err(|error| failed(path, &error)));
        let (journal, trace) = (journal.transpose()?, stream.clone().whole()?);
        let work = || run_journalled(&trace, profiles, settings, journal);
        let ended = during("simulating", None, work)?;
        let summary = Summary::of(&ended);
        return Ok(Outcome { summary, processors: ended.processors, wall: ended.wall });
    }
    let mut file = file.map(BufWriter::new);
    let done = AtomicU64::new(0);
    let mut journal = file.as_mut();
    let work = || {
        let journal = journal.as_mut().map(|file| file as &mut dyn Write);
        farfork_sim::serve(stream, profiles, settings, journal, &done)
    };
    let outcome = during("simulating", Some((&done, stream.count())), work)?;
    if let (Some(file), Some(path)) = (&mut file, path) {
        file.flush().map_err(|error| failed(path, &error))?;
    }
    Ok(outcome)
}
