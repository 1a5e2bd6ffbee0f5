//! `farfork resume`.

use std::error::Error;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_far::place::Place;
use farfork_far::prefetch::{run_front as fetch_front, run_whole as fetch_whole};
use farfork_far::{FarError, SourceAt, start, window, write_key_at};
use farfork_node::paths;
use farfork_seed::handle::Handle;
use farfork_sys::words;
use farfork_types::Cid;

use crate::far::mount_while_used;
use crate::restore::{CloneArgs, Fetched, attend};
use crate::{CommandResult, seeds, usage_error};

/// How long what one command has fetched for itself stays after its last clone has ended, in seconds.
const KEPT_S: u64 = 3;
/// How long the mount of all seeds stays after the last clone has ended, in seconds: the next seed needs none.
const MOUNTED_S: u64 = 60;

/// The seed, and how its clones are started.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The handle that "farfork prepare" has printed.
    #[arg(value_parser = seeds::handle)]
    handle: Handle,
    #[command(flatten)]
    clones: CloneArgs,
    /// Pages that are fetched with each page that a clone touches, and nothing else in advance; or adaptive:
    /// a few with each, and the others in the background, in the order of the image. Clones with other numbers
    /// share no fetched pages.
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
    /// Limit of a fetch, in milliseconds. After it, the clone gets SIGBUS. Clones with other limits share no
    /// fetched pages.
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

/// Where seeds are mounted: all of this machine in one place. What holds for a mount as a whole is in its name:
/// clones with other settings share no pages.
fn place(args: &Args) -> Place {
    let deadline_ms = args.far_deadline_ms;
    let alone = if args.no_cache { format!("-{}", std::process::id()) } else { String::new() };
    let name = format!("seeds-{}-{deadline_ms}{alone}", args.around());
    Place::of(&paths::run_directory(), &name)
}

/// Has a far process of this machine find the seed. A handle that the keeper does not accept is refused
/// before anything of it is there.
fn find(args: &Args, place: &Place) -> Result<Cid, Box<dyn Error>> {
    let handle = &args.handle;
    let in_background = args.prefetch == Prefetch::Adaptive && !args.no_prefetch && !args.eager;
    let id = handle.id.to_string();
    let key = write_key(place, handle)?;
    let source = SourceAt { address: handle.address.to_string(), key };
    let find = || start::find_at(place, &id, in_background, source.clone());
    let found = match find() {
        // None runs.
        Err(FarError::Io { .. }) => {
            farfork_seed::connect(handle)?;
            let idle_s = if args.no_cache { KEPT_S } else { MOUNTED_S };
            let command = mount_while_used(place, args.far_deadline_ms, idle_s)?;
            start::ensure(place, &command)?;
            set_window(args, place)?;
            // One that was just leaving has taken it along.
            write_key(place, handle)?;
            find()
        }
        found => found,
    };
    let cid = found.map_err(|error| refusal(handle, error))?;
    let path = place.images().join(&cid);
    if args.eager {
        let bytes = path.metadata()?.len();
        fetch_whole(&path, bytes)?;
    } else {
        fetch_front(&path)?;
    }
    Ok(cid.parse()?)
}

/// The key of a handle, in a file of the far process. The name is of the key, too: the holder of another one
/// must prove it.
fn write_key(place: &Place, handle: &Handle) -> Result<PathBuf, Box<dyn Error>> {
    let path = place.keys().join(handle.fingerprint());
    if !path.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(place.keys())?;
        write_key_at(&path, &farfork_seed::shared_key(handle))?;
    }
    Ok(path)
}

/// Why a seed was not found, in the words of its keeper if that says so.
fn refusal(handle: &Handle, error: FarError) -> Box<dyn Error> {
    match farfork_seed::connect(handle) {
        Err(known) => known.into(),
        Ok(_) => error.into(),
    }
}

/// Only what was asked for has to succeed.
fn set_window(args: &Args, place: &Place) -> Result<(), String> {
    let others = args.around();
    match window::set(place, others) {
        Err(error) if args.prefetch != Prefetch::Adaptive => {
            let reason = words::of(&error);
            Err(format!(
                "cannot have the kernel fetch {others} pages with each (--prefetch): {reason}; only root may \
                 change that; leave --prefetch out"
            ))
        }
        _ => Ok(()),
    }
}

impl Args {
    /// Pages that come with each.
    fn around(&self) -> u32 {
        match self.prefetch {
            Prefetch::Adaptive => AROUND,
            Prefetch::Around(others) => others,
        }
    }
}

/// What this machine has fetched of a seed.
fn fetched(place: &Place, handle: &Handle) -> Option<Fetched> {
    let id = handle.id.to_string();
    let image = start::status(place).ok()?.images.into_iter().find(|image| image.cid == id)?;
    let source = format!("seed {id} at {}", image.source);
    Some(Fetched { source, transport: "tcp", fetched_bytes: image.fetched_bytes })
}
