//! `farfork restore`.

use std::error::Error;
use std::io::{stderr, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_node::client::{Client, StartedClone};
use farfork_node::usage::Placement;
use farfork_node::{paths, usage};
use farfork_pool::Pool;
use farfork_types::wire::{DEFAULT_TIMEOUT_S, RestoreCall, Running};
use farfork_types::{Cid, LocalShare, Tiering};
use serde::Serialize;

use crate::far::{FarArgs, FarPool};
use crate::inherit::Inherit;
use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, clones, error_text, named, node, size, usage_error};

/// The clones to start.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    #[command(flatten)]
    far: FarArgs,
    /// Name or id of the image.
    image: String,
    #[command(flatten)]
    clones: CloneArgs,
}

/// How clones are started, wherever their image is.
#[derive(clap::Args)]
pub(crate) struct CloneArgs {
    /// Number of clones. All of them start, or none.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Leave the clones running, and print their pids. Without it they are killed when this command
    /// exits.
    #[arg(long)]
    detach: bool,
    /// Which pages become local, and when. mow: pages that the clone writes. moa: pages that it
    /// accesses. hybrid: accessed and hot pages when it accesses them, others when it writes them.
    /// copy: all pages, before it starts. An attached ghost keeps the policy that it was started with.
    #[arg(long, value_name = "mow|moa|hybrid|copy", default_value_t = Tiering::Mow)]
    tiering: Tiering,
    /// Make this share of the image local before the clone runs, in thousandths: pages that clones write,
    /// then hot and accessed ones, then others, spread evenly. The rest stays in the pool.
    #[arg(long, value_name = "PERMILLE")]
    local_share: Option<LocalShare>,
    /// Record which pages the clones touch; "farfork images show" counts them. Each clone takes a
    /// fault for each page it touches.
    #[arg(long)]
    profile: bool,
    /// Start the clone in a new PID namespace, or with the parent's pids in this one.
    #[arg(long, value_enum, default_value = "new")]
    pid_mode: PidMode,
    /// Supply descriptor N. N=PATH opens PATH, or connects if it is a socket. N=listen:PATH and
    /// N=tcp:ADDRESS:PORT listen, and N=udp:ADDRESS:PORT binds, instead of at the parent's address.
    /// %i is the number of the clone. May be repeated.
    #[arg(long = "inherit-fd", value_name = "N=WHAT")]
    inherit: Vec<Inherit>,
    /// Start the clone in this ghost, in its namespaces and cgroup.
    #[arg(long, value_name = "ID")]
    ghost: Option<String>,
    /// Limit of the start of each clone, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S)]
    timeout: u64,
    /// Node to start the clones on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PidMode {
    New,
    Same,
}

#[derive(Serialize)]
struct Clone<'a> {
    cid: String,
    #[serde(flatten)]
    running: &'a Running,
    vmas: u64,
    pool_bytes: u64,
    local_bytes: u64,
    near_bytes: u64,
    far_bytes: u64,
    #[serde(flatten)]
    fetched: Option<&'a Fetched>,
}

/// Where the pages of clones come from, if that is another node.
#[derive(Serialize)]
pub(crate) struct Fetched {
    /// The node, and what it has.
    pub(crate) source: String,
    /// How they come.
    pub(crate) transport: String,
    /// Bytes that this machine has fetched so far, for all clones.
    pub(crate) fetched_bytes: u64,
    /// Bytes that were read before the clones started, in the order of earlier clones' needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pushed_bytes: Option<u64>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    if let Some(message) = args.clones.contradiction() {
        return Ok(usage_error(message));
    }
    let (path, cid) = match args.far.find(&args.image)? {
        Some(FarPool { path, cid }) => (path, cid),
        None => {
            let path = args.pool.path()?;
            let cid = named::resolve(&Pool::open(&path)?, &args.image)?;
            (path, cid)
        }
    };
    let clones = args.clones.start_all(path, cid, &args.image)?;
    args.clones.report(cid, &args.image, &clones, None)?;
    if args.clones.detach { Ok(ExitCode::SUCCESS) } else { attend(&clones) }
}

