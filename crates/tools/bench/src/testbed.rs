//! Where a benchmark runs: a directory, a pool on huge pages and an agent, all its own.

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

/// How long the agent may take to listen.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);

/// A directory, and in it a pool on huge pages. Dropped, both go.
#[derive(Debug)]
pub struct Place {
    /// The pool.
    pub pool: Pool,
    mounted: Mounted,
}

/// A tmpfs on huge pages in a directory of its own.
#[derive(Debug)]
struct Mounted {
    at: PathBuf,
    directory: TempDir,
}

/// Everything that a benchmark needs around its subjects. Dropped, all of it goes.
#[derive(Debug)]
pub struct Testbed {
    /// The agent's name.
    pub node: String,
    /// The agent's memory cgroup, where there is one.
    pub cgroup: Option<OwnGroup>,
    agent: Child,
    place: Place,
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

impl Drop for Place {
    fn drop(&mut self) {
        // Pools have cgroups, which outlive the memory that is charged to them.
        for entry in fs::read_dir(&self.mounted.at).into_iter().flatten().flatten() {
            // Sockets are none.
            let _ = Pool::destroy_used(&entry.path());
        }
    }
}

impl Place {
    /// Makes a pool of `pool_bytes` in a new directory.
    pub fn new(pool_bytes: u64) -> Result<Place, BenchError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BenchError::Lacking {
                doing: "run a benchmark".to_owned(),
                reason: "a pool on huge pages is mounted and PID namespaces are made".to_owned(),
                remedy: "run it as root",
            });
        }
        let directory =
            TempDir::with_prefix("farfork-bench-").map_err(io("make", std::env::temp_dir()))?;
        let bytes = align_up(pool_bytes, CHUNK_BYTES);
        let mounted = Mounted::new(directory, bytes + (16 << 20))?;
        let pool = Pool::create(&mounted.at.join("pool"), bytes)?;
        Ok(Place { pool, mounted })
    }

    /// A path for a socket or a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.directory.path().join(name)
    }
}

impl Testbed {
    /// Makes a pool of `pool_bytes` and starts an agent, a child of this process.
    pub fn new(pool_bytes: u64) -> Result<Testbed, BenchError> {
        let place = Place::new(pool_bytes)?;
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

    /// A path for a socket, in memory: where files have just been deleted, ext4 takes the longer to
    /// make one the more there were.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.place.mounted.at.join(name)
    }
}

/// Starts this program as the agent, inside the cgroup from its first moment on.
fn start_agent(node: &str, cgroup: Option<&OwnGroup>) -> Result<Child, BenchError> {
    let program = std::env::current_exe().map_err(io("find", "this program"))?;
    let entrance = cgroup.map_or(PathBuf::from("/dev/null"), |group| group.procs_file());
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
            Err(error) if begun.elapsed() > AGENT_PATIENCE => return Err(error.into()),
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
