//! The ghosts of this node: containers that wait for a clone.
//!
//! ```text
//!  start ──► waiting ──► taken by a restore ──► its clone is in the registry, and has the container
//!               └──► stopped, or ended by itself: remembered in words
//! ```
//! A ghost takes one clone, once. Ghosts that wait end with their agent, which holds their control
//! sockets; a clone in a ghost lives on, as any clone does. What is left of their containers is
//! taken away by the next agent of the node.

mod attached;
mod bundle;
mod container;
mod groups;
mod leftovers;
mod orphans;
mod session;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farfork_restore::Ghost;
use farfork_types::wire::GhostCall;

pub use attached::Attached;
pub use bundle::Wishes;
pub use container::{Container, Places, Spent};
use leftovers::Leftovers;
pub use leftovers::thaw;

use crate::error::NodeError;

/// Most ghosts whose ends are remembered in words.
const REMEMBERED: usize = 1024;

/// The ghosts of a node that wait, and what became of others.
#[derive(Debug)]
pub struct Ghosts {
    places: Places,
    state: Mutex<State>,
    leftovers: Leftovers,
}

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<String, Waiting>,
    /// Names, and what became of them; the oldest first.
    past: VecDeque<(String, String)>,
}

/// A ghost that waits.
#[derive(Debug)]
pub struct Waiting {
    /// Whose images it takes; any one's without.
    pub user: Option<String>,
    /// How far it is.
    pub stage: Stage,
    /// Its container.
    pub container: Container,
}

/// How far a ghost is.
#[derive(Debug)]
pub enum Stage {
    /// It waits for an image.
    Empty(Ghost),
    /// Its clone waits for its last steps.
    Attached(Attached),
}

impl Waiting {
    fn has_ended(&self) -> bool {
        match &self.stage {
            Stage::Empty(ghost) => ghost.has_ended(),
            Stage::Attached(attached) => attached.started.has_ended(),
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
        let places = Places::new(directory);
        let leftovers = Leftovers::of(&places);
        Ghosts { places, state: Mutex::default(), leftovers }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the tables valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an empty ghost, and tells how long that took. It is nobody's until it is
    /// [kept](Ghosts::keep).
    pub fn make(&self, call: &GhostCall) -> Result<(Ghost, Container, Spent), NodeError> {
        if let Some(bundle) = call.bundle.as_deref().filter(|bundle| !bundle.is_absolute()) {
            let reason = "its path has to begin at /".to_owned();
            return Err(NodeError::Bundle { path: bundle.to_owned(), reason });
        }
        let wishes = Wishes {
            bundle: call.bundle.as_deref(),
            memory_bytes: call.memory_bytes,
            pids_limit: call.pids_limit,
            tmpfs: &call.tmpfs,
            is_read_only: call.read_only,
        };
        let (container, ghost, spent) = Container::create(&self.places, new_id()?, &wishes)?;
        Ok((ghost, container, spent))
    }

    /// Has a ghost wait; its name.
    pub fn keep(&self, waiting: Waiting) -> String {
        let id = waiting.container.id.clone();
        self.state().waiting.insert(id.clone(), waiting);
        id
    }

    /// Looks at a ghost that waits.
    pub fn look<T>(&self, id: &str, at: impl FnOnce(&Waiting) -> T) -> Result<T, NodeError> {
        let mut state = self.state();
        let ended = state.end_of(id);
        let seen = state.waiting.get(id).map(at).ok_or_else(|| state.missing(id));
        drop(state);
        drop(ended); // outside of the lock, as it takes a while
        seen
    }

    /// Looks at all that wait.
    pub fn look_at_all<T>(&self, at: impl Fn(&Waiting) -> T) -> Vec<T> {
        self.sweep();
        self.state().waiting.values().map(at).collect()
    }

    /// Takes a ghost, which nobody else can after that, for a clone of `image`.
    pub fn take(&self, id: &str, image: &str) -> Result<Waiting, NodeError> {
        let mut state = self.state();
        let Some(taken) = state.waiting.remove(id) else { return Err(state.missing(id)) };
        state.remember(id, format!("has been used for {image}, and a ghost takes one clone only"));
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

    /// Takes away what is left of ghosts that have ended by themselves, of those of earlier agents, and of
    /// those that were not to be.
    pub fn tidy(&self) {
        self.sweep();
        self.leftovers.clear();
        orphans::tidy();
    }

    fn sweep(&self) {
        let mut state = self.state();
        let ids: Vec<String> = state.waiting.keys().cloned().collect();
        let ended: Vec<Waiting> = ids.iter().filter_map(|id| state.end_of(id)).collect();
        drop(state);
        drop(ended); // as in `look`
    }
}

impl State {
    /// Takes a ghost out that has ended by itself.
    fn end_of(&mut self, id: &str) -> Option<Waiting> {
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

/// Names never come again, so that no command means a ghost that it has not seen.
fn new_id() -> Result<String, NodeError> {
    let random = getrandom::u32().map_err(|_| {
        NodeError::Agent("the kernel gives no random numbers, which ghosts are named by".to_owned())
    })?;
    Ok(format!("{random:08x}"))
}

/// Whether a path below `directory` is the name of a ghost.
fn is_id(name: &Path) -> bool {
    name.to_str().is_some_and(|name| name.len() == 8 && name.bytes().all(|b| b.is_ascii_hexdigit()))
}
