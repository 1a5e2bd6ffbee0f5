//! Agents of emulated nodes, supervised as long as the platform runs.
//!
//! They end when the platform ends in order. A killed platform leaves them, and the next one of the
//! same state reuses them. An agent that exits is started again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_node::{NodeError, owner_lock, paths};
use farfork_pool::Pool;
use farfork_sys::cgroup::{MemoryGroup, OwnGroup};
use farfork_sys::process_group::{ProcessCount, ProcessGroup};
use farfork_sys::words;

use super::agent::{self, Agent, LaunchSpec, PATIENCE, SurvivingAgent};
use super::requests::{self, RequestClass};
use super::{BackendError, Settings};
use crate::confine;

/// Period of the check whether agents live.
const LOOK: Duration = Duration::from_millis(50);
/// Delay before an agent is started again.
const RESTART: Duration = Duration::from_secs(1);

/// The agents, which end when this is dropped.
#[derive(Debug)]
pub struct Agents {
    /// Nodes whose agents were started. Other agents of these names belong to other platforms.
    nodes: Vec<String>,
    pool: PathBuf,
    is_over: Arc<AtomicBool>,
    supervisor: Option<JoinHandle<()>>,
    /// The cgroups of the nodes' instances, which lie in those of the nodes.
    processes: BTreeMap<String, ProcessGroup>,
    /// The cgroups of the nodes, removed when this is dropped.
    budgets: Owned,
    /// The lock that shows agents that their platform lives.
    _lock: File,
}

