//! The agent's main loop.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farfork_restore::{ImageSource, Template};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::NodeError;
use crate::ghosts::Ghosts;
use crate::headroom::MemoryHeadroom;
use crate::images::Images;
use crate::leftovers::leave_ghosts;
use crate::lock;
use crate::owner_lock::OwnerLock;
use crate::paths;
use crate::preforked::PreforkedInits;
use crate::profile::Sampler;
use crate::registry::Registry;
use crate::session::Node;
use crate::user;
use crate::workers::Workers;

/// The shortest slice that the scheduler grants.
const SLICE_NS: u64 = 100_000;

/// How a node is served.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Pools that are joined at once.
    pub pools: Vec<PathBuf>,
    /// After this time without a clone or a ghost the agent exits.
    pub idle: Option<Duration>,
    /// A file that its owner holds a lock on, and how long it waits, without clones, for a new owner before
    /// it ends its ghosts and exits.
    pub owner_lock: Option<(PathBuf, Duration)>,
    /// One of so many clones of each image is profiled; 0 for none.
    pub profile_every: u32,
    /// After this time the accessed bits of an image are reset, when the next clone is profiled.
    pub reset_accessed: Option<Duration>,
    /// Whether an init is forked before a clone is requested.
    pub preforks_inits: bool,
    /// What clones map of an image.
    pub image_source: ImageSource,
}

/// Serves the node `name`.
pub fn serve(name: &str, settings: &Settings) -> Result<(), NodeError> {
    paths::check_name(name)?;
    // Between a request and a clone's first instruction six processes wake each other; behind busy
    // neighbours each could wait for a whole slice of theirs. Clones get the default back.
    let _ = farfork_sys::sched_attr::request_slice(SLICE_NS);
    // When the process that started this agent exits, the kernel would send SIGHUP to all of the process
    // group as soon as one clone in it is stopped. This fails for the job of a shell.
    let _ = rustix::process::setsid();
    raise_file_limit();
    let path = paths::socket(name);
    let owner_lock = settings.owner_lock.as_ref().map(|(file, patience)| {
        let failed = |source| socket_error("open the lock of the owner of", &path, source);
        OwnerLock::open(file, *patience).map_err(failed)
    });
    let owner_lock = owner_lock.transpose()?;
    let own_ids = user::settle()?; // before there are threads
    let (listener, _lock) = listen_at(&path)?;
    let template = Arc::new(Mutex::new(Template::start()?));
    let node = Arc::new(Node {
        name: name.to_owned(),
        own_ids,
        headroom: MemoryHeadroom::of_process(std::process::id() as i32),
        images: Images::new(name, settings.image_source),
        registry: Registry::new()
            .map_err(|source| socket_error("watch the clones of", &path, source))?,
        preforked: settings.preforks_inits.then(|| PreforkedInits::start(Arc::clone(&template))),
        template,
        sampler: Sampler::start(),
        profile_every: settings.profile_every,
        reset_accessed: settings.reset_accessed,
        ghosts: Ghosts::new(paths::ghosts(name)),
    });
    for pool in &settings.pools {
        node.images.pool(pool)?;
    }
    let watched = Arc::clone(&node);
    thread::spawn(move || watched.registry.watch());
    serve_all(&node, listener, settings.idle, owner_lock);
    leave_ghosts(name);
    let _ = fs::remove_file(&path);
    Ok(())
}

/// The agent has a descriptor or more for each image and each clone. A clone's own limit is its
/// parent's.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the limit stays low, calls fail with a message when it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn socket_error(doing: &'static str, path: &Path, source: io::Error) -> NodeError {
    NodeError::Socket { doing, path: path.to_owned(), source }
}

/// Binds the socket. The lock beside it shows whether an agent lives.
fn listen_at(path: &Path) -> Result<(OwnedFd, fs::File), NodeError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    paths::make_run_directory(directory)
        .map_err(|e| socket_error("make the directory of", path, e))?;
    let lock = lock::take(path)?;
    let _ = fs::remove_file(path);
    let listener = bound(path).map_err(|errno| socket_error("listen at", path, errno.into()))?;
    Ok((listener, lock))
}

fn bound(path: &Path) -> nix::Result<OwnedFd> {
    let kind = SockType::SeqPacket;
    let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // A client may start processes as this user: only the owner may connect.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let result = bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &UnixAddr::new(path)?);
    rustix::process::umask(before);
    result?;
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener)
}

fn serve_all(
    node: &Arc<Node>,
    listener: OwnedFd,
    idle: Option<Duration>,
    mut owner_lock: Option<OwnerLock>,
) {
    let workers = Workers::new(Arc::clone(node), listener);
    let mut looked = Instant::now();
    loop {
        let is_quiet = workers.supervise(HOUSEKEEPING);
        if looked.elapsed() < HOUSEKEEPING {
            continue;
        }
        looked = Instant::now();
        node.images.reconcile();
        node.images.refresh();
        node.ghosts.tidy();
        let idle_for = node.registry.idle_for();
        let is_idle = node.ghosts.is_empty() && idle.is_some_and(|idle| idle_for > idle);
        let is_abandoned =
            owner_lock.as_mut().is_some_and(OwnerLock::is_abandoned) && !idle_for.is_zero();
        if is_quiet && (is_idle || is_abandoned) {
            node.ghosts.stop_all();
            return;
        }
    }
}

/// How often the agent does its housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
