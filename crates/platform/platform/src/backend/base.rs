//! The base image of Python: the action server, warmed up until it waits for an action's code.
//!
//! It is the operator's, public, and contains no user's data. Its name in the pool depends on what
//! it was made of. It is made anew when that changes, or when no clone of it starts.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farfork_sys::words;
use farfork_types::Tiering;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{BackendError, Inner, blocking};
use crate::api::region;
use crate::confine;
use crate::scheduler::nodes::{Claim, Start};
use crate::scheduler::prepare::prepare;

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints the version, a digest of the runtime's files, and their directories.
const PROBE: &str = r#"
import hashlib, pathlib, sys
import farfork.runtime.action
digest = hashlib.sha256(f"{sys.version} {sys.executable}".encode())
for path in sorted(pathlib.Path(farfork.__file__).parent.rglob("*.py")):
    digest.update(path.read_bytes())
print(f"{sys.version_info[0]}.{sys.version_info[1]} {digest.hexdigest()[:16]}")
print(sys.executable, sys.prefix, sys.base_prefix, *sys.path, sep="\n")
"#;

/// Variables of the operator's environment that functions get.
const PASSED_VARIABLES: [&str; 5] = ["PATH", "PYTHONPATH", "LANG", "LC_ALL", "FARFORK_LIBRARY"];

/// Runs the action server in a network namespace of its own. Descriptor 3 is a place: each instance gets the region
/// of its function there.
const SERVE: &str =
    "umask 022 && ip link set lo up && exec \"$0\" -m farfork.runtime.action 3</dev/null";

/// A Python with the package `farfork`.
#[derive(Clone, Debug)]
pub struct Python {
    program: PathBuf,
    /// As in `3.11`.
    pub version: String,
    /// The directories of its files.
    pub paths: Vec<PathBuf>,
    digest: String,
}

impl Python {
    /// Inspects an interpreter.
    pub fn find(program: PathBuf) -> Result<Python, BackendError> {
        let failed = |reason: String| BackendError::Base { kind: "python".to_owned(), reason };
        let output = Command::new(&program).args(["-c", PROBE]).stdin(Stdio::null()).output();
        let shown = program.display();
        let output = output.map_err(|error| {
            failed(format!("cannot run {shown}: {}; name another by --python", words::of(&error)))
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines();
        match lines.next().and_then(|line| line.split_once(' ')) {
            Some((version, digest)) if output.status.success() => {
                let (version, digest) = (version.to_owned(), digest.to_owned());
                let paths = lines.filter(|path| !path.is_empty()).map(PathBuf::from).collect();
                let python = Python { program, version, paths, digest };
                python.warn_of_unreadable();
                Ok(python)
            }
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                let last = errors.lines().last().unwrap_or("no error message");
                Err(failed(format!(
                    "{shown} cannot import farfork.runtime.action: {last}; name one with the package \
                    farfork by --python"
                )))
            }
        }
    }

    /// Warns of packages that functions cannot import.
    fn warn_of_unreadable(&self) {
        for path in self.paths.iter().filter(|path| path.is_dir()) {
            if let Ok(Some(closed)) = confine::not_traversable(path) {
                let (path, closed) = (path.display(), closed.display());
                tracing::warn!(%path, "functions cannot import packages there; run chmod o+x {closed}");
            }
        }
    }

    /// `python:3.11`.
    pub fn kind(&self) -> String {
        format!("python:{}", self.version)
    }

    /// The name of its base image.
    pub fn image(&self) -> String {
        format!("farfork/python:{}-{}-{}", self.version, env!("CARGO_PKG_VERSION"), self.digest)
    }
}

/// Makes sure that a base image exists of which clones start.
pub async fn ensure(inner: &Arc<Inner>, python: &Python) -> Result<(), BackendError> {
    let name = &inner.base;
    let failed = |reason: String| BackendError::Base { kind: python.kind(), reason };
    let found = inner.images.usable(name).await.map_err(|error| failed(error.to_string()))?;
    if found.is_some() {
        match starts(inner, python).await {
            Ok(()) => return Ok(()),
            Err(reason) => {
                tracing::warn!(reason, "making the base image anew: no clone of it starts")
            }
        }
    }
    make(inner, python, name).await.map_err(failed)?;
    starts(inner, python).await.map_err(failed)
}

/// Checks that a clone of it starts, and can be reached.
async fn starts(inner: &Arc<Inner>, python: &Python) -> Result<(), String> {
    let Some(node) = inner.settings.nodes.first() else { return Ok(()) };
    let claim = Claim { memory_mb: farfork_scheduler::USUAL_MB, expected_bytes: None };
    let start = Start {
        node: node.clone(),
        image: None,
        kind: python.kind(),
        claim,
        tiering: Tiering::Mow,
        local_share: None,
        region: None,
    };
    let reservation = inner.ledger.reserve(node, claim);
    let reservation = reservation.ok_or("the node has no memory left for an instance of 256 MB")?;
    let started = Arc::clone(inner).start(start, reservation).await;
    let started = started.map_err(|error| error.to_string())?;
    (started.connect)().await.map(drop).map_err(|error| words::of(&error))
}

/// The server's process, which ends when this is dropped or when this program exits.
struct Server {
    child: Child,
    /// The reading end of its output, never read. Its output is a pipe so that clones get pipes,
    /// too.
    _output: OwnedFd,
    /// Dropping it ends the thread that has started the process.
    _thread: mpsc::Sender<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(python: &Python) -> io::Result<Server> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--", "sh", "-c", SERVE]);
        command.arg(&python.program);
        command.stdin(Stdio::null()).stdout(theirs.try_clone()?).stderr(theirs);
        command.process_group(0).current_dir("/");
        // Functions inherit this environment.
        command
            .env_clear()
            .envs(PASSED_VARIABLES.iter().filter_map(|key| Some((key, env::var_os(key)?))));
        // PDEATHSIG is sent when the starting thread ends, and threads of a pool end soon. So the
        // process gets a thread of its own.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (thread, over) = mpsc::channel::<()>();
        thread::spawn(move || {
            let _ = sender.send(command.spawn());
            let _ = over.recv();
        });
        let gone = |_| io::Error::other("the thread that starts it panicked");
        Ok(Server { child: receiver.recv().map_err(gone)??, _output: ours, _thread: thread })
    }
}

async fn make(inner: &Arc<Inner>, python: &Python, name: &str) -> Result<(), String> {
    let started = python.clone();
    let server = blocking(move || Server::start(&started)).await;
    let server = server.ok_or("the platform is shutting down")?;
    let mut server = server.map_err(|error| format!("cannot start it: {}", words::of(&error)))?;
    let pid = i32::try_from(server.child.id()).map_err(|_| "its pid is invalid")?;
    let begun = Instant::now();
    let connect = loop {
        // A new connector each time: the process enters its network namespace after it was started.
        if let Ok(connect) = inner.connector.to(pid)
            && connect().await.is_ok()
        {
            break connect;
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("its server exited ({status}) before it listened"));
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("its server did not listen within {} s", PATIENCE.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let hot = prepare(&connect).await?;
    let node = inner.settings.nodes.first().ok_or("the platform has no node to try it on")?;
    let made =
        inner.images.checkpoint((pid, node), name, hot, (true, Some(region::DESCRIPTOR))).await;
    made.map_err(|error| error.to_string())
}
