//! Where a benchmark runs: its own directory, pool on huge pages, and agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_pool::{Pool, mount_tmpfs};
use farfork_sys::cgroup::OwnGroup;
use farfork_types::{CHUNK_BYTES, align_up};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::error::{BenchError, io};

/// Limit of the agent's start.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory with a pool on huge pages. Dropped, it removes both.
#[derive(Debug)]
pub struct TempPool {
    /// The pool.
    pub pool: Pool,
    mounted: Mounted,
}

/// A tmpfs with huge pages in a directory of its own.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    directory: TempDir,
}

/// Pool and agent for the subjects of a benchmark. Dropped, it removes them.
#[derive(Debug)]
pub struct Testbed {
    /// The agent's name.
    pub node: String,
    /// The agent's memory cgroup, if one could be created.
    pub cgroup: Option<OwnGroup>,
    agent: Child,
    place: TempPool,
}

impl Mounted {
    fn new(directory: TempDir, bytes: u64) -> Result<Mounted, BenchError> {
        let at = directory.path().join("pool");
        fs::create_dir(&at).map_err(io("make", &at))?;
        mount_tmpfs(&at, bytes)?;
        Ok(Mounted { at, directory })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

impl Drop for TempPool {
    fn drop(&mut self) {
        // A pool has a cgroup, which stays when the pool's file is merely deleted.
        for entry in fs::read_dir(&self.mounted.at).into_iter().flatten().flatten() {
            // Fails for sockets.
            let _ = Pool::destroy_used(&entry.path());
        }
    }
}

impl TempPool {
    /// Creates a pool of `pool_bytes` in a new directory.
    pub fn new(pool_bytes: u64) -> Result<TempPool, BenchError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BenchError::Lacking {
                doing: "run a benchmark".to_owned(),
                reason: "it mounts a pool with huge pages and creates PID namespaces".to_owned(),
                remedy: "run it as root",
            });
        }
        let directory =
            TempDir::with_prefix("farfork-bench-").map_err(io("make", std::env::temp_dir()))?;
        let bytes = align_up(pool_bytes, CHUNK_BYTES);
        let mounted = Mounted::new(directory, bytes + (16 << 20))?;
        let pool = Pool::create(&mounted.at.join("pool"), bytes)?;
        Ok(TempPool { pool, mounted })
    }

    /// A path for a socket or a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.directory.path().join(name)
    }
}

impl Testbed {
    /// Creates a pool of `pool_bytes` and starts an agent, a child of this process.
    pub fn new(pool_bytes: u64) -> Result<Testbed, BenchError> {
        let place = TempPool::new(pool_bytes)?;
        let node = format!("bench-{}", std::process::id());
        let cgroup = OwnGroup::make(&format!("farfork-{node}")).ok();
        let agent = start_agent(&node, cgroup.as_ref())?;
        Ok(Testbed { node, cgroup, agent, place })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.place.pool
    }

    /// A path for a program or a directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// A path for a socket, on the tmpfs: after many deletions, ext4 takes longer to create a file.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.place.mounted.at.join(name)
    }
}

/// Starts farfork as the agent. The shell enters the cgroup first, so that all its memory is charged.
fn start_agent(node: &str, cgroup: Option<&OwnGroup>) -> Result<Child, BenchError> {
    let program = crate::program::farfork()?;
    let entrance = cgroup.map_or(PathBuf::from("/dev/null"), |group| group.entrance());
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >\"$1\"; shift; exec \"$@\"", "sh"]);
    command.arg(entrance).arg(&program).args(["node", "--name", node]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut agent = command.spawn().map_err(io("start", program))?;
    match await_agent(node) {
        Ok(()) => Ok(agent),
        Err(error) => {
            let _ = agent.kill();
            let _ = agent.wait();
            Err(error)
        }
    }
}

fn await_agent(node: &str) -> Result<(), BenchError> {
    let begun = Instant::now();
    loop {
        match Client::connect(node) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > AGENT_TIMEOUT => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.agent.id() as i32), Signal::SIGTERM);
        let _ = self.agent.wait();
        forget(&paths::socket(&self.node));
        let _ = fs::remove_dir_all(paths::pins(&self.node));
    }
}

/// Removes the agent's socket and the lock beside it.
fn forget(socket: &Path) {
    let _ = fs::remove_file(socket);
    let _ = fs::remove_file(socket.with_extension("lock"));
}
