//! The share of near memory of one instance: which one it was asked to have last, and whether it has it.
//!
//! ```text
//!  nothing asked ── begin(800) ──► changing ── met ──────────────► has 800 ── begin(900) ──► changing ─► …
//!  started with 300 ► has 300         └── ended in another way ──► asked for 800, has none that is known
//! ```
//! The change runs beside the instance's calls: only calls that began with a share say something about it.

use std::sync::{Arc, Mutex, MutexGuard};

use farfork_sys::sync::locked;
use farfork_types::LocalShare;

/// The share of one instance.
#[derive(Clone, Debug, Default)]
pub struct NearShare(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    asked: Option<LocalShare>,
    has: Option<LocalShare>,
    is_changing: bool,
}

impl NearShare {
    /// Of an instance that was started with this share.
    pub fn started_with(share: LocalShare) -> NearShare {
        let state = State { asked: Some(share), has: Some(share), is_changing: false };
        NearShare(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves it valid.
        locked(&self.0)
    }

    /// The share that it has, as far as that is known.
    pub fn has(&self) -> Option<LocalShare> {
        self.state().has
    }

    /// The share that it was asked to have last; `None` if none was asked for, or as long as that goes on.
    pub fn settled(&self) -> Option<LocalShare> {
        let state = self.state();
        state.asked.filter(|_| !state.is_changing)
    }

    /// It is asked to have this share, until the change is dropped.
    pub fn begin(&self, share: LocalShare) -> ShareChange {
        *self.state() = State { asked: Some(share), has: None, is_changing: true };
        ShareChange(self.clone())
    }
}

/// A change of a share.
#[derive(Debug)]
pub struct ShareChange(NearShare);

impl ShareChange {
    /// The instance has the share.
    pub fn met(self) {
        let mut state = self.0.state();
        state.has = state.asked;
    }
}

impl Drop for ShareChange {
    fn drop(&mut self) {
        self.0.state().is_changing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_counts_once_it_is_met() {
        let [low, high] = [300, 800].map(|permille| LocalShare::from_permille(permille).unwrap());
        let seen = |share: &NearShare| (share.settled(), share.has());
        let share = NearShare::default();
        assert_eq!(seen(&share), (None, None));
        let change = share.begin(low);
        assert_eq!(seen(&share), (None, None), "it changes");
        change.met();
        assert_eq!(seen(&share), (Some(low), Some(low)));
        assert_eq!(seen(&NearShare::started_with(low)), seen(&share));
        let change = share.clone().begin(high);
        assert_eq!(seen(&share), (None, None), "it has less than asked for, and more than before");
        drop(change);
        assert_eq!(seen(&share), (Some(high), None));
    }
}
