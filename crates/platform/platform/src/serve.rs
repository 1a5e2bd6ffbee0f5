//! The platform as a program: starts everything, serves until SIGTERM or SIGINT, and cleans up.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::Settings as PolicySettings;
use farfork_policy::share::Cell;
use rustix::fs::Mode;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{Name, Runtimes};
use crate::backend::{
    Agents, Backend, BackendError, Budgets, ProcessCounts, Python, Settings as BackendSettings,
};
use crate::confine::{FolderError, Folders};
use crate::connections::{self, ClientLimits};
use crate::dashboard::Dashboard;
use crate::gateway::{Gateway, router};
use crate::memory::RequestMemory;
use crate::operator::{Listener, OperatorError, ensure_guest_key};
use crate::runtimes::{NodeJs, NodeJsError, OtherRuntimes};
use crate::scheduler::{Advisor, Caller, GRACE, JournalFile, Observable, Platform};
use crate::store::{Embedded, Store, StoreError, forget_old};

/// Settings of the platform.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The nodes.
    pub backend: BackendSettings,
    /// The state directory.
    pub state: PathBuf,
    /// The address to listen at.
    pub listen: SocketAddr,
    /// The interpreter of Python functions.
    pub python: PathBuf,
    /// Node.js for functions in JavaScript; `node` from the `PATH` if not given.
    pub nodejs: Option<PathBuf>,
    /// Settings of the policies.
    pub policies: PolicySettings,
    /// Profiles of functions, by `NAMESPACE/NAME` or name.
    pub profiles: BTreeMap<String, Vec<Cell>>,
    /// How long activations are kept; for ever if not given.
    pub retention: Option<Duration>,
}

/// The platform cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A file or socket of the platform fails.
    #[error("cannot {doing} {place}: {}", farfork_sys::words::of(.source))]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        place: String,
        /// Why not.
        source: io::Error,
    },
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The nodes fail.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The given Node.js cannot be used.
    #[error(transparent)]
    NodeJs(#[from] NodeJsError),
    /// The folders of functions cannot be made.
    #[error(transparent)]
    Folders(#[from] FolderError),
    /// The guest's key, or the operator's socket, cannot be made.
    #[error(transparent)]
    Operator(#[from] OperatorError),
}

fn failed<'a>(
    doing: &'static str,
    place: &'a impl ToString,
) -> impl Fn(io::Error) -> ServeError + 'a {
    move |source| ServeError::Io { doing, place: place.to_string(), source }
}

/// Serves until SIGTERM or SIGINT, and then until all calls that have begun have ended, or until
/// the next signal. Calls `ready` with the address.
pub fn run(settings: &Settings, ready: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
    // Files are readable by the operator alone, unless a mode is given.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    farfork_sys::allocator::return_large_blocks();
    // Each connection takes a descriptor. Functions get a limit of their own before their code is
    // loaded.
    let descriptors = farfork_sys::limits::raise_open_files(0)
        .map_err(failed("raise the limit of open files of", &"the platform"))?;
    let state = settings.state.display().to_string();
    fs::create_dir_all(&settings.state)
        .and_then(|()| allow_traversal(&settings.state))
        .map_err(failed("make the directory", &state))?;
    let folders = Folders::open(settings.state.join("code"))?
        .limited(settings.policies.disk.namespace_unpacked_bytes);
    let store = Embedded::open(&settings.state.join("store.redb"))?;
    let store: Arc<dyn Store> = Arc::new(store.limited(settings.policies.disk));
    ensure_guest_key(&*store, &Name::guest(), &settings.state.join("guest.key"))?;
    let journal = settings.state.join("decisions.jsonl");
    let advisor = JournalFile::open(&journal)
        .and_then(|journal| Advisor::new(settings.policies, Some(journal)))
        .map_err(failed("write", &journal.display().to_string()))?
        .with_profiles(settings.profiles.clone());
    let python = Python::find(settings.python.clone())?;
    let runtimes = settings.state.join("runtimes");
    let others = OtherRuntimes { nodejs: NodeJs::find(settings.nodejs.as_deref(), &runtimes)? };
    let listener = std::net::TcpListener::bind(settings.listen);
    let listener = listener.map_err(failed("listen at", &settings.listen))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed("start threads of", &"the platform"))?;
    // From here on signals are handled: agents would outlive a killed platform.
    let shutdown = runtime.block_on(async { ShutdownSignals::listen() });
    let shutdown = shutdown.map_err(failed("wait for signals to", &"the platform"))?;
    let agents = Agents::start(&settings.backend)?;
    let parts = Parts {
        python,
        others,
        store: Arc::clone(&store),
        folders,
        advisor: Arc::new(advisor),
        groups: (agents.budgets(), agents.processes()),
    };
    let limits = ClientLimits::with_descriptors(descriptors);
    let served = runtime.block_on(serve(settings, parts, (listener, limits), (shutdown, ready)));
    // Instances end with their tasks. After that no task needs the agents.
    runtime.shutdown_timeout(GRACE);
    let flushed = store.flush();
    drop(agents);
    flushed?;
    served
}