impl CloneArgs {
    /// What is wrong with them, if anything is.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        if self.pid_mode == PidMode::Same && self.count > 1 {
            return Some(
                "--pid-mode same and --count exclude each other: only one clone can have the parent's \
                 pids; use --pid-mode new for several",
            );
        }
        if self.local_share.is_some() && (self.profile || self.tiering != Tiering::Mow) {
            return Some("--local-share excludes --profile and any --tiering but mow");
        }
        if self.ghost.is_some() && self.count > 1 {
            return Some("--ghost and --count exclude each other: a ghost takes one clone");
        }
        (self.ghost.is_some() && self.pid_mode == PidMode::Same).then_some(
            "--ghost and --pid-mode same exclude each other: a ghost has a PID namespace of its own",
        )
    }

    /// Whether the clones outlive this command.
    pub(crate) fn detaches(&self) -> bool {
        self.detach
    }

    /// How many clones are started.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Starts all clones or none: after an error the caller gets no pids.
    pub(crate) fn start_all(
        &self,
        pool: PathBuf,
        cid: Cid,
        name: &str,
    ) -> Result<Vec<StartedClone>, Box<dyn Error>> {
        let call = RestoreCall {
            pool,
            cid: cid.to_string(),
            name: name.to_owned(),
            detach: self.detach,
            same_pid: self.pid_mode == PidMode::Same,
            inherit: self.inherit.iter().map(|inherit| inherit.at).collect(),
            ghost: self.ghost.clone(),
            requested_ns: 0,
            tiering: self.tiering,
            local_share: self.local_share,
            profile: self.profile,
            timeout_s: self.timeout,
        };
        let mut clones = Vec::new();
        for index in 0..self.count as usize {
            match start(&self.node, &self.inherit, &call, index) {
                Ok(clone) => clones.push(clone),
                Err(error) if clones.is_empty() => return Err(error),
                Err(error) => {
                    let started = clones.len();
                    clones.into_iter().for_each(|clone| end(&self.node, clone));
                    let (all, reason) = (self.count, error_text(&*error));
                    return Err(format!(
                        "{reason}\n{started} of {all} clones had started and were killed"
                    )
                    .into());
                }
            }
        }
        Ok(clones)
    }

    /// Prints what was started.
    pub(crate) fn report(
        &self,
        cid: Cid,
        name: &str,
        clones: &[StartedClone],
        fetched: Option<&Fetched>,
    ) -> Result<(), Box<dyn Error>> {
        let usage_of = |clone: &StartedClone| usage::of_family(clone.running.pid);
        for clone in clones {
            for warning in &clone.running.warnings {
                eprintln!("farfork: clone {} runs without: {warning}", clone.running.pid);
            }
        }
        if self.json {
            let list: Vec<Clone<'_>> = clones
                .iter()
                .map(|clone| {
                    let usage = usage_of(clone);
                    let (vmas, pool_bytes) = (usage.vmas, usage.pool_bytes);
                    let local_bytes = usage.local_bytes;
                    let (cid, running) = (cid.to_string(), &clone.running);
                    let Placement { near_bytes, far_bytes } =
                        usage::placement_of_family(running.pid);
                    Clone {
                        cid,
                        running,
                        vmas,
                        pool_bytes,
                        local_bytes,
                        near_bytes,
                        far_bytes,
                        fetched,
                    }
                })
                .collect();
            return Ok(print_json(&list)?);
        }
        for clone in clones.iter().filter(|_| self.detach) {
            println!("{}", clone.running.pid);
            let us = clone.running.restore_us;
            let local = size::show(usage_of(clone).local_bytes);
            eprintln!("clone {} of {name}: {us:.0} us, {local} local", clone.running.pid);
        }
        Ok(())
    }
}

/// Kills a clone and waits for it. The clone, or its agent, may be gone already.
fn end(node: &str, clone: StartedClone) {
    let call = || Client::connect(node);
    let _ = call().and_then(|client| client.kill(clone.running.pid, libc::SIGKILL));
    let _ = call().and_then(|client| client.wait(clone.running.pid));
}

/// Starts clone number `index` on `node`.
pub(crate) fn start(
    node: &str,
    inherit: &[Inherit],
    call: &RestoreCall,
    index: usize,
) -> Result<StartedClone, Box<dyn Error>> {
    let inherited =
        inherit.iter().map(|inherit| inherit.open(index)).collect::<Result<Vec<OwnedFd>, _>>()?;
    let client = Client::connect_or_start(node)?;
    let (input, output, error) = (stdin(), stdout(), stderr());
    let mut fds: Vec<BorrowedFd<'_>> = vec![input.as_fd(), output.as_fd(), error.as_fd()];
    fds.extend(inherited.iter().map(AsFd::as_fd));
    let requested_ns = now_ns();
    Ok(client.restore(RestoreCall { requested_ns, ..call.clone() }, &fds)?)
}

/// This machine's monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits for the clones; the first that fails gives the exit status.
pub(crate) fn attend(clones: &[StartedClone]) -> CommandResult {
    let mut first_failure = ExitCode::SUCCESS;
    let mut has_failed = false;
    for clone in clones {
        let status = clones::report_end(clone.client.ended()?);
        if status != 0 && !has_failed {
            (first_failure, has_failed) = (clones::exit_code(status), true);
        }
    }
    Ok(first_failure)
}
