//! `farfork wait`, `kill` and `ps`.

use std::process::ExitCode;

use farfork_node::client::{Client, CloneEnd};
use farfork_node::paths;
use farfork_types::wire::{CloneState, MissingPage};
use serde::Serialize;

use crate::output::print_json;
use crate::{CommandResult, node, size, usage_error};

/// The clone to wait for.
#[derive(clap::Args)]
pub(crate) struct WaitArgs {
    /// Pid of the clone.
    pid: i32,
    /// Node that the clone runs on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document: its exit status, or the signal that ended it, and the page of its image that
    /// could not be read, if that was the reason.
    #[arg(long)]
    json: bool,
}

/// The end of a clone, for programs.
#[derive(Serialize)]
struct End<'a> {
    /// Its exit status, if it has exited.
    status: Option<i32>,
    /// The signal that ended it.
    signal: Option<i32>,
    #[serde(flatten)]
    missing: Option<&'a MissingPage>,
}

/// The clone to signal.
#[derive(clap::Args)]
pub(crate) struct KillArgs {
    /// Pid of the clone. A signal may precede it, e.g. -9.
    #[arg(value_name = "PID", required = true, num_args = 1..=2, allow_negative_numbers = true)]
    what: Vec<i32>,
    /// Number of the signal. Default: SIGTERM.
    #[arg(long)]
    signal: Option<i32>,
    /// Node that the clone runs on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
}

/// How to list.
#[derive(clap::Args)]
pub(crate) struct PsArgs {
    /// Only clones of this node. Default: all nodes of this machine.
    #[arg(long, value_parser = node::name)]
    node: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Waits, and exits as the clone did.
pub(crate) fn wait(args: &WaitArgs) -> CommandResult {
    let CloneEnd { wait_status, reason, missing } = Client::connect(&args.node)?.wait(args.pid)?;
    if args.json {
        let signal = Some(wait_status & 0x7f).filter(|signal| *signal != 0);
        let status = signal.is_none().then_some(wait_status >> 8 & 0xff);
        print_json(&End { status, signal, missing: missing.as_ref() })?;
    }
    Ok(exit_code(report_end((wait_status, reason))))
}

/// Signals.
pub(crate) fn kill(args: &KillArgs) -> CommandResult {
    let (pid, signal) = match (&args.what[..], args.signal) {
        ([pid], signal) if *pid > 0 => (*pid, signal.unwrap_or(libc::SIGTERM)),
        ([signal, pid], None) if *signal < 0 && *pid > 0 => (*pid, -signal),
        _ => return Ok(usage_error("kill needs one clone and at most one signal: kill -9 PID")),
    };
    node::agent(&args.node)?.kill(pid, signal)?;
    Ok(ExitCode::SUCCESS)
}

/// Lists.
pub(crate) fn ps(args: &PsArgs) -> CommandResult {
    if let Some(node) = args.node.as_ref().filter(|node| !is_known(node)) {
        return Err(
            format!("there is no node {node} here; \"farfork node --name\" starts one").into()
        );
    }
    let mut clones = node::query_all(args.node.as_ref(), |client| client.list())?;
    clones.sort_by(|a: &CloneState, b| (&a.node, a.pid).cmp(&(&b.node, b.pid)));
    if args.json {
        print_json(&clones)?;
    } else {
        show(&clones);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether an agent of this node has ever run here.
fn is_known(node: &str) -> bool {
    node == paths::DEFAULT_NODE || paths::lock(node).exists()
}

fn show(clones: &[CloneState]) {
    println!(
        "{:<8} {:>7} {:<24} {:<4} {:>10} {:>10} {:>7}  CID",
        "NODE", "PID", "IMAGE", "TIER", "LOCAL", "POOL", "FAULTS"
    );
    for clone in clones {
        println!(
            "{:<8} {:>7} {:<24} {:<4} {:>10} {:>10} {:>7}  {}",
            clone.node,
            clone.pid,
            clone.image,
            clone.tiering,
            size::show(clone.local_bytes),
            size::show(clone.pool_bytes),
            clone.faults.values().sum::<u64>(),
            clone.cid
        );
    }
}

/// Prints the agent's reason for a clone's end, if it has one. Returns the wait status.
pub(crate) fn report_end((wait_status, reason): (i32, Option<String>)) -> i32 {
    if let Some(reason) = reason {
        eprintln!("farfork: {reason}");
    }
    wait_status
}

/// The exit status that a shell would show for this wait status.
pub(crate) fn exit_code(wait_status: i32) -> ExitCode {
    let code = match wait_status & 0x7f {
        0 => wait_status >> 8 & 0xff,
        signal => 128 + signal,
    };
    ExitCode::from(code as u8)
}
