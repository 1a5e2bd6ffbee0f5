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
use crate::{CommandResult, node, size, usage_error};

/// What to do with ghosts.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a container that waits to become a clone.
    Start(StartArgs),
    /// List ghosts: those that wait, and those in which clones run.
    List(ListArgs),
    /// End ghosts, and the clones in them.
    Stop(StopArgs),
    /// Have all that is in a ghost in which a clone runs stand still.
    Pause(PauseArgs),
    /// Have it go on.
    Resume(PauseArgs),
}

/// What the ghost shall be.
#[derive(clap::Args)]
pub(crate) struct StartArgs {
    /// Whose images it takes, as in USER/FUNCTION; anybody's without it.
    #[arg(long)]
    user: Option<String>,
    /// OCI bundle to make the container from; without it, one with this node's files and with
    /// namespaces and a cgroup of its own.
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Image whose clone it makes at once, up to its last steps; it takes no other then.
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    pool: PoolArg,
    /// When pages of that image become local: see farfork restore.
    #[arg(long, value_name = "mow|moa|hybrid|copy", default_value_t = Tiering::Mow)]
    tiering: Tiering,
    /// Limit of the container's memory.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Limit of the container's processes and threads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pids_limit: Option<u64>,
    /// Directory in whose place the container has an empty one in memory; more than once for more.
    #[arg(long, value_name = "DIR", conflicts_with = "bundle")]
    tmpfs: Vec<PathBuf>,
    /// Node to make it on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// How to list.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// One node; all nodes of this machine without it.
    #[arg(long, value_parser = node::name)]
    node: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Which ghosts to end.
#[derive(clap::Args)]
pub(crate) struct StopArgs {
    /// Its name.
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// All ghosts of the node.
    #[arg(long)]
    all: bool,
    /// Node it is on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
}

/// Which ghost.
#[derive(clap::Args)]
pub(crate) struct PauseArgs {
    /// Its name.
    #[arg(value_name = "ID")]
    id: String,
    /// Node it is on.
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
        return Ok(usage_error("--user is the first part of an image's name, USER/FUNCTION"));
    }
    let bundle = args.bundle.as_ref().map(std::path::absolute).transpose()?;
    let call = GhostCall {
        user: args.user.clone(),
        bundle,
        memory_bytes: args.memory,
        pids_limit: args.pids_limit,
        tmpfs: args.tmpfs.clone(),
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
    let cid = crate::restore::resolve(&Pool::open(&pool)?, name)?.to_string();
    Ok(GhostImage { pool, cid, name: name.to_owned(), tiering: args.tiering })
}

fn list(args: &ListArgs) -> CommandResult {
    let mut ghosts = node::ask_all(args.node.as_ref(), |client| client.ghosts())?;
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
            word(ghost.state),
            ghost.init_pid,
            or_none(ghost.pid.map(|pid| pid.to_string())),
            size::show(ghost.local_bytes),
            or_none(ghost.kernel_bytes.map(size::show)),
            or_none(ghost.image.clone()),
        );
    }
}

fn word(state: GhostPhase) -> &'static str {
    match state {
        GhostPhase::Empty => "empty",
        GhostPhase::Attached => "attached",
        GhostPhase::Running => "running",
    }
}