impl Agents {
    /// Starts the agents, and waits until all of them answer.
    pub fn start(settings: &Settings) -> Result<Agents, BackendError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = mpsc::channel();
        let budgets = budgets(settings)?;
        // From here on no agent exits by itself.
        let lock =
            owner_lock::hold(&agent::lock_path(&settings.state)).map_err(BackendError::Lock)?;
        let left = settle(settings, &budgets)?;
        let processes = process_groups(settings, &budgets);
        let supervisor =
            AgentSupervisor { settings: settings.clone(), budgets: Arc::clone(&budgets), left };
        let over = Arc::clone(&is_over);
        let supervisor = Some(thread::spawn(move || supervisor.run(&over, &sender)));
        let (nodes, pool) = (Vec::new(), settings.pool.clone());
        let mut agents =
            Agents { nodes, pool, is_over, supervisor, processes, budgets, _lock: lock };
        for node in &settings.nodes {
            let failed = |reason| BackendError::Agent { node: node.clone(), reason };
            receiver
                .recv()
                .unwrap_or_else(|_| Err("the thread that starts agents panicked".to_owned()))
                .map_err(failed)?;
            agents.nodes.push(node.clone());
        }
        Ok(agents)
    }

    /// The cgroups of the nodes, to measure them.
    pub fn budgets(&self) -> Budgets {
        let group = |(node, group): (&String, &OwnGroup)| (node.clone(), MemoryGroup::clone(group));
        self.budgets.iter().map(group).collect()
    }

    /// What counts the processes of the nodes' instances.
    pub fn processes(&self) -> ProcessCounts {
        let count = |(node, group): (&String, &ProcessGroup)| (node.clone(), group.count());
        self.processes.iter().map(count).collect()
    }

    /// Ends all instances and ghosts, and the agents.
    fn end(&mut self) {
        for node in &self.nodes {
            // The agent itself has to clean up, as nothing else does after it was killed.
            let answers =
                requests::connect(node, RequestClass::Look).and_then(|client| client.list());
            let stopped = answers
                .and_then(|_| requests::connect(node, RequestClass::Container)?.stop_ghosts(None));
            if let Err(error) = stopped {
                tracing::warn!(node, reason = %error, "cannot stop the ghosts of a node");
                if matches!(error, NodeError::Late(_)) {
                    continue;
                }
            }
            // Containers of instances that have just ended may still exist.
            let begun = Instant::now();
            while farfork_node::has_ghosts(node) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.is_over.store(true, Ordering::Release);
        let _ = self.supervisor.take().map(JoinHandle::join);
        for node in &self.nodes {
            let _ = fs::remove_file(paths::socket(node));
            // The next agent cleans up what is left.
            farfork_node::leave_ghosts(node);
        }
        // Releases their pins in the pool.
        let cleared = Pool::open(&self.pool).map(|pool| farfork_node::clear_pins(&pool));
        if !matches!(cleared, Ok(Ok(_))) {
            tracing::warn!("cannot clear the nodes' pins; farfork pool check clears them");
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.end();
    }
}

/// The memory cgroups of the nodes by name, each with an agent and all that it starts.
pub type Budgets = BTreeMap<String, MemoryGroup>;
/// The same cgroups as their owner holds them.
type Owned = Arc<BTreeMap<String, OwnGroup>>;

/// What counts the processes of each node's instances.
pub type ProcessCounts = BTreeMap<String, ProcessCount>;

/// Makes the cgroups of the nodes' instances, which limit their processes.
fn process_groups(settings: &Settings, budgets: &Owned) -> BTreeMap<String, ProcessGroup> {
    let all = confine::machine_processes().saturating_mul(settings.processes_permille) / 1000;
    let most = (all / settings.nodes.len().max(1) as u64).max(confine::MOST_PIDS);
    let make = |(node, budget): (&String, &OwnGroup)| {
        let made = ProcessGroup::make(budget, &instances_group(node), most);
        let made = made.inspect_err(|error| {
            let error = words::of(error);
            tracing::warn!(node, error, "the processes of all functions together are not limited");
        });
        Some((node.clone(), made.ok()?))
    };
    budgets.iter().filter_map(make).collect()
}

/// Name of the cgroup of a node's instances.
pub fn instances_group(node: &str) -> String {
    format!("{}-functions", group_name(node))
}

/// Makes the cgroups of the nodes.
fn budgets(settings: &Settings) -> Result<Owned, BackendError> {
    let make = |node: &String| {
        let failed = |error| BackendError::Budget { node: node.clone(), reason: words::of(&error) };
        Ok((node.clone(), group(node).map_err(failed)?))
    };
    Ok(Arc::new(settings.nodes.iter().map(make).collect::<Result<_, BackendError>>()?))
}

/// The cgroup of a node, made if missing.
fn group(node: &str) -> io::Result<OwnGroup> {
    OwnGroup::make(&group_name(node))
}

fn group_name(node: &str) -> String {
    // Unique per directory of sockets, as one platform may run per directory.
    let socket = paths::socket(node).display().to_string();
    format!("farfork{}", socket.replace('/', "-"))
}

/// Returns surviving agents that can be reused, and ends the others. Then sets the nodes' limits.
fn settle(settings: &Settings, budgets: &Owned) -> Result<BTreeMap<String, Agent>, BackendError> {
    let mut usable = BTreeMap::new();
    let known = SurvivingAgent::nodes(&settings.state);
    for SurvivingAgent { agent, launch } in SurvivingAgent::all(&settings.state) {
        let node = agent.node.clone();
        // With another directory of sockets, another platform may use the agent's socket path.
        let is_here = agent.socket == paths::socket(&node);
        let is_clear = is_here && agent.is_clear();
        let is_same = |budget: &OwnGroup| launch == LaunchSpec::new(settings, &node, budget);
        if is_clear && budgets.get(&node).is_some_and(is_same) {
            tracing::info!(node, "reusing an agent of the last run");
            usable.insert(node, agent);
            continue;
        }
        agent.end();
        if is_here {
            farfork_node::leave_ghosts(&node);
        }
    }
    // Removes the cgroups of nodes that this platform no longer has.
    for node in known.iter().filter(|node| !budgets.contains_key(*node)) {
        if let Ok(group) = group(node) {
            ProcessGroup::remove_left(&group, &instances_group(node));
        }
    }
    // Checked before limits are set: the cgroup of another platform's node must not be touched.
    for node in budgets.keys().filter(|node| !usable.contains_key(*node)) {
        check_unserved(node, settings)
            .map_err(|reason| BackendError::Agent { node: node.clone(), reason })?;
    }
    for (node, budget) in &**budgets {
        budget.limit(settings.node_memory_bytes).map_err(|error| BackendError::Budget {
            node: node.clone(),
            reason: words::of(&error),
        })?;
    }
    Ok(usable)
}

/// Fails if another agent already serves a node.
fn check_unserved(node: &str, settings: &Settings) -> Result<(), String> {
    if let Err(NodeError::Socket { .. }) = requests::connect(node, RequestClass::Look) {
        return Ok(());
    }
    Err(format!(
        "another node agent already serves {}: stop the other farfork serve, or set FARFORK_RUN to another \
        directory for this one; if one with another --state was killed, its agents exit {} s after that",
        paths::socket(node).display(),
        settings.agents_outlive.as_secs()
    ))
}

/// Starts and supervises agents.
struct AgentSupervisor {
    settings: Settings,
    budgets: Owned,
    /// Surviving agents to reuse.
    left: BTreeMap<String, Agent>,
}

impl AgentSupervisor {
    /// Supervises them until `is_over`, and then ends them.
    fn run(mut self, is_over: &AtomicBool, sender: &mpsc::Sender<Result<(), String>>) {
        let mut agents = Vec::new();
        for node in &self.settings.nodes {
            let started = match self.left.remove(node) {
                Some(left) => self.reuse(left),
                None => self.start(node),
            };
            let started = started.and_then(|agent| {
                let answers = agent.await_answer(&self.settings);
                agents.push(agent);
                answers
            });
            let _ = sender.send(started);
        }
        while !is_over.load(Ordering::Acquire) {
            thread::sleep(LOOK);
            for agent in &mut agents {
                self.restart_if_ended(agent);
            }
        }
        for agent in agents {
            agent.end();
        }
    }

    /// Reuses a surviving agent, or starts a new one if it has exited meanwhile.
    fn reuse(&self, left: Agent) -> Result<Agent, String> {
        if left.await_answer(&self.settings).is_ok() {
            return Ok(left);
        }
        let node = left.node.clone();
        left.end();
        self.start(&node)
    }

    fn start(&self, node: &str) -> Result<Agent, String> {
        check_unserved(node, &self.settings)?;
        Agent::start(node, &self.settings, &self.budgets[node])
    }

    /// Starts an agent again if it has ended.
    fn restart_if_ended(&self, agent: &mut Agent) {
        if !agent.has_ended() {
            return;
        }
        tracing::error!(node = agent.node, "an agent has ended; starting it again");
        thread::sleep(RESTART);
        match self.start(&agent.node) {
            Ok(started) => *agent = started,
            Err(reason) => {
                tracing::error!(node = agent.node, reason, "cannot start an agent");
            }
        }
    }
}
