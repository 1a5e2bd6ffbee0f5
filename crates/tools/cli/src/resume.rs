//! `farfork resume`.

use std::error::Error;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::process::ExitCode;

use farfork_far::control::Status;
use farfork_far::place::Place;
use farfork_far::{start, write_key_at};
use farfork_node::paths;
use farfork_seed::handle::Handle;
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
    /// Fetch pages only when clones touch them, not in the background before that.
    #[arg(long)]
    no_prefetch: bool,
    /// Limit of a fetch, in milliseconds. After it, the clone gets SIGBUS. The first resume of a seed on this
    /// machine decides.
    #[arg(long, value_name = "MS", env = "FARFORK_FAR_DEADLINE_MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    far_deadline_ms: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    if let Some(message) = args.clones.contradiction() {
        return Ok(usage_error(message));
    }
    let place = place(&args.handle);
    let cid = find(args, &place)?;
    let name = format!("seed {}", args.handle.id);
    let clones = args.clones.start_all(place.pool(), cid, &name)?;
    args.clones.report(cid, &name, &clones, fetched(&place, &args.handle).as_ref())?;
    if args.clones.detaches() { Ok(ExitCode::SUCCESS) } else { attend(&clones) }
}

/// Where a seed is mounted: addresses of keepers come again.
fn place(handle: &Handle) -> Place {
    Place::of(&paths::run_directory(), &format!("seed-{}", handle.id))
}

/// Asks the keeper for the image, which a far process of this machine mounts. A handle that the keeper does
/// not accept is refused before anything is mounted.
fn find(args: &Args, place: &Place) -> Result<Cid, Box<dyn Error>> {
    let (handle, prefetch) = (&args.handle, !args.no_prefetch);
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
    Ok(start::find(place, &id, prefetch)?.parse()?)
}

/// What this machine has fetched of a seed.
fn fetched(place: &Place, handle: &Handle) -> Option<Fetched> {
    let Status { source, images, .. } = start::status(place).ok()?;
    let fetched_bytes = images.iter().map(|image| image.fetched_bytes).sum();
    let source = format!("seed {} at {source}", handle.id);
    Some(Fetched { source, transport: "tcp", fetched_bytes })
}
