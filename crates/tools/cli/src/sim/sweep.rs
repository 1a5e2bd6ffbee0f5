//! `farfork sim sweep FILE`: many runs from one file.
//!
//! ```text
//!  [base] options of farfork sim        [[vary]] key, values      every combination of values is a run
//! ```

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;

use farfork_sim::many::{Job, run_all};
use farfork_sim::profile::{self, Profiles};
use farfork_sim::trace::{self, Stream};
use farfork_sim::{Outcome, Settings};
use farfork_sys::words;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::options::{Options, Shared, resolved, set};
use super::output::{Failed, Output, Ran, checksums, during, threads, warn};
use crate::CommandResult;

/// The most runs of a sweep.
const MOST_RUNS: usize = 10_000;

/// The file, and where the results go.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML or JSON file: [base] has the options of farfork sim, each [[vary]] a key and its values. Every combination
    /// is a run.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Threads to use: each simulates one run at a time. Default: one per processor. The results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Write the report to this file, as one HTML page that needs no network. Beside it: the same with the endings
    /// json, csv (one row per run) and time.csv (one row per run and interval).
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    base: Map<String, Value>,
    #[serde(default)]
    vary: Vec<Vary>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vary {
    key: String,
    values: Vec<Value>,
}

/// What makes a trace: its files, its format and the seed.
type TraceKey = (Vec<PathBuf>, Option<&'static str>, u64);
/// The same with files of profiles.
type ProfileKey = (TraceKey, Vec<PathBuf>);

/// A run that was asked for.
struct Planned {
    name: String,
    set: Map<String, Value>,
    /// What it simulates, or why it cannot.
    what: Result<(ProfileKey, Settings), String>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let output = Output::new(args.report.as_deref(), args.json)?;
    let file = read(&args.file)?;
    let directory = args.file.parent().unwrap_or(Path::new(""));
    let planned = plan(&file, directory)
        .map_err(|reason| format!("cannot use sweep {}: {reason}", args.file.display()))?;
    let inputs: Vec<PathBuf> = inputs(&args.file, &file, &planned, directory);
    output.spare(&inputs)?;
    let whats = || planned.iter().filter_map(|run| run.what.as_ref().ok());
    let mut streams: Shared<TraceKey, Stream> = Shared::new();
    for ((key, _), _) in whats() {
        if !streams.contains_key(key) {
            streams.insert(key.clone(), during("reading the trace", None, || open(key)));
        }
    }
    let mut profiles: Shared<ProfileKey, Profiles> = Shared::new();
    for (key, _) in whats() {
        let Some(Ok(stream)) = streams.get(&key.0) else { continue };
        let read = || profile::read(&key.1, &stream.trace).map_err(|error| error.to_string());
        profiles.entry(key.clone()).or_insert_with(read);
    }
    let results = simulate(&planned, &streams, &profiles, threads(args.threads));
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for (run, result) in planned.iter().zip(results) {
        let Planned { name, set, what } = run;
        match (result, what) {
            (Ok((outcome, stream)), Ok(((key, files), settings))) => {
                let checksums = checksums(files)?;
                let mut one = Ran::new(name, settings, &stream.trace, key.2, outcome, checksums);
                one.set = set.clone();
                ran.push(one);
            }
            (result, _) => failed.push(Failed {
                name: name.clone(),
                set: set.clone(),
                reason: result.err().unwrap_or_default(),
            }),
        }
    }
    if ran.is_empty()
        && let Some(one) = failed.first()
    {
        return Err(format!(
            "no run of {} could be simulated: {}",
            args.file.display(),
            one.reason
        )
        .into());
    }
    let mut notes: Vec<String> =
        streams.values().flatten().flat_map(|stream| stream.trace.notes.clone()).collect();
    notes.dedup();
    output.print(&ran, &failed, &notes)?;
    let is_well = failed.is_empty() && !ran.iter().any(Ran::is_partial);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All files that a sweep reads.
fn inputs(path: &Path, file: &File, planned: &[Planned], directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    for (((traces, ..), profiles), _) in planned.iter().filter_map(|run| run.what.as_ref().ok()) {
        all.extend(traces.iter().chain(profiles).cloned());
    }
    let varied =
        file.vary.iter().filter(|vary| vary.key == "policies").flat_map(|vary| &vary.values);
    let policies = file.base.get("policies").into_iter().chain(varied);
    all.extend(policies.filter_map(Value::as_str).map(|path| resolved(Path::new(path), directory)));
    all.sort();
    all.dedup();
    all
}

/// Reads the file. JSON begins with a brace.
fn read(path: &Path) -> Result<File, Box<dyn Error>> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {}", path.display(), words::of(&error)))?;
    let wrong = |reason: String| format!("cannot use sweep {}: {reason}", path.display()).into();
    if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
    } else {
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }
}

