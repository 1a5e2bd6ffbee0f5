//! Turns of namespaces for starts without an image, which take processors for some ten milliseconds each.
//!
//! Without them a namespace that calls some hundred new functions at once would have all others' new
//! functions wait for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfork_scheduler::Turns;
use farfork_sys::sync::locked;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::api::Name;

/// How long a turn is held at most. Code that waits while it is loaded delays others no longer than this.
const LONGEST: Duration = Duration::from_millis(500);

/// Receives a turn that was waited for.
type Receiver = Box<dyn FnOnce(Turn) + Send>;

/// The turns of all namespaces.
#[derive(Debug)]
pub struct SharedTurns(Option<Mutex<State>>);

struct State {
    turns: Turns<Name>,
    receivers: BTreeMap<u64, Receiver>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("turns", &self.turns).finish_non_exhaustive()
    }
}

/// A turn, which ends when this is dropped, or after a while.
#[derive(Debug)]
pub struct Turn(Option<(Arc<SharedTurns>, u64)>);

impl SharedTurns {
    /// So many starts at once, or as many as there are.
    pub fn new(most: Option<usize>) -> Arc<SharedTurns> {
        let state =
            |most| Mutex::new(State { turns: Turns::new(most), receivers: BTreeMap::new() });
        Arc::new(SharedTurns(most.map(state)))
    }

    /// Returns a turn for a namespace if one is free. Otherwise `receive` gets it later. Must be called
    /// within a Tokio runtime.
    pub fn ask(
        self: &Arc<Self>,
        namespace: &Name,
        receive: impl FnOnce(Turn) + Send + 'static,
    ) -> Option<Turn> {
        let Some(state) = &self.0 else { return Some(Turn(None)) };
        let mut state = locked(state);
        let (id, is_held) = state.turns.ask(namespace.clone());
        if is_held {
            return Some(self.hold(id));
        }
        state.receivers.insert(id, Box::new(receive));
        None
    }

    fn hold(self: &Arc<Self>, id: u64) -> Turn {
        let turns = Arc::clone(self);
        // There is no runtime when the last tasks of one that ends are dropped.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep(LONGEST).await;
                turns.end(id);
            });
        }
        Turn(Some((Arc::clone(self), id)))
    }

    fn end(self: &Arc<Self>, id: u64) {
        let Some(state) = &self.0 else { return };
        let mut state = locked(state);
        let Some(next) = state.turns.end(id) else { return };
        let receive = state.receivers.remove(&next);
        // A receiver that is gone drops its turn, which comes here again.
        drop(state);
        if let Some(receive) = receive {
            receive(self.hold(next));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, id)) = self.0.take() {
            turns.end(id);
        }
    }
}
