//! `farfork resume`.

use std::error::Error;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;

use farfork_far::control::Status;
use farfork_far::place::Place;
use farfork_far::prefetch::run_whole as fetch_whole;
use farfork_far::{start, window, write_key_at};
use farfork_node::paths;
use farfork_seed::handle::Handle;
use farfork_sys::words;
use farfork_types::Cid;

use crate::far::mount_while_used;
use crate::restore::{CloneArgs, Fetched, attend};
use crate::{CommandResult, seeds, usage_error};

/// How long what was fetched stays after the last clone of this machine has ended, in seconds.
const KEPT_S: u64 = 3;

/// The seed, and how its clones are started.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The handle that "farfork prepare" has printed.
    #[arg(value_parser = seeds::handle)]
    handle: Handle,
    #[command(flatten)]
    clones: CloneArgs,
    /// Pages that are fetched with each page that a clone touches, and nothing else in advance; or adaptive:
    /// a few with each, and the others in the background, in the order of the image. The last resume of a
    /// seed on this machine decides for all its clones.
    #[arg(long, value_name = "N|adaptive", default_value = "adaptive", value_parser = prefetch)]
    prefetch: Prefetch,
    /// Fetch pages only when clones touch them, not in the background before that.
    #[arg(long, conflicts_with = "prefetch")]
    no_prefetch: bool,
    /// Fetch all pages before a clone starts.
    #[arg(long, conflicts_with_all = ["prefetch", "no_prefetch"])]
    eager: bool,
    /// Share fetched pages only among the clones of this command, not with all clones of the seed on this
    /// machine.
    #[arg(long)]
    no_cache: bool,
    /// Limit of a fetch, in milliseconds. After it, the clone gets SIGBUS. The first resume of a seed on this
    /// machine decides.
    #[arg(long, value_name = "MS", env = "FARFORK_FAR_DEADLINE_MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    far_deadline_ms: u64,
}

/// What is fetched before clones touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefetch {
    /// So many pages with each.
    Around(u32),
    Adaptive,
}

/// Pages that are fetched with each, unless the caller says how many: as many as do not delay it by much.
const AROUND: u32 = 15;

fn prefetch(text: &str) -> Result<Prefetch, String> {
    let around = || text.parse().ok().filter(|around| *around <= window::MOST);
    match text {
        "adaptive" => Ok(Prefetch::Adaptive),
        _ => around().map(Prefetch::Around).ok_or_else(|| {
            format!(
                "invalid number of pages '{text}' (expected 0 to {}, or adaptive)",
                window::MOST
            )
        }),
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    if let Some(message) = args.clones.contradiction() {
        return Ok(usage_error(message));
    }
    let place = place(args);
    let cid = find(args, &place)?;
    let name = format!("seed {}", args.handle.id);
    let clones = args.clones.start_all(place.pool(), cid, &name)?;
    args.clones.report(cid, &name, &clones, fetched(&place, &args.handle).as_ref())?;
    if args.clones.detaches() { Ok(ExitCode::SUCCESS) } else { attend(&clones) }
}

/// Where a seed is mounted: addresses of keepers come again.
fn place(args: &Args) -> Place {
    let id = args.handle.id;
    let name = match args.no_cache {
        false => format!("seed-{id}"),
        true => format!("seed-{id}-{}", std::process::id()),
    };
    Place::of(&paths::run_directory(), &name)
}

/// Asks the keeper for the image, which a far process of this machine mounts. A handle that the keeper does
/// not accept is refused before anything is mounted.
fn find(args: &Args, place: &Place) -> Result<Cid, Box<dyn Error>> {
    let handle = &args.handle;
    let in_background = args.prefetch == Prefetch::Adaptive && !args.no_prefetch && !args.eager;
    let id = handle.id.to_string();
    if start::status(place).is_err() {
        farfork_seed::connect(handle)?;
        let directory = place.directory();
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let key = directory.join("key");
        write_key_at(&key, &handle.shared_key())?;
        let source = handle.address.to_string();
        let command = mount_while_used(place, source, key, args.far_deadline_ms, KEPT_S)?;
        start::ensure(place, &command)?;
    }
    set_window(args, place)?;
    let cid = start::find(place, &id, in_background)?;
    if args.eager {
        let path = place.images().join(&cid);
        let bytes = path.metadata()?.len();
        fetch_whole(&path, bytes)?;
    }
    Ok(cid.parse()?)
}

/// Only what was asked for has to succeed.
fn set_window(args: &Args, place: &Place) -> Result<(), String> {
    match args.prefetch {
        Prefetch::Adaptive => {
            let _ = window::set(place, AROUND);
            Ok(())
        }
        Prefetch::Around(others) => window::set(place, others).map_err(|error| {
            let reason = words::of(&error);
            format!(
                "cannot have the kernel fetch {others} pages with each (--prefetch): {reason}; only root may \
                 change that; leave --prefetch out"
            )
        }),
    }
}

/// What this machine has fetched of a seed.
fn fetched(place: &Place, handle: &Handle) -> Option<Fetched> {
    let Status { source, images, .. } = start::status(place).ok()?;
    let fetched_bytes = images.iter().map(|image| image.fetched_bytes).sum();
    let source = format!("seed {} at {source}", handle.id);
    Some(Fetched { source, transport: "tcp", fetched_bytes })
}
