//! Agents of emulated nodes, which are looked after as long as the platform is served.
//!
//! They end with the platform when that ends in order. One that was killed leaves them, and the next one of
//! the same state goes on with them. An agent that ends by itself is started again.

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
use farfork_sys::words;

use super::agent::{self, Agent, Left, PATIENCE, Terms};
use super::ask::{self, Wish};
use super::{BackendError, Settings};

/// How often agents are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How soon an agent is started again.
const AGAIN: Duration = Duration::from_secs(1);

/// The agents, which end with this.
#[derive(Debug)]
pub struct Agents {
    /// Those that were started: others of these names are somebody else's.
    nodes: Vec<String>,
    pool: PathBuf,
    is_over: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
    /// The memory of the nodes, whose groups go with this and nobody else.
    budgets: Owned,
    /// What tells agents that somebody keeps them.
    _lock: File,
}

impl Agents {
    /// Starts the agents, and waits until all of them answer.
    pub fn start(settings: &Settings) -> Result<Agents, BackendError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let budgets = budgets(settings)?;
        // From here on none leaves.
        let lock = owner_lock::hold(&agent::keeper(&settings.state)).map_err(BackendError::Lock)?;
        let left = settle(settings, &budgets)?;
        let keeper = Keeper { settings: settings.clone(), budgets: Arc::clone(&budgets), left };
        let over = Arc::clone(&is_over);
        let keeper = Some(thread::spawn(move || keeper.keep(&over, &tell)));
        let (nodes, pool) = (Vec::new(), settings.pool.clone());
        let mut agents = Agents { nodes, pool, is_over, keeper, budgets, _lock: lock };
        for node in &settings.nodes {
            let failed = |reason| BackendError::Agent { node: node.clone(), reason };
            told.recv()
                .unwrap_or_else(|_| Err("the thread that starts agents has ended".to_owned()))
                .map_err(failed)?;
            agents.nodes.push(node.clone());
        }
        Ok(agents)
    }

    /// The memory of the nodes, to be looked at.
    pub fn budgets(&self) -> Budgets {
        let group = |(node, group): (&String, &OwnGroup)| (node.clone(), MemoryGroup::clone(group));
        self.budgets.iter().map(group).collect()
    }

    /// Ends all that is on the nodes, and the agents.
    fn end(&mut self) {
        for node in &self.nodes {
            // The agent takes away what it has made, which nobody does for one that was killed.
            let answers = ask::agent(node, Wish::Look).and_then(|client| client.list());
            let stopped =
                answers.and_then(|_| ask::agent(node, Wish::Container)?.stop_ghosts(None));
            if let Err(error) = stopped {
                tracing::warn!(node, reason = %error, "ghosts of a node are not stopped");
                if matches!(error, NodeError::Late(_)) {
                    continue;
                }
            }
            // Instances have ended a moment ago, and their containers may still be there.
            let begun = Instant::now();
            while farfork_node::has_ghosts(node) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.is_over.store(true, Ordering::Release);
        let _ = self.keeper.take().map(JoinHandle::join);
        for node in &self.nodes {
            let _ = fs::remove_file(paths::socket(node));
            // The next agent takes away what this one has not.
            farfork_node::leave_ghosts(node);
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

/// The memory cgroups of the nodes, by name: what an agent and all that it starts may take together.
pub type Budgets = BTreeMap<String, MemoryGroup>;
/// The same for those that make them.
type Owned = Arc<BTreeMap<String, OwnGroup>>;

/// Makes the cgroups of the nodes.
fn budgets(settings: &Settings) -> Result<Owned, BackendError> {
    let make = |node: &String| {
        let failed = |error| BackendError::Budget { node: node.clone(), reason: words::of(&error) };
        Ok((node.clone(), group(node).map_err(failed)?))
    };
    Ok(Arc::new(settings.nodes.iter().map(make).collect::<Result<_, BackendError>>()?))
}

/// The cgroup of a node, made if need be.
fn group(node: &str) -> io::Result<OwnGroup> {
    // As many platforms may run as there are directories for their sockets.
    let socket = paths::socket(node).display().to_string();
    OwnGroup::make(&format!("farfork{}", socket.replace('/', "-")))
}

/// Ends agents that were left and are not what would be started now. Then nothing is in the way of the
/// nodes' limits, which it sets. Those that can be gone on with.
fn settle(settings: &Settings, budgets: &Owned) -> Result<BTreeMap<String, Agent>, BackendError> {
    let mut usable = BTreeMap::new();
    let known = Left::nodes(&settings.state);
    for Left { agent, terms } in Left::all(&settings.state) {
        let node = agent.node.clone();
        // Where this platform has another directory for sockets, somebody else may be behind this one.
        let is_here = agent.socket == paths::socket(&node);
        let is_clear = is_here && agent.is_clear();
        let is_it = |budget: &OwnGroup| terms == Terms::of(settings, &node, budget);
        if is_clear && budgets.get(&node).is_some_and(is_it) {
            tracing::info!(node, "an agent of the last run is gone on with");
            usable.insert(node, agent);
            continue;
        }
        agent.end();
        if is_here {
            farfork_node::leave_ghosts(&node);
        }
    }
    // The groups of nodes that are served no more go with what was left of these.
    for node in known.iter().filter(|node| !budgets.contains_key(*node)) {
        drop(group(node));
    }
    // The group of a node that somebody else serves is not this platform's.
    for node in budgets.keys().filter(|node| !usable.contains_key(*node)) {
        must_be_free(node, settings)
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

/// Fails, in words, if an agent serves a node that was not started for this platform.
fn must_be_free(node: &str, settings: &Settings) -> Result<(), String> {
    if let Err(NodeError::Socket { .. }) = ask::agent(node, Wish::Look) {
        return Ok(());
    }
    Err(format!(
        "a node agent already serves {}: is another farfork serve running, or was one killed that had \
         another --state? Its agents leave {} s after that. Set FARFORK_RUN to another directory for this \
         one, or wait",
        paths::socket(node).display(),
        settings.agents_outlive.as_secs()
    ))
}

/// Starts agents and looks after them.
struct Keeper {
    settings: Settings,
    budgets: Owned,
    /// Those that are there already.
    left: BTreeMap<String, Agent>,
}

impl Keeper {
    /// Looks after them until it is over, which is their end.
    fn keep(mut self, is_over: &AtomicBool, tell: &mpsc::Sender<Result<(), String>>) {
        let mut agents = Vec::new();
        for node in &self.settings.nodes {
            let told = match self.left.remove(node) {
                Some(left) => self.go_on_with(left),
                None => self.start(node),
            };
            let told = told.and_then(|agent| {
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
        for agent in agents {
            agent.end();
        }
    }

    /// One that has left meanwhile is started again.
    fn go_on_with(&self, left: Agent) -> Result<Agent, String> {
        if left.await_answer(&self.settings).is_ok() {
            return Ok(left);
        }
        let node = left.node.clone();
        left.end();
        self.start(&node)
    }

    fn start(&self, node: &str) -> Result<Agent, String> {
        must_be_free(node, &self.settings)?;
        Agent::start(node, &self.settings, &self.budgets[node])
    }

    /// Starts one again if it has ended.
    fn look_after(&self, agent: &mut Agent) {
        if !agent.has_ended() {
            return;
        }
        tracing::error!(node = agent.node, "an agent has ended, and is started again");
        thread::sleep(AGAIN);
        match self.start(&agent.node) {
            Ok(started) => *agent = started,
            Err(reason) => {
                tracing::error!(node = agent.node, reason, "an agent does not start");
            }
        }
    }
}
