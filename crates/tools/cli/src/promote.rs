//! `farfork promote`.

use std::process::ExitCode;

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_types::PAGE_BYTES;
use farfork_types::wire::{AddressRange, Promoted, Promotion};

use crate::output::print_json;
use crate::{CommandResult, node, size};

/// Which clone, and which of its pages.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The clone's pid.
    pid: i32,
    /// Pages that are declared hot (farfork hot set). Without this, --accessed and ranges: those and
    /// the accessed ones.
    #[arg(long)]
    hot: bool,
    /// Pages that clones of the image were seen to access (farfork restore --profile).
    #[arg(long)]
    accessed: bool,
    /// Hexadecimal addresses as in /proc/PID/maps, of the image's first process; in a tree,
    /// PID:START-END for another. A page of which a part is named is meant as a whole.
    #[arg(value_name = "START-END")]
    ranges: Vec<AddressRange>,
    /// Node it runs on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
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
        (promoted.untouched_pages, "are not touched yet, or gone"),
        (promoted.kept_pages, "cannot be written, or are no longer the image's"),
        (promoted.refused_pages, "would not fit into the memory that its cgroup may have"),
    ];
    for (pages, what) in others.into_iter().filter(|(pages, _)| *pages != 0) {
        println!("{pages} pages {what}");
    }
}