/// Every combination of values. The last key varies fastest.
fn plan(file: &File, directory: &Path) -> Result<Vec<Planned>, String> {
    if let Some(empty) = file.vary.iter().find(|vary| vary.values.is_empty()) {
        return Err(format!("key '{}' has no values", empty.key));
    }
    let count = file.vary.iter().try_fold(1usize, |count, vary| {
        count.checked_mul(vary.values.len()).filter(|count| *count <= MOST_RUNS)
    });
    let count = count.ok_or_else(|| format!("it has more than {MOST_RUNS} runs"))?;
    let mut base = Map::new();
    for (key, value) in &file.base {
        set(&mut base, key, value, directory).map_err(|error| error.to_string())?;
    }
    Ok((0..count).map(|number| planned(file, &base, number, directory)).collect())
}

fn planned(file: &File, base: &Map<String, Value>, number: usize, directory: &Path) -> Planned {
    let (mut options, mut chosen, mut left) = (base.clone(), Vec::new(), number);
    for Vary { key, values } in file.vary.iter().rev() {
        chosen.push((key, &values[left % values.len()]));
        left /= values.len();
    }
    chosen.reverse();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names: Vec<String> = chosen
        .iter()
        .map(|(key, value)| format!("{} {}", short(key, &file.vary), text(value)))
        .collect();
    let name = if names.is_empty() { "base".to_owned() } else { names.join(", ") };
    let mut what = || -> Result<(ProfileKey, Settings), Box<dyn Error>> {
        for (key, value) in &chosen {
            set(&mut options, key, value, directory)?;
        }
        let options = Options::from(&options)?;
        let key = (options.trace(directory)?, options.profiles(directory));
        Ok((key, options.settings(directory)?))
    };
    let what = what().map_err(|error| error.to_string());
    let set = chosen.iter().map(|(key, value)| ((*key).clone(), (*value).clone())).collect();
    Planned { name, set, what }
}

/// The last part of a key, if no other key ends with it.
fn short<'k>(key: &'k str, all: &[Vary]) -> &'k str {
    let last = |key: &'k str| key.rsplit('.').next().unwrap_or(key);
    let same = all.iter().filter(|vary| vary.key.rsplit('.').next() == Some(last(key)));
    if same.count() == 1 { last(key) } else { key }
}

fn open((paths, format, seed): &TraceKey) -> Result<Stream, String> {
    let format = format.map(str::parse).transpose()?;
    let stream = trace::open(paths, format, *seed).map_err(|error| error.to_string())?;
    warn(&stream.trace);
    Ok(stream)
}

/// Simulates all runs that can be. Results are in the order of the runs.
fn simulate<'s>(
    planned: &[Planned],
    streams: &'s Shared<TraceKey, Stream>,
    profiles: &Shared<ProfileKey, Profiles>,
    threads: usize,
) -> Vec<Result<(Outcome, &'s Stream), String>> {
    let job = |run: &Planned| {
        let (key, settings) = run.what.clone()?;
        let stream = streams.get(&key.0).ok_or("no trace")?.as_ref().map_err(Clone::clone)?;
        let profiles = profiles.get(&key).ok_or("no profiles")?.as_ref().map_err(Clone::clone)?;
        Ok((stream, Job { stream, profiles, settings }))
    };
    let jobs: Vec<Result<(&Stream, Job<'_>), String>> = planned.iter().map(job).collect();
    let good: Vec<Job<'_>> = jobs.iter().flatten().map(|(_, job)| *job).collect();
    let all = good.iter().map(|job| job.stream.count()).sum();
    let done = AtomicU64::new(0);
    let work = || run_all(&good, threads, &done);
    let mut outcomes = during("simulating", Some((&done, all)), work).into_iter();
    let result = |job: Result<(&'s Stream, Job<'_>), String>| {
        let (stream, _) = job?;
        let outcome = outcomes.next().ok_or("it has no result")?;
        Ok((outcome.map_err(|error| error.to_string())?, stream))
    };
    jobs.into_iter().map(result).collect()
}
