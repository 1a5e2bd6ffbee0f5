//! Steps at which a test can kill the process.
//!
//! Every store that another process can see is followed by a step. With the feature `failpoints`
//! and `FARFORK_KILL_AT_STEP=n` in the environment the process sends itself SIGKILL at its n-th
//! step, counted from [`arm`]; otherwise a step is nothing.

#[cfg(any(test, feature = "failpoints"))]
mod armed {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use nix::sys::signal::{Signal, raise};

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Starts to count down to the step that the environment names.
    pub fn arm() {
        let step = std::env::var("FARFORK_KILL_AT_STEP").ok().and_then(|text| text.parse().ok());
        LEFT.store(step.unwrap_or(u64::MAX), SeqCst);
    }

    /// One step.
    pub fn step() {
        if LEFT.fetch_sub(1, SeqCst) == 0 {
            let _ = raise(Signal::SIGKILL);
        }
    }
}

#[cfg(any(test, feature = "failpoints"))]
pub use armed::{arm, step};

/// One step: nothing in a build without `failpoints`.
#[cfg(not(any(test, feature = "failpoints")))]
#[inline(always)]
pub fn step() {}
