//! The agent's main loop.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farfork_restore::Template;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::NodeError;
use crate::ghosts::Ghosts;
use crate::images::Images;
use crate::keeper::Keeper;
use crate::leftovers::leave_ghosts;
use crate::paths;
use crate::profile::Sampler;
use crate::registry::Registry;
use crate::room::Room;
use crate::session::Node;
use crate::spares::Spares;
use crate::user;
use crate::workers::Workers;

/// The shortest slice that the scheduler grants.
const SLICE_NS: u64 = 100_000;

/// How a node is served.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Pools that are joined at once.
    pub pools: Vec<PathBuf>,
    /// After so long without a clone or a ghost the agent goes.
    pub idle: Option<Duration>,
    /// A file that its keeper holds a lock on, and how long it waits, without clones, for another before it
    /// goes and ends its ghosts.
    pub keeper: Option<(PathBuf, Duration)>,
    /// One clone of each image in so many is watched, to tell which pages it touches; 0 for none.
    pub profile_every: u32,
    /// After so long what clones of an image have accessed is forgotten, when the next one is watched.
    pub reset_accessed: Option<Duration>,
    /// Whether an init is made before a clone is asked for.
    pub has_spare: bool,
    /// Whether clones map copies of images in memory, also where they could map the pool.
    pub copies_images: bool,
}

/// Serves the node `name`.
pub fn serve(name: &str, settings: &Settings) -> Result<(), NodeError> {
    paths::check_name(name)?;
    // Between a request and a clone's first instruction six processes wake each other; behind busy
    // neighbours each could wait for a whole slice of theirs. Clones get the default back.
    let _ = farfork_sys::slice::request(SLICE_NS);
    // When whoever started this agent ends, the kernel would send SIGHUP to all of the process
    // group as soon as one clone in it is stopped. A shell's job stays the shell's.
    let _ = rustix::process::setsid();
    raise_file_limit();
    let path = paths::socket(name);
    let keeper = settings.keeper.as_ref().map(|(file, patience)| {
        let failed = |source| socket_error("look for the keeper of", &path, source);
        Keeper::of(file, *patience).map_err(failed)
    });
    let keeper = keeper.transpose()?;
    let own_ids = user::settle()?; // before there are threads
    let (listener, _lock) = listen_at(&path)?;
    let template = Arc::new(Mutex::new(Template::start()?));
    let node = Arc::new(Node {
        name: name.to_owned(),
        own_ids,
        room: Room::of(std::process::id() as i32),
        images: Images::new(name, settings.copies_images),
        registry: Registry::new()
            .map_err(|source| socket_error("watch clones of", &path, source))?,
        spares: settings.has_spare.then(|| Spares::start(Arc::clone(&template))),
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
    serve_all(&node, listener, settings.idle, keeper);
    leave_ghosts(name);
    let _ = fs::remove_file(&path);
    Ok(())
}

/// The agent has a descriptor or more for each image and each clone. A clone's own limit is its
/// parent's.
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // What stays low is told when it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn socket_error(doing: &'static str, path: &Path, source: io::Error) -> NodeError {
    NodeError::Socket { doing, path: path.to_owned(), source }
}

/// Binds the socket; the lock beside it tells a living agent from a dead one's leftovers.
fn listen_at(path: &Path) -> Result<(OwnedFd, fs::File), NodeError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    paths::make_run_directory(directory)
        .map_err(|e| socket_error("make the directory of", path, e))?;
    let lock = lock(path)?;
    let _ = fs::remove_file(path);
    let listener = bound(path).map_err(|errno| socket_error("listen at", path, errno.into()))?;
    Ok((listener, lock))
}

/// Takes the lock beside the socket, which an agent holds as long as it lives. It may be held for a
/// moment by somebody who clears what a dead agent has left.
pub fn lock(path: &Path) -> Result<fs::File, NodeError> {
    let create = || {
        paths::demand_own(path)?;
        paths::lock_file(&path.with_extension("lock"))
    };
    let lock = create().map_err(|source| socket_error("lock", path, source))?;
    for _ in 0..LOCK_TRIES {
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(lock);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(NodeError::Agent(format!("a node agent already serves {}", path.display())))
}

const LOCK_TRIES: u32 = 20;

fn bound(path: &Path) -> nix::Result<OwnedFd> {
    let kind = SockType::SeqPacket;
    let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    // Whoever may connect may start processes as this user: for the owner alone.
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
    mut keeper: Option<Keeper>,
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
        let is_left = keeper.as_mut().is_some_and(Keeper::has_left) && !idle_for.is_zero();
        if is_quiet && (is_idle || is_left) {
            node.ghosts.stop_all();
            return;
        }
    }
}

/// How often the agent looks after itself.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
