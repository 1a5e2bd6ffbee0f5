//! `farfork promote`.

use std::process::ExitCode;

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_types::PAGE_BYTES;
use farfork_types::wire::{AddressRange, Promoted, Promotion};

use crate::output::print_json;
use crate::{CommandResult, node, size};

/// The clone, and the pages to copy.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pid of the clone.
    pid: i32,
    /// Copy the pages that are declared hot (farfork hot set). Without --hot, --accessed and ranges,
    /// hot and accessed pages are copied.
    #[arg(long)]
    hot: bool,
    /// Copy the pages that profiling clones of the image accessed (farfork restore --profile).
    #[arg(long)]
    accessed: bool,
    /// Hexadecimal addresses in the first process of the image, as in /proc/PID/maps. In a tree,
    /// PID:START-END names another process. Ranges are widened to whole pages.
    #[arg(value_name = "START-END")]
    ranges: Vec<AddressRange>,
    /// Node that the clone runs on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let is_all = !args.hot && !args.accessed && args.ranges.is_empty();
    let pages = Promotion {
        hot: args.hot || is_all,
        accessed: args.accessed || is_all,
        ranges: args.ranges.clone(),
    };
    let promoted = Client::connect(&args.node)?.promote(args.pid, pages)?;
    if args.json {
        print_json(&promoted)?;
    } else {
        show(&promoted);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(promoted: &Promoted) {
    let bytes = size::show(promoted.promoted_pages * PAGE_BYTES);
    println!("{} pages became local ({bytes})", promoted.promoted_pages);
    let others = [
        (promoted.local_pages, "were local already"),
        (promoted.untouched_pages, "are not touched yet, or unmapped"),
        (promoted.kept_pages, "are read-only, or no longer part of the image"),
        (promoted.refused_pages, "would exceed the memory limit of the cgroup"),
    ];
    for (pages, what) in others.into_iter().filter(|(pages, _)| *pages != 0) {
        println!("{pages} pages {what}");
    }
}
