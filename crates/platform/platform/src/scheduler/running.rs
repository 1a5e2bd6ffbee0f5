//! Running calls, and shutdown.
//!
//! ```text
//!  open ── SIGTERM ──► ending: only calls with a waiting client begin ──► closed: none begins
//! ```
//! A call that has begun may have had effects and is not made again, so shutdown waits for its end.
//! An accepted call that has not begun is left to the next run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Extra time beyond a call's limit, to end its instance and read its log.
const SLACK: Duration = Duration::from_secs(10);

/// The running calls.
#[derive(Debug)]
pub struct Running {
    state: Mutex<State>,
    /// Their number.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// When each has ended at the latest.
    calls: BTreeMap<u64, Instant>,
    next: u64,
}

/// The stage of shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// All calls begin.
    #[default]
    Open,
    /// Only calls with a waiting client begin.
    Ending,
    /// No call begins.
    Closed,
}

/// A running call, until this is dropped.
#[derive(Debug)]
pub struct Run {
    running: Arc<Running>,
    id: u64,
}

impl Default for Running {
    fn default() -> Running {
        Running { state: Mutex::default(), count: watch::Sender::new(0) }
    }
}

impl Running {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves the table valid.
        locked(&self.state)
    }

    /// Begins a call, which may take `limit` to load its code and `limit` to run; `None` if it must
    /// not begin any more.
    pub fn begin(self: &Arc<Running>, limit: Duration, is_awaited: bool) -> Option<Run> {
        let mut state = self.state();
        let may_begin = match state.stage {
            Stage::Open => true,
            Stage::Ending => is_awaited,
            Stage::Closed => false,
        };
        if !may_begin {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.calls.insert(id, Instant::now() + 2 * limit + SLACK);
        self.count.send_replace(state.calls.len());
        drop(state);
        Some(Run { running: Arc::clone(self), id })
    }

    /// The stage of shutdown.
    pub fn stage(&self) -> Stage {
        self.state().stage
    }

    /// Enters a stage of shutdown.
    pub fn enter(&self, stage: Stage) {
        self.state().stage = stage;
    }

    /// Waits for the end of all running calls, as long as each may take; returns how many still
    /// run.
    pub async fn over(&self) -> usize {
        let mut count = self.count.subscribe();
        loop {
            let Some(last) = self.state().calls.values().max().copied() else { return 0 };
            if last <= Instant::now() {
                return *count.borrow();
            }
            // Other calls may have begun meanwhile.
            let _ = timeout_at(last, count.wait_for(|count| *count == 0)).await;
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut state = self.running.state();
        state.calls.remove(&self.id);
        self.running.count.send_replace(state.calls.len());
    }
}