/// Lets functions traverse a directory on the way to their files. They can neither list it nor read
/// files in it, including files of earlier runs.
fn allow_traversal(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let mode = entry.metadata()?.permissions().mode();
            fs::set_permissions(entry.path(), Permissions::from_mode(mode & 0o700))?;
        }
    }
    fs::set_permissions(directory, Permissions::from_mode(0o711))
}

/// The parts of a platform.
struct Parts {
    python: Python,
    others: OtherRuntimes,
    store: Arc<dyn Store>,
    folders: Folders,
    advisor: Arc<Advisor>,
    groups: (Budgets, ProcessCounts),
}

async fn serve(
    settings: &Settings,
    parts: Parts,
    (listener, limits): (std::net::TcpListener, ClientLimits),
    (mut shutdown, ready): (ShutdownSignals, impl FnOnce(SocketAddr)),
) -> Result<(), ServeError> {
    let place = "the platform's socket";
    let Parts { python, others, store, folders, advisor, groups } = parts;
    let beginning = Backend::begin(
        settings.backend.clone(),
        groups,
        &python,
        (others.paths(), folders.directory()),
        Arc::clone(&advisor),
    );
    let backend = tokio::select! {
        backend = beginning => backend?,
        () = shutdown.wait() => return Ok(()),
    };
    let nodejs = others.nodejs.as_ref().map(|nodejs| nodejs.version.clone());
    let runtimes = Arc::new(Runtimes { python: python.version, nodejs, blackbox: true });
    let memory = RequestMemory::new(settings.policies.requests);
    let platform = Platform::begin(
        Arc::clone(&store),
        Arc::new(backend),
        advisor,
        folders,
        others,
        Arc::clone(&memory),
    )?;
    if let Some(retention) = settings.retention {
        tokio::spawn(forget_old(Arc::clone(&store), retention));
    }
    let dashboard = Dashboard::new(Arc::clone(&platform) as Arc<dyn Observable>);
    let operator = tokio::spawn(Listener::bind(&settings.state)?.serve(Arc::clone(&store)));
    let gateway =
        Gateway { store, runtimes, caller: Arc::clone(&platform) as Arc<dyn Caller>, memory };
    listener.set_nonblocking(true).map_err(failed("use", &place))?;
    let listener = TcpListener::from_std(listener).map_err(failed("use", &place))?;
    ready(listener.local_addr().map_err(failed("use", &place))?);
    let (end_serving, serving_ends) = tokio::sync::oneshot::channel::<()>();
    let routes = router(gateway).merge(Arc::clone(&dashboard).router());
    // A dropped sender ends it, too.
    let serving_ends = async { drop(serving_ends.await) };
    let serving = connections::serve(listener, routes, limits, serving_ends);
    let serving = tokio::spawn(serving);
    shutdown.wait().await;
    tracing::info!("shutting down");
    operator.abort();
    let _ = end_serving.send(());
    dashboard.end();
    tokio::select! {
        () = platform.end(serving) => {}
        () = shutdown.wait() => tracing::warn!("second signal: running calls are aborted"),
    }
    Ok(())
}

/// SIGTERM and SIGINT.
struct ShutdownSignals {
    terminated: tokio::signal::unix::Signal,
    interrupted: tokio::signal::unix::Signal,
}

impl ShutdownSignals {
    fn listen() -> io::Result<ShutdownSignals> {
        let terminated = signal(SignalKind::terminate())?;
        Ok(ShutdownSignals { terminated, interrupted: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_can_traverse_the_state_but_not_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let old = directory.path().join("store");
        fs::write(&old, "of before").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        allow_traversal(directory.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&old), mode(directory.path())), (0o600, 0o711));
    }
}
