//! `farfork images profile`.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use farfork_image::format::Image;
use farfork_node::client::{Client, StartedClone};
use farfork_node::paths;
use farfork_node::profile::Watched;
use farfork_pages::{Observed, mapped};
use farfork_pool::Pool;
use farfork_sys::words;
use farfork_types::Tiering;
use farfork_types::wire::{DEFAULT_TIMEOUT_S, RestoreCall};
use serde::Serialize;

use crate::inherit::Inherit;
use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, clones, named, node, restore};

/// The image to profile, and the command that uses the clone.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// Name or id of the image.
    image: String,
    /// Supply descriptor N, as farfork restore does. $FARFORK_CLONE_SOCKET is the address of the
    /// first one that listens.
    #[arg(long = "inherit-fd", value_name = "N=WHAT")]
    inherit: Vec<Inherit>,
    /// Limit of the clone's start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S)]
    timeout: u64,
    /// Node to start the clone on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document. The command's own output is not redirected.
    #[arg(long)]
    json: bool,
    /// Command that uses the clone. Its environment has the clone's pid ($FARFORK_CLONE_PID) and
    /// address ($FARFORK_CLONE_SOCKET). The clone is killed when the command exits.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What one clone did to the pages that it maps from the pool.
#[derive(Serialize)]
struct Counts {
    cid: String,
    mapped_pages: u64,
    /// Pages that it read, and did not write.
    read_pages: u64,
    written_pages: u64,
    untouched_pages: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let path = args.pool.path()?;
    let pool = Pool::open(&path)?;
    let image = Image::read(&pool, named::resolve(&pool, &args.image)?)?;
    let clone = restore::start(&args.node, &args.inherit, &call(args, path, &image), 0)?;
    let pid = clone.running.pid;
    let watched = Watched::open(pid, &image.model);
    let status = use_clone(args, pid);
    let observed = watched.and_then(|watched| watched.look());
    let is_whole = end(args, &clone)?;
    let status = status?;
    let observed = observed.map_err(|error| {
        format!("cannot read which pages clone {pid} touched: {}", words::of(&error))
    })?;
    if !is_whole {
        eprintln!(
            "farfork: clone {pid} exited before the command did, so its last accesses may be missing; \
             let the command exit first"
        );
    }
    report(args, &Counts::from_observed(&image, &observed))?;
    Ok(clones::exit_code(wait_status(status)))
}

fn call(args: &Args, pool: PathBuf, image: &Image) -> RestoreCall {
    RestoreCall {
        pool,
        cid: image.id.cid.to_string(),
        name: args.image.clone(),
        detach: false,
        same_pid: false,
        inherit: args.inherit.iter().map(|inherit| inherit.at).collect(),
        requested_ns: 0,
        tiering: Tiering::Mow,
        local_share: None,
        profile: true,
        ghost: None,
        timeout_s: args.timeout,
    }
}

/// Runs the command to its end.
fn use_clone(args: &Args, pid: i32) -> Result<ExitStatus, Box<dyn Error>> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env("FARFORK_CLONE_PID", pid.to_string());
    if let Some(socket) = args.inherit.iter().find_map(|inherit| inherit.address(0)) {
        command.env("FARFORK_CLONE_SOCKET", socket);
    }
    command.status().map_err(|error| {
        let (command, reason) = (&args.command[0], words::of(&error));
        format!("cannot run {command}: {reason}; the clone was killed").into()
    })
}

/// Kills the clone. Returns false if it had exited before. The agent looks at its pages first.
fn end(args: &Args, clone: &StartedClone) -> Result<bool, Box<dyn Error>> {
    // The clone may exit at any moment, and its agent with it.
    let _ = Client::connect(&args.node)
        .and_then(|client| client.kill(clone.running.pid, libc::SIGKILL));
    let (wait_status, _) = clone.client.ended()?;
    Ok(wait_status & 0x7f == libc::SIGKILL)
}

fn wait_status(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.into_raw()
}

impl Counts {
    fn from_observed(image: &Image, observed: &Observed) -> Counts {
        let mapped = mapped(&image.model);
        Counts {
            cid: image.id.cid.to_string(),
            mapped_pages: mapped.len(),
            read_pages: observed.read.len(),
            written_pages: observed.written.len(),
            untouched_pages: observed.untouched(&mapped).len(),
        }
    }
}

fn report(args: &Args, counts: &Counts) -> Result<(), Box<dyn Error>> {
    if args.json {
        return Ok(print_json(counts)?);
    }
    let share = |pages: u64| 100.0 * pages as f64 / counts.mapped_pages.max(1) as f64;
    eprintln!(
        "of {} pages the clone read {} ({:.1} %), wrote {} ({:.1} %), did not touch {}",
        counts.mapped_pages,
        counts.read_pages,
        share(counts.read_pages),
        counts.written_pages,
        share(counts.written_pages),
        counts.untouched_pages
    );
    Ok(())
}
