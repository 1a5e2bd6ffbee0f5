//! `farfork functions`.

use std::error::Error;
use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;

use super::activation::annotation;
use super::remote::{Remote, Request, path};
use crate::CommandResult;
use crate::output::print_json;

/// Functions of one request: the platform's maximum.
const PAGE: usize = 200;

/// What to do with functions. The default is to list them.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List functions.
    List(ListArgs),
    /// Delete functions. Calls that were accepted still run.
    Rm(RmArgs),
}

/// How to list.
#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    remote: Remote,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The functions to delete.
#[derive(clap::Args)]
struct RmArgs {
    /// Names of functions.
    #[arg(required = true)]
    names: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.command {
        None => list(&args.list),
        Some(Command::List(args)) => list(args),
        Some(Command::Rm(args)) => remove(args),
    }
}

fn remove(args: &RmArgs) -> CommandResult {
    for name in &args.names {
        let (path, doing) = (path("actions", name), format!("deleting {name}"));
        let request = Request { method: Method::DELETE, path: &path, body: None, doing: &doing };
        let refused = |reason: Box<dyn Error>| format!("cannot delete function {name}: {reason}");
        args.remote.send(request)?.success().map_err(refused)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> CommandResult {
    let all = all(&args.remote)?;
    if args.json {
        print_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("{:<32} {:<9} {:<14} {:>9} {:>11}", "NAME", "VERSION", "KIND", "MEMORY", "TIMEOUT");
    for one in &all {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let limits = &one["limits"];
        println!(
            "{:<32} {:<9} {:<14} {:>5} MiB {:>8} ms",
            text(&one["name"]),
            text(&one["version"]),
            annotation(one, "exec").map_or_else(|| "-".to_owned(), text),
            limits["memory"],
            limits["timeout"],
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn all(remote: &Remote) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut all: Vec<Value> = Vec::new();
    loop {
        let path = format!("/api/v1/namespaces/_/actions?limit={PAGE}&skip={}", all.len());
        let Value::Array(page) = remote.get(&path, "listing functions")?.success()? else {
            return Err("cannot list functions: the platform's answer is not a list".into());
        };
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}
