//! `farfork ghost`.

use std::path::PathBuf;
use std::process::ExitCode;

use farfork_node::NodeError;
use farfork_node::client::Client;
use farfork_node::paths;
use farfork_pool::Pool;
use farfork_types::Tiering;
use farfork_types::wire::{GhostCall, GhostImage, GhostPhase, GhostState};

use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, named, node, size, usage_error};

/// What to do with ghosts.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a ghost, and print its id.
    Start(StartArgs),
    /// List ghosts, waiting and running.
    List(ListArgs),
    /// Kill ghosts, with the clones in them.
    Stop(StopArgs),
    /// Freeze the clone in a ghost, with all its processes.
    Pause(PauseArgs),
    /// Thaw a frozen ghost.
    Resume(PauseArgs),
}

/// The ghost to create.
#[derive(clap::Args)]
pub(crate) struct StartArgs {
    /// Take only images of this user (USER/FUNCTION). Default: images of all users.
    #[arg(long)]
    user: Option<String>,
    /// OCI bundle of the container. Default: the node's files, with namespaces and a cgroup of its
    /// own.
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Attach this image now, up to the last steps of its clone. The ghost takes no other image then.
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    pool: PoolArg,
    /// Which pages of that image become local, and when: see farfork restore.
    #[arg(long, value_name = "mow|moa|hybrid|copy", default_value_t = Tiering::Mow)]
    tiering: Tiering,
    /// Memory limit of the container, e.g. 256M. Default: none.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Limit of processes and threads of the container. Default: none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids_limit: Option<u64>,
    /// Mount an empty tmpfs on this directory of the container. May be repeated.
    #[arg(long, value_name = "DIR", conflicts_with = "bundle")]
    tmpfs: Vec<PathBuf>,
    /// Let the container write to this directory of the node, into a layer of its own in memory. May be
    /// repeated.
    #[arg(long, value_name = "DIR", conflicts_with = "bundle")]
    layer: Vec<PathBuf>,
    /// Node to create the ghost on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// How to list.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only ghosts of this node. Default: all nodes of this machine.
    #[arg(long, value_parser = node::name)]
    node: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// The ghosts to kill.
#[derive(clap::Args)]
pub(crate) struct StopArgs {
    /// Id of the ghost.
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// Kill all ghosts of the node.
    #[arg(long)]
    all: bool,
    /// Node of the ghost.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
}

/// The ghost.
#[derive(clap::Args)]
pub(crate) struct PauseArgs {
    /// Id of the ghost.
    #[arg(value_name = "ID")]
    id: String,
    /// Node of the ghost.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Start(args) => start(args),
        Command::List(args) => list(args),
        Command::Stop(args) => stop(args),
        Command::Pause(args) => pause(args, true),
        Command::Resume(args) => pause(args, false),
    }
}

fn start(args: &StartArgs) -> CommandResult {
    let is_user = |user: &String| !user.is_empty() && !user.contains(['/', ':']);
    if args.user.as_ref().is_some_and(|user| !is_user(user)) {
        return Ok(usage_error(
            "invalid --user (expected the USER of an image name USER/FUNCTION)",
        ));
    }
    let bundle = args.bundle.as_ref().map(std::path::absolute).transpose()?;
    let call = GhostCall {
        user: args.user.clone(),
        bundle,
        memory_bytes: args.memory,
        pids_limit: args.pids_limit,
        group: None,
        tmpfs: args.tmpfs.clone(),
        hidden: Vec::new(),
        shown: Vec::new(),
        layered: args.layer.clone(),
        read_only: false,
        image: args.image.as_deref().map(|image| attached(args, image)).transpose()?,
        requested_ns: crate::restore::now_ns(),
    };
    let ghost = Client::connect_or_start(&args.node)?.start_ghost(call)?;
    if args.json {
        print_json(&ghost)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", ghost.id);
    let ms = ghost.phases_us.values().sum::<f64>() / 1000.0;
    eprintln!("ghost {}: {ms:.1} ms, {} local", ghost.id, size::show(ghost.local_bytes));
    Ok(ExitCode::SUCCESS)
}

fn attached(args: &StartArgs, name: &str) -> Result<GhostImage, Box<dyn std::error::Error>> {
    let pool = args.pool.path()?;
    let cid = named::resolve(&Pool::open(&pool)?, name)?.to_string();
    Ok(GhostImage { pool, cid, name: name.to_owned(), tiering: args.tiering })
}

fn list(args: &ListArgs) -> CommandResult {
    let mut ghosts = node::query_all(args.node.as_ref(), |client| client.ghosts())?;
    ghosts.sort_by(|a: &GhostState, b| (&a.node, &a.id).cmp(&(&b.node, &b.id)));
    if args.json {
        print_json(&ghosts)?;
    } else {
        show(&ghosts);
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(args: &StopArgs) -> CommandResult {
    node::agent(&args.node)?.stop_ghosts(args.id.clone())?;
    Ok(ExitCode::SUCCESS)
}

fn pause(args: &PauseArgs, paused: bool) -> CommandResult {
    let ghosts = node::agent(&args.node)?.ghosts()?;
    let found = ghosts.into_iter().find(|ghost| ghost.id == args.id);
    let found = found.ok_or_else(|| NodeError::NoGhost { id: args.id.clone() })?;
    let pid = found.pid.ok_or_else(|| format!("no clone runs in ghost {}", args.id))?;
    node::agent(&args.node)?.pause(pid, paused)?;
    Ok(ExitCode::SUCCESS)
}

fn show(ghosts: &[GhostState]) {
    println!(
        "{:<8} {:<8} {:<12} {:<8} {:>7} {:>7} {:>10} {:>10}  IMAGE",
        "NODE", "GHOST", "USER", "STATE", "INIT", "PID", "LOCAL", "KERNEL"
    );
    for ghost in ghosts {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        println!(
            "{:<8} {:<8} {:<12} {:<8} {:>7} {:>7} {:>10} {:>10}  {}",
            ghost.node,
            ghost.id,
            or_none(ghost.user.clone()),
            phase_name(ghost.state),
            ghost.init_pid,
            or_none(ghost.pid.map(|pid| pid.to_string())),
            size::show(ghost.local_bytes),
            or_none(ghost.kernel_bytes.map(size::show)),
            or_none(ghost.image.clone()),
        );
    }
}

fn phase_name(state: GhostPhase) -> &'static str {
    match state {
        GhostPhase::Empty => "empty",
        GhostPhase::Attached => "attached",
        GhostPhase::Running => "running",
    }
}
