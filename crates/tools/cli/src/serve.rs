//! `farfork serve`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use farfork_platform::backend;
use farfork_platform::serve::{Settings, run as serve};
use farfork_policy::share::Cell;
use farfork_pool::Pool;

use crate::log::{self, LogFormat};
use crate::pool::PoolArg;
use crate::{CommandResult, size};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Smallest memory of a node.
const LEAST_NODE_BYTES: u64 = 512 << 20;

/// What to serve, and where.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// Directory for keys, functions, activations, code and logs.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farfork")]
    state: PathBuf,
    /// Address to listen on. With port 0 the kernel chooses a port. The address is printed.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3233")]
    listen: SocketAddr,
    /// Number of emulated nodes.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,
    /// Memory budget of the instances of one node, e.g. 4G. Default: the nodes share the memory of the
    /// machine that the pool leaves.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    node_memory: Option<u64>,
    /// Profile one of K clones of each image on each node, beginning with the first, to record which
    /// pages calls touch. 0 profiles none. A profiling clone takes a fault for each page it touches.
    #[arg(long, value_name = "K", env = "FARFORK_PROFILE_EVERY", default_value_t = 16)]
    profile_every: u32,
    /// How long agents outlive a killed gateway, in seconds. A new one with the same --state takes
    /// them over.
    #[arg(long, value_name = "SECONDS", env = "FARFORK_AGENTS_OUTLIVE_S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86400))]
    agents_outlive_s: u64,
    /// Days to keep records of activations. 0 keeps them for ever.
    #[arg(long, value_name = "DAYS", env = "FARFORK_RETENTION_DAYS", default_value_t = 7)]
    retention_days: u32,
    /// Python with the package farfork, for Python functions. A name means the program beside farfork, or in PATH.
    #[arg(long, value_name = "PATH", env = "FARFORK_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Node.js, for JavaScript functions. Default: node in PATH, if there is one.
    #[arg(long, value_name = "PATH", env = "FARFORK_NODEJS")]
    nodejs: Option<PathBuf>,
    /// JSON file with settings of the policies. Settings not given keep their defaults.
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
    /// Profile of a function, as farfork profile writes it, for the policy that chooses shares of near memory. May be
    /// repeated.
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// Format of the log on stderr.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: LogFormat,
    /// Least severe events to log: error, warn, info, debug (each call, with its trace) or trace.
    #[arg(long, value_name = "LEVEL", default_value_t = tracing::Level::INFO)]
    log_level: tracing::Level,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let policies = args.policies.as_deref().map(policies).transpose()?.unwrap_or_default();
    let profiles = profiles(&args.profile)?;
    if !rustix::process::geteuid().is_root() {
        return Err("cannot serve: only root can create the containers of functions".into());
    }
    log::begin(args.log_format, args.log_level);
    let pool = args.pool.path()?;
    let state = std::path::absolute(&args.state)?;
    let settings = Settings {
        backend: backend::Settings {
            program: std::env::current_exe()?,
            nodes: (1..=args.nodes).map(|number| format!("node{number}")).collect(),
            node_memory_bytes: node_memory(args, &Pool::open(&pool)?)?,
            processes_permille: policies.processes.all_permille,
            profile_every: args.profile_every,
            state: state.clone(),
            pool,
            agents_outlive: Duration::from_secs(args.agents_outlive_s),
        },
        listen: args.listen,
        python: program(&args.python)?,
        nodejs: args.nodejs.as_deref().map(program).transpose()?,
        state: state.clone(),
        policies,
        profiles,
        retention: (args.retention_days > 0).then(|| DAY * args.retention_days),
    };
    serve(&settings, |address| {
        // The caller may have closed the other end.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "http://{address}").and_then(|()| out.flush());
        let key = state.join("guest.key");
        let (dashboard, key_of_guest) = (format!("http://{address}/"), key.display());
        tracing::info!(dashboard, %key_of_guest, "serving");
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The path of a program. A name without a slash means the program beside farfork's own, as in a virtual
/// environment, or else the one in `PATH`.
pub(crate) fn program(path: &Path) -> std::io::Result<PathBuf> {
    if path.components().count() > 1 {
        return std::path::absolute(path);
    }
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(path));
    Ok(beside.filter(|beside| beside.is_file()).unwrap_or_else(|| path.to_owned()))
}

/// Settings of the policies from a file.
pub(crate) fn policies(file: &Path) -> Result<farfork_policy::Settings, Box<dyn Error>> {
    let text = fs::read(file).map_err(|error| {
        format!("cannot read {}: {}", file.display(), farfork_sys::words::of(&error))
    })?;
    serde_json::from_slice(&text).map_err(|wrong| {
        format!("invalid settings of policies in {}: {wrong}", file.display()).into()
    })
}

/// Profiles by the names of their functions.
fn profiles(files: &[PathBuf]) -> Result<BTreeMap<String, Vec<Cell>>, Box<dyn Error>> {
    let mut profiles = BTreeMap::new();
    for file in files {
        let (function, cells) = farfork_sim::profile::facts(file)?;
        if profiles.insert(function.clone(), cells).is_some() {
            let file = file.display();
            return Err(format!(
                "cannot use the profile in {file}: there is another one of function '{function}'; give one of them"
            )
            .into());
        }
    }
    Ok(profiles)
}

fn node_memory(args: &Args, pool: &Pool) -> Result<u64, Box<dyn Error>> {
    if let Some(bytes) = args.node_memory {
        return Ok(bytes);
    }
    let total = rustix::system::sysinfo().totalram;
    let left = total.saturating_sub(pool.info()?.size_bytes);
    Ok((left / u64::from(args.nodes)).max(LEAST_NODE_BYTES))
}
