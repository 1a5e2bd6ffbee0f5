//! `farfork resume`.

use std::error::Error;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use farfork_far::place::Place;
use farfork_far::prefetch::{
    run_front as fetch_front, run_until as fetch_until, run_whole as fetch_whole,
};
use farfork_far::{FarError, SourceAt, start, window, write_key_at};
use farfork_node::paths;
use farfork_seed::handle::Handle;
use farfork_sys::words;
use farfork_types::{Cid, TlsFiles};

use crate::far::{TlsArgs, mount_while_used};
use crate::restore::{CloneArgs, Fetched, attend};
use crate::{CommandResult, seeds, usage_error};

/// How long what one command has fetched for itself stays after its last clone has ended, in seconds.
const KEPT_S: u64 = 3;
/// How long the mount of all seeds stays without clones, in seconds, unless the user says it: the next seed needs
/// none.
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
    /// a few with each, and the others in the background, first those that earlier clones were seen to need. Clones
    /// with other numbers share no fetched pages.
    #[arg(long, value_name = "N|adaptive", default_value = "adaptive", value_parser = prefetch)]
    prefetch: Prefetch,
    /// Fetch pages only when clones touch them, not in the background before that.
    #[arg(long, conflicts_with = "prefetch")]
    no_prefetch: bool,
    /// Before a clone starts, fetch pages that earlier clones of the seed were seen to need, in the order of their
    /// needs, for this time at most, in milliseconds. The others come as without it.
    #[arg(long, value_name = "MS", default_value_t = 0, conflicts_with_all = ["no_prefetch", "eager"], value_parser = clap::value_parser!(u64).range(..=60_000))]
    push_ms: u64,
    /// Fetch all pages before a clone starts.
    #[arg(long, conflicts_with_all = ["prefetch", "no_prefetch"])]
    eager: bool,
    /// Share fetched pages only among the clones of this command, not with all clones of the seed on this
    /// machine.
    #[arg(long)]
    no_cache: bool,
    /// Unmount the seeds of this machine, and remove what was fetched of them, so many seconds after the last
    /// resume whose clones have ended. The command that mounts them decides.
    #[arg(long, hide = true, value_name = "SECONDS", env = "FARFORK_SEED_MOUNTED_S", default_value_t = MOUNTED_S)]
    mounted_s: u64,
    #[command(flatten)]
    tls: TlsArgs,
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
    let (cid, image) = find(args, &place)?;
    let pushed_bytes = (args.push_ms > 0).then(|| push(args, &place, cid));
    let name = format!("seed {}", args.handle.id);
    let is_adaptive = args.prefetch == Prefetch::Adaptive && !args.no_prefetch && !args.eager;
    // One clone would compete with it for processors and the connection. Of many, all after the first gain by it.
    let (before, after) = (is_adaptive && args.clones.count() > 1, is_adaptive);
    if before {
        fetch_in_background(&place, cid);
    }
    let clones = args.clones.start_all(place.pool(), cid, &name)?;
    if after {
        fetch_in_background(&place, cid);
    }
    drop(image);
    args.clones.report(
        cid,
        &name,
        &clones,
        fetched(&place, &args.handle, pushed_bytes).as_ref(),
    )?;
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
/// before anything of it is there. While the file is open nothing is unmounted.
fn find(args: &Args, place: &Place) -> Result<(Cid, File), Box<dyn Error>> {
    let handle = &args.handle;
    let id = handle.id.to_string();
    let key = write_key(place, handle)?;
    let tls = args.tls.files()?;
    let source = SourceAt { address: handle.address.to_string(), key, tls };
    let find = || start::find_at(place, &id, false, source.clone());
    let found = match find() {
        // None runs.
        Err(FarError::Io { .. }) => {
            farfork_seed::connect(handle, source.tls.as_ref())?;
            let idle_s = if args.no_cache { KEPT_S } else { args.mounted_s };
            let command = mount_while_used(place, args.far_deadline_ms, idle_s)?;
            start::ensure(place, &command)?;
            set_window(args, place)?;
            // One that was just leaving has taken it along.
            write_key(place, handle)?;
            find()
        }
        // The far process may have forgotten the seed just now, and its key with it.
        Err(_) if !source.key.exists() => {
            write_key(place, handle)?;
            find()
        }
        found => found,
    };
    let cid = found.map_err(|error| refusal(handle, source.tls.as_ref(), error))?;
    let path = place.images().join(&cid);
    let image = File::open(&path).map_err(FarError::io("open", &path))?;
    if args.eager {
        let bytes = path.metadata()?.len();
        fetch_whole(&path, bytes)?;
    } else {
        fetch_front(&path)?;
    }
    Ok((cid.parse()?, image))
}

/// What does not come in advance comes when it is touched.
fn fetch_in_background(place: &Place, cid: Cid) {
    let _ = start::prefetch(place, cid);
}

/// Fetches what earlier clones needed, as far as the time allows; how many bytes. What fails is fetched when a clone
/// needs it, or fails then.
fn push(args: &Args, place: &Place, cid: Cid) -> u64 {
    let until = Instant::now() + Duration::from_millis(args.push_ms);
    let path = place.images().join(cid.to_string());
    let left = until.saturating_duration_since(Instant::now());
    let ranges = start::touched(place, cid, left);
    ranges.and_then(|ranges| fetch_until(&path, &ranges, until)).unwrap_or_default()
}

/// The key of a handle, in a file of the far process. The name is of the key, too: the holder of another one
/// must prove it.
fn write_key(place: &Place, handle: &Handle) -> Result<PathBuf, Box<dyn Error>> {
    let path = place.keys().join(handle.fingerprint());
    loop {
        if path.exists() {
            return Ok(path);
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(place.keys());
        let written = made.map_err(FarError::io("make", &place.keys()));
        let written = written.and_then(|()| write_key_at(&path, &farfork_seed::shared_key(handle)));
        match written {
            // A far process that has just gone has taken the directory along.
            Err(FarError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            written => return Ok(written.map(|()| path)?),
        }
    }
}

/// Why a seed was not found, in the words of its keeper if that says so.
fn refusal(handle: &Handle, tls: Option<&TlsFiles>, error: FarError) -> Box<dyn Error> {
    match farfork_seed::connect(handle, tls) {
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
fn fetched(place: &Place, handle: &Handle, pushed_bytes: Option<u64>) -> Option<Fetched> {
    let id = handle.id.to_string();
    let image = start::status(place).ok()?.images.into_iter().find(|image| image.cid == id)?;
    let source = format!("seed {id} at {}", image.source);
    let of_owners: u64 = image.owners.iter().map(|owner| owner.fetched_bytes).sum();
    let fetched_bytes = image.fetched_bytes + of_owners;
    let transport = image.transport.unwrap_or_else(|| "tcp".to_owned());
    Some(Fetched { source, transport, fetched_bytes, pushed_bytes })
}
