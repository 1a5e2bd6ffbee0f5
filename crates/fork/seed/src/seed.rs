//! The life of a seed, as its keeper's threads share it.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How far a seed is in its life. It only goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Clones may start.
    Open,
    /// No clone starts any more; those that run may fetch pages until then.
    Closing {
        /// Why.
        why: String,
        /// When it ends at the latest.
        until: Instant,
    },
    /// Its pages are gone.
    Ended {
        /// Why.
        why: String,
        /// Nodes that could still have fetched pages.
        cut_off: usize,
    },
}

/// A seed as the threads of its keeper know it.
pub struct Seed {
    state: Mutex<State>,
    changed: Condvar,
    wake: OwnedFd,
}

struct State {
    phase: Phase,
    /// When no clone starts any more.
    expires: Instant,
    /// Times that a node was given the image.
    found: u64,
    /// Connections that wait for the end, which fetch nothing.
    reclaimers: usize,
}

impl Seed {
    /// One whose life begins, and which expires at that time.
    pub fn new(expires: Instant) -> io::Result<Seed> {
        let state = State { phase: Phase::Open, expires, found: 0, reclaimers: 0 };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Seed { state: Mutex::new(state), changed: Condvar::new(), wake })
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        self.state().phase.clone()
    }

    /// Times that a node was given the image.
    pub fn found(&self) -> u64 {
        self.state().found
    }

    /// When it expires.
    pub fn expires(&self) -> Instant {
        self.state().expires
    }

    /// Lets it expire at another time.
    ///
    /// # Errors
    /// Why no clone starts any more.
    pub fn renew(&self, expires: Instant) -> Result<(), String> {
        let mut state = self.state();
        if let Phase::Closing { why, .. } | Phase::Ended { why, .. } = &state.phase {
            return Err(why.clone());
        }
        state.expires = expires;
        drop(state);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Connections that fetch nothing.
    pub fn reclaimers(&self) -> usize {
        self.state().reclaimers
    }

    /// Counts a clone that is about to start.
    ///
    /// # Errors
    /// Why none starts any more.
    pub fn find(&self) -> Result<(), String> {
        let mut state = self.state();
        match &state.phase {
            Phase::Open => {
                state.found += 1;
                Ok(())
            }
            Phase::Closing { why, .. } | Phase::Ended { why, .. } => Err(why.clone()),
        }
    }

    /// Lets no clone start any more, and ends it by `until`. An earlier end stays.
    pub fn close(&self, why: &str, until: Instant) {
        let mut state = self.state();
        match &mut state.phase {
            Phase::Open => state.phase = Phase::Closing { why: why.to_owned(), until },
            Phase::Closing { until: known, .. } => *known = until.min(*known),
            Phase::Ended { .. } => return,
        }
        drop(state);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Records that its pages are gone.
    pub fn end(&self, why: &str, cut_off: usize) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Ended { .. }) {
            state.phase = Phase::Ended { why: why.to_owned(), cut_off };
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Closes it and waits for its end; how many nodes were cut off.
    pub fn reclaim(&self, wait: Duration) -> usize {
        self.state().reclaimers += 1;
        self.close("it is being reclaimed", Instant::now() + wait);
        let mut state = self.state();
        loop {
            if let Phase::Ended { cut_off, .. } = state.phase {
                state.reclaimers -= 1;
                return cut_off;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes back the wake-up.
    pub fn is_awake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Seed {
    /// Readable when it was closed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_seed_that_closes_starts_no_clone_and_ends_at_the_earlier_time() {
        let seed = Seed::new(Instant::now()).unwrap();
        seed.find().unwrap();
        let now = Instant::now();
        seed.close("it is being reclaimed", now + Duration::from_secs(9));
        seed.close("it has expired", now + Duration::from_secs(20));
        let until = now + Duration::from_secs(9);
        assert_eq!(seed.phase(), Phase::Closing { why: "it is being reclaimed".into(), until });
        assert_eq!((seed.find(), seed.found()), (Err("it is being reclaimed".to_owned()), 1));
    }

    #[test]
    fn a_seed_that_closes_is_not_renewed() {
        let now = Instant::now();
        let seed = Seed::new(now).unwrap();
        let later = now + Duration::from_secs(60);
        assert_eq!((seed.renew(later), seed.expires()), (Ok(()), later));
        seed.close("it has expired", now);
        assert_eq!(seed.renew(now), Err("it has expired".to_owned()));
        assert_eq!(seed.expires(), later);
    }

    #[test]
    fn a_reclaimer_waits_for_the_end_and_hears_who_was_cut_off() {
        let seed = Arc::new(Seed::new(Instant::now()).unwrap());
        let of_thread = Arc::clone(&seed);
        let waiting = std::thread::spawn(move || of_thread.reclaim(Duration::from_secs(60)));
        while seed.phase() == Phase::Open {
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished());
        seed.end("it was reclaimed", 2);
        assert_eq!(waiting.join().unwrap(), 2);
        assert_eq!(seed.find(), Err("it was reclaimed".to_owned()));
    }
}
