//! Agents of emulated nodes: each in PID, mount and network namespaces of its own.
//!
//! ```text
//!  a thread ── setpriv, unshare ──► agent, pid 1 of its namespace ──► ghosts, clones
//! ```
//! When the thread ends, whatever ends it, `unshare` is killed, and with it the agent and all that is
//! in its namespace. An agent that ends before is started again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_pool::Pool;
use farfork_sys::cgroup::OwnGroup;
use farfork_sys::words;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{ClusterError, Settings};

/// How long an agent may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often agents are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How soon an agent is started again.
const AGAIN: Duration = Duration::from_secs(1);
/// So long it is remembered which pages calls of a function access: they may come to access others.
const RESET_ACCESSED_S: u64 = 600;

/// Enters a memory cgroup, and goes on as what follows.
const ENTER: &str = "echo $$ >\"$0\" && exec \"$@\"";

/// What makes an agent a node of its own (of the package util-linux).
const NODE: [&str; 12] = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "unshare",
    "--pid",
    "--mount",
    "--net",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
];

/// The agents, which end with this.
#[derive(Debug)]
pub struct Agents {
    /// Those that were started: others of these names are somebody else's.
    nodes: Vec<String>,
    pool: PathBuf,
    is_over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
    /// Memory of the nodes.
    pub budgets: Budgets,
}

impl Agents {
    /// Starts the agents, and waits until all of them answer.
    pub fn start(settings: &Settings) -> Result<Agents, ClusterError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let budgets = budgets(settings)?;
        let keeper = Keeper { settings: settings.clone(), budgets: Arc::clone(&budgets) };
        let over = Arc::clone(&is_over);
        let keeper = Some(thread::spawn(move || keeper.keep(&over, &tell)));
        let (nodes, pool) = (Vec::new(), settings.pool.clone());
        let mut agents = Agents { nodes, pool, is_over, keeper, budgets };
        for node in &settings.nodes {
            let failed = |reason| ClusterError::Agent { node: node.clone(), reason };
            told.recv()
                .unwrap_or_else(|_| Err("the thread that starts agents has ended".to_owned()))
                .map_err(failed)?;
            agents.nodes.push(node.clone());
        }
        Ok(agents)
    }

    /// Ends all that is on the nodes, and the agents.
    fn end(&mut self) {
        for node in &self.nodes {
            // The agent takes away what it has made, which nobody does for one that was killed.
            let stopped = Client::connect(node).and_then(|client| client.stop_ghosts(None));
            if let Err(error) = stopped {
                tracing::warn!(node, reason = %error, "ghosts of a node are not stopped");
            }
            // Instances have ended a moment ago, and their containers may still be there.
            let begun = Instant::now();
            while !has_no_ghosts(node) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.is_over.store(true, Ordering::Release);
        let _ = self.keeper.take().map(JoinHandle::join);
        for node in &self.nodes {
            let _ = fs::remove_file(paths::socket(node));
            // The next agent takes away what this one has not.
            if has_no_ghosts(node) {
                let _ = fs::remove_dir_all(paths::ghosts(node));
            }
        }
        // What they held of the pool's images is given back.
        let cleared = Pool::open(&self.pool).map(|pool| farfork_node::clear_pins(&pool));
        if !matches!(cleared, Ok(Ok(_))) {
            tracing::warn!("pins of the nodes stay: farfork pool check clears them");
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.end();
    }
}

struct Agent {
    node: String,
    child: Child,
}

/// The memory cgroups of the nodes, by name: what an agent and all that it starts may take together.
pub type Budgets = Arc<BTreeMap<String, OwnGroup>>;

/// Makes the cgroups of the nodes.
fn budgets(settings: &Settings) -> Result<Budgets, ClusterError> {
    let make = |node: &String| {
        // As many platforms may run as there are directories for their sockets.
        let socket = paths::socket(node).display().to_string();
        let made = OwnGroup::make(&format!("farfork{}", socket.replace('/', "-")));
        let made = made.and_then(|group| group.limit(settings.node_memory_bytes).map(|()| group));
        let failed = |error| ClusterError::Budget { node: node.clone(), reason: words::of(&error) };
        Ok((node.clone(), made.map_err(failed)?))
    };
    Ok(Arc::new(settings.nodes.iter().map(make).collect::<Result<_, ClusterError>>()?))
}

/// Starts agents and looks after them. They end with its thread.
struct Keeper {
    settings: Settings,
    budgets: Budgets,
}

impl Keeper {
    /// Looks after them until it is over.
    fn keep(&self, is_over: &AtomicBool, tell: &mpsc::Sender<Result<(), String>>) {
        let mut agents = Vec::new();
        for node in &self.settings.nodes {
            let started = self.start(node);
            let told = started.and_then(|mut agent| {
                let answers = agent.await_answer(&self.settings);
                agents.push(agent);
                answers
            });
            let _ = tell.send(told);
        }
        while !is_over.load(Ordering::Acquire) {
            thread::sleep(LOOK);
            for agent in &mut agents {
                self.look_after(agent);
            }
        }
        for agent in &mut agents {
            agent.end();
        }
    }

    fn start(&self, node: &str) -> Result<Agent, String> {
        if Client::connect(node).is_ok() {
            return Err(format!(
                "a node agent already serves {}: is another farfork serve running? Set \
                 FARFORK_RUN to another directory for this one",
                paths::socket(node).display()
            ));
        }
        let settings = &self.settings;
        let log = log(&settings.state, node).map_err(|source| words::of(&source))?;
        let mut command = Command::new("sh");
        command.args(["-c", ENTER]).arg(self.budgets[node].entrance());
        command.args(NODE).arg(&settings.program);
        command.args(["node", "--name", node, "--pool"]).arg(&settings.pool);
        command.args(["--profile-every", &settings.profile_every.to_string()]);
        command.args(["--reset-accessed-s", &RESET_ACCESSED_S.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // Ctrl-C is for this process alone, which ends them in order.
        command.process_group(0).current_dir("/");
        let child = command.spawn().map_err(|source| words::of(&source))?;
        Ok(Agent { node: node.to_owned(), child })
    }

    /// Starts one again if it has ended.
    fn look_after(&self, agent: &mut Agent) {
        let Ok(Some(status)) = agent.child.try_wait() else { return };
        tracing::error!(node = agent.node, %status, "an agent has ended, and is started again");
        thread::sleep(AGAIN);
        match self.start(&agent.node) {
            Ok(started) => *agent = started,
            Err(reason) => {
                tracing::error!(node = agent.node, reason, "an agent does not start");
            }
        }
    }
}

impl Agent {
    fn await_answer(&mut self, settings: &Settings) -> Result<(), String> {
        let begun = Instant::now();
        while Client::connect(&self.node).and_then(|client| client.list()).is_err() {
            if let Ok(Some(_)) = self.child.try_wait() {
                let said = fs::read_to_string(log_path(&settings.state, &self.node));
                let said = said.unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(format!("it has ended: {last}"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("it does not answer after {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills the first process of its namespace; `unshare` ends once all in there are gone.
    fn end(&mut self) {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            if let Ok(child) = child.parse() {
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether nothing is left of containers of a node: each has a directory until it is taken away.
fn has_no_ghosts(node: &str) -> bool {
    let found = fs::read_dir(paths::ghosts(node)).into_iter().flatten().flatten();
    let own = |name: &OsStr| name == "runc" || name == "root";
    found.filter(|entry| !own(&entry.file_name())).count() == 0
}

fn log_path(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.log"))
}

fn log(directory: &Path, node: &str) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(log_path(directory, node))
}
