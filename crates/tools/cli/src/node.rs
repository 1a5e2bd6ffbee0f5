//! `farfork node`.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use farfork_node::client::Client;
use farfork_node::{NodeError, Settings, paths};

use crate::{CommandResult, clones};

/// How long an agent may take to tell what there is. One that was stopped, by a debugger say, never does.
const LOOK: Duration = Duration::from_secs(10);
/// How long it may take for what it does itself: ending containers, looking at the pages of a clone.
const WORK: Duration = Duration::from_secs(60);

/// Which node to be.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the node.
    #[arg(long, env = "FARFORK_NODE", value_parser = name, default_value = paths::DEFAULT_NODE)]
    name: String,
    /// Pools to join at once; others are joined when they are first used.
    #[arg(long = "pool", value_name = "PATH")]
    pools: Vec<PathBuf>,
    /// Watch one clone of each image in K, to tell which pages clones touch; 0 for none. Such a clone
    /// takes a fault for every page it touches, and starts by mow if it was to start by hybrid.
    #[arg(long, value_name = "K", env = "FARFORK_PROFILE_EVERY", default_value_t = 0)]
    profile_every: u32,
    /// When a clone is watched by --profile-every, forget what those before it have accessed, if that
    /// was not done for so many seconds; without it all is remembered.
    #[arg(long, value_name = "SECONDS", requires = "profile_every")]
    reset_accessed_s: Option<u64>,
    /// Make no init in advance. Clones start later then, and nothing of farfork's waits in memory but the
    /// agent and its template.
    #[arg(long)]
    no_spare: bool,
    /// Copy each image into this machine's memory when its first clone starts, and map that: clones
    /// start under every policy then, whatever the pool lies on. Always so where the pool cannot be mapped
    /// privately (device DAX).
    #[arg(long, env = "FARFORK_COPY_IMAGES")]
    copy_images: bool,
    /// Leave after so many seconds without a clone and a ghost; without it the agent stays.
    #[arg(long, value_name = "SECONDS")]
    idle_exit_s: Option<u64>,
    /// Leave, and end ghosts that wait, when there are no clones and nobody has held a lock (flock) on this
    /// file for --abandoned-exit-s.
    #[arg(long, value_name = "FILE")]
    keeper: Option<PathBuf>,
    /// How long the next one is waited for who holds it.
    #[arg(long, value_name = "SECONDS", requires = "keeper", default_value_t = 60)]
    abandoned_exit_s: u64,
}

/// Reaches the agent of a node, to have it do one thing.
pub(crate) fn agent(node: &str) -> Result<Client, NodeError> {
    Client::connect_within(node, WORK)
}

/// What agents tell: that of a node, or of each node of this machine that has one.
pub(crate) fn ask_all<T>(
    node: Option<&String>,
    ask: impl Fn(Client) -> Result<Vec<T>, NodeError>,
) -> Result<Vec<T>, Box<dyn Error>> {
    let mut told = Vec::new();
    for node in node.map_or_else(clones::nodes, |node| vec![node.clone()]) {
        match Client::connect_within(&node, LOOK).and_then(&ask) {
            Ok(its) => told.extend(its),
            // A socket without an agent behind it is a node with nothing.
            Err(NodeError::Socket { .. }) => {}
            Err(told) => return Err(format!("node {node}: {told}").into()),
        }
    }
    Ok(told)
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let abandoned_exit = Duration::from_secs(args.abandoned_exit_s);
    let settings = Settings {
        pools: args.pools.clone(),
        idle: args.idle_exit_s.map(Duration::from_secs),
        owner_lock: args.keeper.clone().map(|file| (file, abandoned_exit)),
        profile_every: args.profile_every,
        reset_accessed: args.reset_accessed_s.map(Duration::from_secs),
        preforks_inits: !args.no_spare,
        copies_images: args.copy_images,
    };
    farfork_node::serve(&args.name, &settings)?;
    Ok(ExitCode::SUCCESS)
}

/// The name of a node, for command lines.
pub(crate) fn name(text: &str) -> Result<String, String> {
    paths::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
