//! `farfork logs`.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::activation::Activation;
use super::remote::{Remote, encoded, path};
use crate::CommandResult;
use crate::output::print_json;
use crate::printable::shown;

/// Activations of one request, with their logs: each may have megabytes.
const PAGE: usize = 20;
/// Activations of one request without logs: the platform's maximum.
const KEYS: usize = 200;
/// Limit of `--limit`.
const MOST: u64 = 200;
/// Interval of queries with `--follow`.
const POLL: Duration = Duration::from_secs(1);
/// A record appears when its call ends, and is found by the time of its start. The longest call takes
/// less than this.
const LATE_MS: u64 = 310_000;
/// Most calls take less than this. Each query looks for these.
const SOON_MS: u64 = 15_000;
/// One of so many queries looks for all of them.
const WHOLE: u64 = 10;
const DOING: &str = "reading logs";

/// Start time of an activation, and its id.
type Key = (u64, String);

/// The logs to show.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A function, or the id of an activation. Default: all functions.
    #[arg(value_name = "FUNCTION|ID")]
    what: Option<String>,
    #[command(flatten)]
    remote: Remote,
    /// Number of activations to show, the latest ones.
    #[arg(short, long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=MOST))]
    limit: u64,
    /// Also show new activations, until the command is killed.
    #[arg(short, long, conflicts_with = "json")]
    follow: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    if let Some(id) = args.what.as_deref().filter(|what| is_id(what)) {
        return one(args, id);
    }
    let limit = usize::try_from(args.limit)?;
    if args.follow {
        return follow(args, limit);
    }
    let mut last = latest(args, limit)?;
    last.reverse();
    if args.json {
        print_json(&last.iter().map(Activation::with_logs).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    last.iter().try_for_each(show)?;
    Ok(ExitCode::SUCCESS)
}

fn is_id(what: &str) -> bool {
    what.len() == 32 && what.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Prints the logs of one activation.
fn one(args: &Args, id: &str) -> CommandResult {
    let found = args.remote.get(&path("activations", id), DOING)?.success()?;
    let activation = Activation(found);
    if args.json {
        print_json(&[activation.with_logs()])?;
    } else {
        let mut out = io::stdout().lock();
        activation.logs().try_for_each(|line| writeln!(out, "{}", shown(line, &io::stdout())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(activation: &Activation) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", shown(&activation.head(), &io::stdout()))?;
    activation.logs().try_for_each(|line| writeln!(out, "  {}", shown(line, &io::stdout())))
}

/// The latest activations, newest first.
fn latest(args: &Args, limit: usize) -> Result<Vec<Activation>, Box<dyn Error>> {
    let mut all = Vec::new();
    while all.len() < limit {
        let wanted = PAGE.min(limit - all.len());
        let page = page(args, &format!("docs=true&limit={wanted}&skip={}", all.len()))?;
        let is_last = page.len() < wanted;
        all.extend(page);
        if is_last {
            break;
        }
    }
    Ok(all)
}

fn page(args: &Args, query: &str) -> Result<Vec<Activation>, Box<dyn Error>> {
    let name =
        args.what.as_ref().map_or_else(String::new, |name| format!("&name={}", encoded(name)));
    let path = format!("/api/v1/namespaces/_/activations?{query}{name}");
    match args.remote.get(&path, DOING)?.success()? {
        Value::Array(all) => Ok(all.into_iter().map(Activation).collect()),
        _ => Err("cannot list activations: the platform's answer is not a list".into()),
    }
}

/// Shows new activations until the command is killed.
fn follow(args: &Args, limit: usize) -> CommandResult {
    // All times are the platform's: its clock may differ from the one here.
    let mut newest_ms = latest(args, 1)?.first().map_or(0, Activation::start_ms);
    let mut known: BTreeSet<Key> = since(args, newest_ms.saturating_sub(LATE_MS))?;
    let mut new = latest(args, limit)?;
    for round in 1_u64.. {
        new.sort_by_key(key);
        for activation in &new {
            known.insert(key(activation));
            newest_ms = newest_ms.max(activation.start_ms());
            show(activation)?;
        }
        thread::sleep(POLL);
        let back_ms = if round.is_multiple_of(WHOLE) { LATE_MS } else { SOON_MS };
        new = unknown(args, &known, newest_ms.saturating_sub(back_ms))?;
        // Older keys are not queried again.
        known = known.split_off(&(newest_ms.saturating_sub(LATE_MS), String::new()));
    }
    Ok(ExitCode::SUCCESS)
}

fn key(activation: &Activation) -> Key {
    (activation.start_ms(), activation.id().to_owned())
}

/// The activations that have ended since the last query, with their logs.
fn unknown(
    args: &Args,
    known: &BTreeSet<Key>,
    since_ms: u64,
) -> Result<Vec<Activation>, Box<dyn Error>> {
    let keys: BTreeSet<Key> = since(args, since_ms)?;
    let whole = |(_, id): &Key| -> Result<Activation, Box<dyn Error>> {
        let found = args.remote.get(&path("activations", id), DOING)?.success()?;
        Ok(Activation(found))
    };
    keys.difference(known).map(whole).collect()
}

/// The keys of all activations that started at this time or later.
fn since(args: &Args, since_ms: u64) -> Result<BTreeSet<Key>, Box<dyn Error>> {
    let (mut keys, mut skip) = (BTreeSet::new(), 0);
    loop {
        let page = page(args, &format!("since={since_ms}&limit={KEYS}&skip={skip}"))?;
        keys.extend(page.iter().map(key));
        skip += page.len();
        if page.len() < KEYS {
            return Ok(keys);
        }
    }
}
