//! Steps at which a test can kill the process.
//!
//! Every store that another process can see is followed by a step. With the feature `failpoints`
//! and `FARFORK_KILL_AT_STEP=n` in the environment the process sends itself SIGKILL at its n-th
//! step, counted from [`arm`]. A test can also let something else happen at a step of its thread:
//! what another process could do just then. Otherwise a step is nothing.

#[cfg(any(test, feature = "failpoints"))]
mod armed {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use nix::sys::signal::{Signal, raise};

    type Event = Box<dyn FnOnce()>;

    thread_local! {
        /// Steps left, and what happens then.
        static EVENT: RefCell<Option<(u64, Event)>> = const { RefCell::new(None) };
    }

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Starts to count down to the step that the environment names.
    pub fn arm() {
        let step = std::env::var("FARFORK_KILL_AT_STEP").ok().and_then(|text| text.parse().ok());
        LEFT.store(step.unwrap_or(u64::MAX), SeqCst);
    }

    /// Lets `event` happen at the step after `steps` others of this thread. Without an event,
    /// takes back one that did not happen; returns whether there was one.
    pub fn happen_after(steps: u64, event: Option<Event>) -> bool {
        EVENT.replace(event.map(|event| (steps, event))).is_some()
    }

    /// One step.
    pub fn step() {
        match EVENT.take() {
            Some((0, event)) => event(),
            Some((left, event)) => EVENT.set(Some((left - 1, event))),
            None => {}
        }
        if LEFT.fetch_sub(1, SeqCst) == 0 {
            let _ = raise(Signal::SIGKILL);
        }
    }
}

#[cfg(any(test, feature = "failpoints"))]
pub use armed::{arm, happen_after, step};

/// One step: nothing in a build without `failpoints`.
#[cfg(not(any(test, feature = "failpoints")))]
#[inline(always)]
pub fn step() {}
