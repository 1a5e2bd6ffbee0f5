//! `farfork node`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use farfork_node::client::Client;
use farfork_node::{ImageSource, NodeError, Settings, paths};

use crate::CommandResult;

/// Limit of a query. A stopped agent never answers.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of work that the agent does itself: killing containers, looking at the pages of a clone.
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// The node, and how its agent works.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the node.
    #[arg(long, env = "FARFORK_NODE", value_parser = name, default_value = paths::DEFAULT_NODE)]
    name: String,
    /// Pool to join at once. Others are joined at their first use. May be repeated.
    #[arg(long = "pool", value_name = "PATH")]
    pools: Vec<PathBuf>,
    /// Profile one of K clones of each image, to record which pages clones touch. 0 profiles none. A
    /// profiling clone takes a fault for each page it touches, and uses mow instead of hybrid.
    #[arg(long, value_name = "K", env = "FARFORK_PROFILE_EVERY", default_value_t = 0)]
    profile_every: u32,
    /// Reset the accessed bits of an image when a clone of it is profiled (--profile-every) and the
    /// last reset was so many seconds ago. Default: never.
    #[arg(long, value_name = "SECONDS", requires = "profile_every")]
    reset_accessed_s: Option<u64>,
    /// Prefork no init. Clones start later then, and only the agent and its template wait in memory.
    #[arg(long)]
    no_spare: bool,
    /// Copy each image into local memory when its first clone starts, and map the copy. All tiering
    /// policies then work on every medium.
    #[arg(long, env = "FARFORK_COPY_IMAGES")]
    copy_images: bool,
    /// For tests: have every second block of an image come from a copy.
    #[arg(long, env = "FARFORK_SPLIT_IMAGES", hide = true, conflicts_with = "copy_images")]
    split_images: bool,
    /// Exit after so many seconds without clones and ghosts. Default: never.
    #[arg(long, value_name = "SECONDS")]
    idle_exit_s: Option<u64>,
    /// Kill waiting ghosts and exit when no process has held a lock (flock) on this file for
    /// --abandoned-exit-s seconds and no clone runs.
    #[arg(long, value_name = "FILE")]
    keeper: Option<PathBuf>,
    /// How long to wait for a new lock holder, in seconds.
    #[arg(long, value_name = "SECONDS", requires = "keeper", default_value_t = 60)]
    abandoned_exit_s: u64,
}

/// Connects to the agent of a node for one request.
pub(crate) fn agent(node: &str) -> Result<Client, NodeError> {
    Client::connect_within(node, WORK_TIMEOUT)
}

/// The nodes of this machine that have had an agent.
pub(crate) fn nodes() -> Vec<String> {
    let entries = fs::read_dir(paths::run_directory()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()))
        .collect()
}

/// Queries the agent of a node, or the agents of all nodes of this machine.
pub(crate) fn query_all<T>(
    node: Option<&String>,
    query: impl Fn(Client) -> Result<Vec<T>, NodeError>,
) -> Result<Vec<T>, Box<dyn Error>> {
    let mut all = Vec::new();
    for node in node.map_or_else(nodes, |node| vec![node.clone()]) {
        match Client::connect_within(&node, QUERY_TIMEOUT).and_then(&query) {
            Ok(answer) => all.extend(answer),
            // A socket without an agent: the node has nothing.
            Err(NodeError::Socket { .. }) => {}
            Err(failure) => return Err(format!("node {node}: {failure}").into()),
        }
    }
    Ok(all)
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
        image_source: match (args.copy_images, args.split_images) {
            (true, _) => ImageSource::Copy,
            (_, true) => ImageSource::Split,
            _ => ImageSource::Pool,
        },
    };
    farfork_node::serve(&args.name, &settings)?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the name of a node.
pub(crate) fn name(text: &str) -> Result<String, String> {
    paths::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
