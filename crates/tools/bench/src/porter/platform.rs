//! A platform that serves: `farfork serve`.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_policy::Settings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::client::Client;
use crate::error::{BenchError, io};

/// How long it may take to end in order.
const GRACE: Duration = Duration::from_secs(60);

/// What to serve, and where.
pub struct Surroundings<'a> {
    /// Python that has the package farfork and all that functions import.
    pub python: &'a Path,
    /// The pool.
    pub pool: &'a Path,
    /// Where its state is kept.
    pub state: &'a Path,
    /// Where its agents listen.
    pub run: &'a Path,
    /// Memory of each node, in bytes.
    pub node_bytes: u64,
    /// Who decides.
    pub policies: &'a Settings,
}

/// One that serves. Dropped, it ends.
#[derive(Debug)]
pub struct Platform {
    child: Child,
    /// Whoever calls it.
    pub client: Client,
}

impl Platform {
    /// Starts it, and waits until it serves.
    pub fn start(surroundings: &Surroundings<'_>) -> Result<Platform, BenchError> {
        let Surroundings { python, pool, state, run, node_bytes, policies } = surroundings;
        fs::create_dir_all(state).map_err(io("make", *state))?;
        let (file, log) = (state.join("policies.json"), state.join("log"));
        let text = serde_json::to_string(policies).unwrap_or_default();
        fs::write(&file, text).map_err(io("write", &file))?;
        let out = fs::File::create(&log).map_err(io("make", &log))?;
        let program = crate::program::farfork()?;
        let mut child = Command::new(&program)
            .args(["serve", "--listen", "127.0.0.1:0", "--nodes", "2"])
            .args(["--node-memory", &node_bytes.to_string()])
            .arg("--pool")
            .arg(pool)
            .arg("--state")
            .arg(state)
            .arg("--python")
            .arg(python)
            .arg("--policies")
            .arg(file)
            .env("FARFORK_RUN", run)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(out)
            .spawn()
            .map_err(io("start", program))?;
        match serving(&mut child, state) {
            Ok(client) => Ok(Platform { child, client }),
            Err(error) => {
                end(&mut child);
                let said = fs::read_to_string(&log).unwrap_or_default();
                let reason = said.lines().last().map_or(error, str::to_owned);
                Err(BenchError::Platform { doing: "starting".to_owned(), reason })
            }
        }
    }
}

impl Platform {
    /// The gateway's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A client of it, as soon as it tells where it serves.
fn serving(child: &mut Child, state: &Path) -> Result<Client, String> {
    let mut told = String::new();
    if let Some(out) = child.stdout.take() {
        let read = BufReader::new(out).read_line(&mut told);
        read.map_err(|error| farfork_sys::words::of(&error))?;
    }
    let address = told.trim().strip_prefix("http://").ok_or("it tells no address")?;
    let key: PathBuf = state.join("guest.key");
    let key = fs::read_to_string(key).map_err(|error| farfork_sys::words::of(&error))?;
    Client::new(address, &key).map_err(|error| error.to_string())
}

fn end(child: &mut Child) {
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
    let begun = Instant::now();
    while begun.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// A directory for states and sockets of platforms, where functions can read what is theirs. It is not
/// below `/tmp`: functions have one of their own.
pub fn open_directory() -> Result<TempDir, BenchError> {
    let place = TempDir::with_prefix_in("farfork-bench-", "/run").map_err(io("make", "/run"))?;
    let may_pass = Permissions::from_mode(0o711);
    fs::set_permissions(place.path(), may_pass).map_err(io("open", place.path()))?;
    Ok(place)
}
