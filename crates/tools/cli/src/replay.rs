//! `farfork replay`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_policy::journal::{self, Difference, JournalError};
use farfork_sys::words;
use serde_json::json;

use crate::output::print_json;
use crate::{CommandResult, serve};

/// The decisions to replay.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Journal of farfork serve: decisions.jsonl in its state directory.
    journal: PathBuf,
    /// JSON file with settings of the policies, which replace those in the journal. Differences are
    /// then a result, not a failure.
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand. Different decisions under the journal's own settings are a failure.
pub(crate) fn run(args: &Args) -> CommandResult {
    let other = args.policies.as_deref().map(serve::policies).transpose()?;
    let failed = |reason: String| format!("cannot replay {}: {reason}", args.journal.display());
    let file = File::open(&args.journal).map_err(|error| failed(words::of(&error)))?;
    let replayed = journal::replay(BufReader::new(file), other);
    let replayed = replayed.map_err(|error| failed(reason(&error)))?;
    let (count, missing, differences) =
        (replayed.decisions, replayed.missing, replayed.differences);
    if args.json {
        let differences: Vec<_> = differences.iter().map(document).collect();
        print_json(&json!({ "decisions": count, "missing": missing, "differences": differences }))?;
    } else {
        differences.iter().for_each(print);
        println!("{count} decisions replayed, {} of them differ", differences.len());
        if missing > 0 {
            println!("the journal lacks {missing} decisions that could not be written");
        }
    }
    let is_success = differences.is_empty() || other.is_some();
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn reason(error: &JournalError) -> String {
    match error {
        JournalError::Read(source) => words::of(source),
        JournalError::Line { .. } => error.to_string(),
    }
}

fn document(one: &Difference) -> serde_json::Value {
    let Difference { line, record, choice, why } = one;
    json!({ "line": line, "record": record, "choice": choice, "why": why })
}

fn print(one: &Difference) {
    let Difference { line, record, choice, why } = one;
    println!("line {line}: {} of {}", record.question, record.about);
    println!("  was {}: {}", record.choice, record.why);
    println!("  now {choice}: {why}");
}
