//! The ghosts of this node: containers that wait for a clone.
//!
//! ```text
//!  start ──► waiting ──► taken by a restore ──► its clone is in the registry, and has the container
//!               └──► stopped, or ended by itself: the reason is remembered
//! ```
//! A ghost takes one clone, once. Ghosts that wait end with their agent, which holds their control
//! sockets. A clone in a ghost lives on, as any clone does. The next agent of the node deletes what is
//! left of their containers.

mod attached;
mod bundle;
mod container;
mod groups;
mod leftovers;
mod orphans;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use farfork_restore::Ghost;
use farfork_types::wire::GhostCall;

pub use attached::AttachedGhost;
pub use bundle::ContainerOptions;
pub use container::{Container, ContainerPaths, CreationTimes};
use leftovers::Leftovers;
pub use leftovers::thaw;

use crate::error::NodeError;
use farfork_sys::sync::locked;

/// Most ended ghosts that are remembered.
const REMEMBERED: usize = 1024;

/// The ghosts of a node that wait, and what became of others.
#[derive(Debug)]
pub struct Ghosts {
    places: ContainerPaths,
    state: Mutex<State>,
    leftovers: Leftovers,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<String, WaitingGhost>,
    /// Names, and what became of them; the oldest first.
    past: VecDeque<(String, String)>,
}

/// A ghost that waits.
#[derive(Debug)]
pub struct WaitingGhost {
    /// The user whose images it takes; None for all users.
    pub user: Option<String>,
    /// How far it is.
    pub stage: GhostStage,
    /// Its container.
    pub container: Container,
}

/// How far a ghost is.
#[derive(Debug)]
pub enum GhostStage {
    /// It waits for an image.
    Empty(Ghost),
    /// Its clone waits for its last steps.
    Attached(AttachedGhost),
}

impl WaitingGhost {
    fn has_ended(&self) -> bool {
        match &self.stage {
            GhostStage::Empty(ghost) => ghost.has_ended(),
            GhostStage::Attached(attached) => attached.started.has_ended(),
        }
    }

    /// What is known of the end of its first process.
    fn end(&self) -> String {
        let killed = || "its first process was killed while it waited".to_owned();
        format!("has ended: {}", self.container.shortage().unwrap_or_else(killed))
    }
}

impl Ghosts {
    /// Those of a node that keeps its containers in `directory`.
    pub fn new(directory: PathBuf) -> Ghosts {
        let places = ContainerPaths::new(directory);
        let leftovers = Leftovers::find(&places);
        Ghosts { places, state: Mutex::default(), leftovers }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Makes an empty ghost, and returns how long that took. The ghost is not listed until it is
    /// [kept](Ghosts::keep).
    pub fn make(&self, call: &GhostCall) -> Result<(Ghost, Container, CreationTimes), NodeError> {
        if let Some(bundle) = call.bundle.as_deref().filter(|bundle| !bundle.is_absolute()) {
            let reason = "its path must be absolute".to_owned();
            return Err(NodeError::Bundle { path: bundle.to_owned(), reason });
        }
        let options = ContainerOptions {
            bundle: call.bundle.as_deref(),
            memory_bytes: call.memory_bytes,
            pids_limit: call.pids_limit,
            group: call.group.as_deref(),
            tmpfs: &call.tmpfs,
            hidden: &call.hidden,
            shown: &call.shown,
            layered: &call.layered,
            is_read_only: call.read_only,
        };
        let (container, ghost, times) = Container::create(&self.places, new_id()?, &options)?;
        Ok((ghost, container, times))
    }

    /// Lists a ghost as waiting, and returns its name.
    pub fn keep(&self, waiting: WaitingGhost) -> String {
        let id = waiting.container.id.clone();
        self.state().waiting.insert(id.clone(), waiting);
        id
    }

    /// Looks at a ghost that waits.
    pub fn look<T>(&self, id: &str, at: impl FnOnce(&WaitingGhost) -> T) -> Result<T, NodeError> {
        let mut state = self.state();
        let ended = state.end_of(id);
        let seen = state.waiting.get(id).map(at).ok_or_else(|| state.missing(id));
        drop(state);
        drop(ended); // outside of the lock, as it takes a while
        seen
    }

    /// Looks at all that wait.
    pub fn look_at_all<T>(&self, at: impl Fn(&WaitingGhost) -> T) -> Vec<T> {
        self.sweep();
        self.state().waiting.values().map(at).collect()
    }

    /// Takes a ghost for a clone of `image`. No other call can take it after that.
    pub fn take(&self, id: &str, image: &str) -> Result<WaitingGhost, NodeError> {
        let mut state = self.state();
        let Some(taken) = state.waiting.remove(id) else { return Err(state.missing(id)) };
        state.remember(id, format!("was used for {image}, and a ghost takes one clone only"));
        Ok(taken)
    }

    /// Ends a ghost that waits.
    pub fn stop(&self, id: &str) -> Result<(), NodeError> {
        let mut state = self.state();
        let Some(stopped) = state.waiting.remove(id) else { return Err(state.missing(id)) };
        state.remember(id, "has been stopped".to_owned());
        drop(state);
        drop(stopped);
        Ok(())
    }

    /// Ends all that wait.
    pub fn stop_all(&self) {
        for id in self.look_at_all(|waiting| waiting.container.id.clone()) {
            // One may end by itself meanwhile.
            let _ = self.stop(&id);
        }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Deletes what is left of ghosts that have ended by themselves, of those of earlier agents, and of
    /// unfinished ones.
    pub fn tidy(&self) {
        self.sweep();
        self.leftovers.clear();
        orphans::tidy();
    }

    fn sweep(&self) {
        let mut state = self.state();
        let ids: Vec<String> = state.waiting.keys().cloned().collect();
        let ended: Vec<WaitingGhost> = ids.iter().filter_map(|id| state.end_of(id)).collect();
        drop(state);
        drop(ended); // as in `look`
    }
}

impl State {
    /// Takes a ghost out that has ended by itself.
    fn end_of(&mut self, id: &str) -> Option<WaitingGhost> {
        self.waiting.get(id).filter(|waiting| waiting.has_ended())?;
        let ended = self.waiting.remove(id)?;
        self.remember(id, ended.end());
        Some(ended)
    }

    fn remember(&mut self, id: &str, what: String) {
        self.past.push_back((id.to_owned(), what));
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
    }

    fn missing(&self, id: &str) -> NodeError {
        let past = self.past.iter().rev().find(|(past, _)| past == id);
        match past {
            Some((_, what)) => NodeError::GhostGone { id: id.to_owned(), what: what.clone() },
            None => NodeError::NoGhost { id: id.to_owned() },
        }
    }
}

/// Names are random, so that a command never means a later ghost of the same name.
fn new_id() -> Result<String, NodeError> {
    let random = getrandom::u32().map_err(|_| {
        NodeError::Agent("cannot name a ghost: the kernel returns no random numbers".to_owned())
    })?;
    Ok(format!("{random:08x}"))
}

/// Whether a path below `directory` is the name of a ghost.
fn is_id(name: &Path) -> bool {
    name.to_str().is_some_and(|name| name.len() == 8 && name.bytes().all(|b| b.is_ascii_hexdigit()))
}
