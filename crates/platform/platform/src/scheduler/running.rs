//! Which calls are being made, as those see it who end the platform.
//!
//! ```text
//!  open ── SIGTERM ──► ending: only calls that somebody waits for begin ──► closed: none does
//! ```
//! A call that has begun may have done something, and is not made again. So its end is waited for, and one that
//! has not begun is left to the next run, if it was accepted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// What may come to a call's limit: its instance is ended, and its log read.
const SLACK: Duration = Duration::from_secs(10);

/// The calls that are being made.
#[derive(Debug)]
pub struct Running {
    state: Mutex<State>,
    /// How many there are.
    count: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// When each is over at the latest.
    calls: BTreeMap<u64, Instant>,
    next: u64,
}

/// How far the end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Calls begin as they come.
    #[default]
    Open,
    /// Only those begin that somebody waits for.
    Ending,
    /// None begins.
    Closed,
}

/// A call is being made until this is dropped.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins that may take so long to load its code, and as long again to be made; nothing if it
    /// must not any more.
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

    /// From here on fewer calls begin.
    pub fn enter(&self, stage: Stage) {
        self.state().stage = stage;
    }

    /// Waits for the end of all that are being made, for as long as each may take; how many go on then.
    pub async fn over(&self) -> usize {
        let mut count = self.count.subscribe();
        loop {
            let Some(last) = self.state().calls.values().max().copied() else { return 0 };
            if last <= Instant::now() {
                return *count.borrow();
            }
            // OtherRuntimes may have begun then.
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
