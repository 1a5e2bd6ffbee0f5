//! The base image of Python: the action server, warmed until it waits for an action's code.
//!
//! It is the operator's and public: nothing of any user's is in it. A pool keeps it under a name that
//! tells what it was made of, and it is made anew when that changes, or when no clone of it starts.

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
use crate::confine;
use crate::scheduler::nodes::{Claim, Start};
use crate::scheduler::prepare::prepare;

/// How long the server may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the version, a digest of all that the runtime is made of, and where its files lie.
const WHAT: &str = r#"
import hashlib, pathlib, sys
import farfork.runtime.action
digest = hashlib.sha256(f"{sys.version} {sys.executable}".encode())
for path in sorted(pathlib.Path(farfork.__file__).parent.rglob("*.py")):
    digest.update(path.read_bytes())
print(f"{sys.version_info[0]}.{sys.version_info[1]} {digest.hexdigest()[:16]}")
print(sys.executable, sys.prefix, sys.base_prefix, *sys.path, sep="\n")
"#;

/// What of the operator's environment functions see.
const KEPT: [&str; 4] = ["PATH", "PYTHONPATH", "LANG", "LC_ALL"];

/// Listens in a network of its own, and does nothing else.
const SERVE: &str = "umask 022 && ip link set lo up && exec \"$0\" -m farfork.runtime.action";

/// A Python with the package `farfork`.
#[derive(Clone, Debug)]
pub struct Python {
    program: PathBuf,
    /// As in `3.11`.
    pub version: String,
    /// Where its files lie.
    pub paths: Vec<PathBuf>,
    digest: String,
}

impl Python {
    /// Looks at an interpreter.
    pub fn find(program: PathBuf) -> Result<Python, BackendError> {
        let failed = |reason: String| BackendError::Base { kind: "python".to_owned(), reason };
        let asked = Command::new(&program).args(["-c", WHAT]).stdin(Stdio::null()).output();
        let shown = program.display();
        let asked = asked.map_err(|error| {
            failed(format!("cannot run {shown}: {}: name another by --python", words::of(&error)))
        })?;
        let said = String::from_utf8_lossy(&asked.stdout).into_owned();
        let mut lines = said.lines();
        match lines.next().and_then(|line| line.split_once(' ')) {
            Some((version, digest)) if asked.status.success() => {
                let (version, digest) = (version.to_owned(), digest.to_owned());
                let paths = lines.filter(|path| !path.is_empty()).map(PathBuf::from).collect();
                let python = Python { program, version, paths, digest };
                python.warn_of_closed();
                Ok(python)
            }
            _ => {
                let said = String::from_utf8_lossy(&asked.stderr);
                let last = said.lines().last().unwrap_or("it says nothing");
                Err(failed(format!(
                    "{shown} cannot import farfork.runtime.action: {last}: name one that has the \
                     package by --python"
                )))
            }
        }
    }

    /// Tells which packages functions cannot import.
    fn warn_of_closed(&self) {
        for path in self.paths.iter().filter(|path| path.is_dir()) {
            if let Ok(Some(closed)) = confine::not_traversable(path) {
                let (path, closed) = (path.display(), closed.display());
                tracing::warn!(%path, "functions cannot import what lies there: chmod o+x {closed}");
            }
        }
    }

    /// `python:3.11`.
    pub fn kind(&self) -> String {
        format!("python:{}", self.version)
    }

    fn image(&self) -> String {
        format!("farfork/python:{}-{}-{}", self.version, env!("CARGO_PKG_VERSION"), self.digest)
    }
}

/// The name of the base image, which is made if there is none of which clones start.
pub async fn have(inner: &Arc<Inner>, python: &Python) -> Result<String, BackendError> {
    let name = python.image();
    let failed = |reason: String| BackendError::Base { kind: python.kind(), reason };
    let found = inner.images.usable(&name).await.map_err(|error| failed(error.to_string()))?;
    if found.is_some() {
        match starts(inner, python, &name).await {
            Ok(()) => return Ok(name),
            Err(reason) => tracing::warn!(reason, "the base image is made anew"),
        }
    }
    make(inner, python, &name).await.map_err(failed)?;
    starts(inner, python, &name).await.map_err(failed)?;
    Ok(name)
}

/// Whether a clone of it starts, and can be reached.
async fn starts(inner: &Arc<Inner>, python: &Python, name: &str) -> Result<(), String> {
    let Some(node) = inner.settings.nodes.first() else { return Ok(()) };
    let claim = Claim { memory_mb: super::ghosts::USUAL_MB, expected_bytes: None };
    let start = Start {
        node: node.clone(),
        image: Some(name.to_owned()),
        kind: python.kind(),
        claim,
        tiering: Tiering::Mow,
    };
    let reservation = inner.table.reserve(node, claim);
    let reservation = reservation.ok_or("the node has no room for an instance of 256 MB")?;
    let started = Arc::clone(inner).start(start, reservation).await;
    let started = started.map_err(|error| error.to_string())?;
    (started.connect)().await.map(drop).map_err(|error| words::of(&error))
}

/// A process that ends when this is dropped, or when this program does.
struct Server {
    child: Child,
    /// Its output is a pipe's, so that each clone is given another; nobody reads this one.
    _output: OwnedFd,
    /// Ends the thread that has started it when this is dropped.
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
        // Every function inherits it.
        command.env_clear().envs(KEPT.iter().filter_map(|key| Some((key, env::var_os(key)?))));
        // It is killed when the thread ends that has started it, which one of a pool soon does.
        let (tell, told) = mpsc::sync_channel(1);
        let (thread, over) = mpsc::channel::<()>();
        thread::spawn(move || {
            let _ = tell.send(command.spawn());
            let _ = over.recv();
        });
        let gone = |_| io::Error::other("the thread that starts it has ended");
        Ok(Server { child: told.recv().map_err(gone)??, _output: ours, _thread: thread })
    }
}

async fn make(inner: &Arc<Inner>, python: &Python, name: &str) -> Result<(), String> {
    let started = python.clone();
    let server = blocking(move || Server::start(&started)).await;
    let server = server.ok_or("the platform ends")?;
    let mut server = server.map_err(|error| format!("cannot start it: {}", words::of(&error)))?;
    let pid = i32::try_from(server.child.id()).map_err(|_| "its pid is none")?;
    let begun = Instant::now();
    let connect = loop {
        // Asked for anew each time: it enters its network after it has begun.
        if let Ok(connect) = inner.connector.to(pid)
            && connect().await.is_ok()
        {
            break connect;
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("its server has ended ({status}) instead of listening"));
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("its server does not listen after {} s", PATIENCE.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let hot = prepare(&connect).await?;
    let made = inner.images.checkpoint(pid, name, hot, true).await;
    made.map_err(|error| error.to_string())
}
