//! `farfork promote`.

use std::process::ExitCode;

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_types::wire::{AddressRange, Promoted, Promotion};
use farfork_types::{LocalShare, PAGE_BYTES};

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
    /// Have this share of the clone's memory near, in thousandths, of all that it has of its own and maps from
    /// the pool. Pages that clones write come first, then hot and accessed ones, then others, spread evenly. A
    /// smaller share than before needs a memory node without processors, to which pages are moved.
    #[arg(long, value_name = "PERMILLE", conflicts_with_all = ["hot", "accessed", "ranges"])]
    local_share: Option<LocalShare>,
    /// Node that the clone runs on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    if let Some(local) = args.local_share {
        return set_share(args, local);
    }
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

fn set_share(args: &Args, local: LocalShare) -> CommandResult {
    let set = Client::connect(&args.node)?.set_share(args.pid, local)?;
    if args.json {
        print_json(&set)?;
        return Ok(ExitCode::SUCCESS);
    }
    let [near, total, far, pool, copied, moved] = [
        set.near_bytes,
        set.total_bytes,
        set.far_bytes,
        set.pool_bytes,
        set.copied_bytes,
        set.moved_bytes,
    ]
    .map(size::show);
    println!("{near} of {total} are near; {far} on far nodes, {pool} in the pool");
    println!("{copied} were copied from the pool, {moved} moved between memory nodes");
    if let Some(reason) = &set.reason {
        let wanted = size::show(set.wanted_bytes);
        eprintln!("the share of {local} thousandths ({wanted}) is not met: {reason}");
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
