//! A running platform: `farfork serve`.

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

/// How long an orderly exit may take.
const GRACE: Duration = Duration::from_secs(60);

/// Options of the platform.
pub struct PlatformConfig<'a> {
    /// Python with the package farfork and everything that functions import.
    pub python: &'a Path,
    /// The pool.
    pub pool: &'a Path,
    /// Its state directory.
    pub state: &'a Path,
    /// Directory of its agents' sockets.
    pub run: &'a Path,
    /// Memory of each node, in bytes.
    pub node_bytes: u64,
    /// Settings of its policies.
    pub policies: &'a Settings,
}

/// A running platform. Dropped, it is stopped.
#[derive(Debug)]
pub struct Platform {
    child: Child,
    /// A client of it.
    pub client: Client,
}

impl Platform {
    /// Starts a platform, and waits until it serves.
    pub fn start(config: &PlatformConfig<'_>) -> Result<Platform, BenchError> {
        let PlatformConfig { python, pool, state, run, node_bytes, policies } = config;
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
        match connect(&mut child, state) {
            Ok(client) => Ok(Platform { child, client }),
            Err(error) => {
                end(&mut child);
                let text = fs::read_to_string(&log).unwrap_or_default();
                let reason = text.lines().last().map_or(error, str::to_owned);
                Err(BenchError::Platform { doing: "starting".to_owned(), reason })
            }
        }
    }
}

impl Platform {
    /// Pid of the gateway.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Waits until the platform prints its address, and returns a client.
fn connect(child: &mut Child, state: &Path) -> Result<Client, String> {
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let read = BufReader::new(out).read_line(&mut line);
        read.map_err(|error| farfork_sys::words::of(&error))?;
    }
    let address = line.trim().strip_prefix("http://").ok_or("it printed no address")?;
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

/// A directory for states and sockets of platforms, which functions may enter. It is not below `/tmp`,
/// because functions have a `/tmp` of their own.
pub fn open_directory() -> Result<TempDir, BenchError> {
    let place = TempDir::with_prefix_in("farfork-bench-", "/run").map_err(io("make", "/run"))?;
    let may_pass = Permissions::from_mode(0o711);
    fs::set_permissions(place.path(), may_pass).map_err(io("open", place.path()))?;
    Ok(place)
}
