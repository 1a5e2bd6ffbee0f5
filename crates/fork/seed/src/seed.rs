//! The life of a seed, as its keeper's threads share it.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farfork_sys::sync::{locked, unpoisoned};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::protocol::Reclaimed;

/// What a seed near its end is given when clones of it start.
pub const LEAST_LIFE: Duration = Duration::from_secs(60);

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
        /// What could still have fetched pages.
        cut_off: Reclaimed,
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
    /// How long it was to live when that was said.
    life: Duration,
    /// Times that a node was given the image.
    found: u64,
    /// Connections that wait for the end, which fetch nothing.
    reclaimers: usize,
}

impl Seed {
    /// One whose life begins, and which expires at that time.
    pub fn new(expires: Instant) -> io::Result<Seed> {
        let life = expires.saturating_duration_since(Instant::now());
        let state = State { phase: Phase::Open, expires, life, found: 0, reclaimers: 0 };
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
        self.change_expiry(|_| expires)
    }

    fn change_expiry(&self, change: impl FnOnce(Instant) -> Instant) -> Result<(), String> {
        let mut state = self.state();
        if let Phase::Closing { why, .. } | Phase::Ended { why, .. } = &state.phase {
            return Err(why.clone());
        }
        let expires = change(state.expires);
        if expires != state.expires {
            state.expires = expires;
            state.life = expires.saturating_duration_since(Instant::now());
        }
        drop(state);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Lets it live at least until then.
    ///
    /// # Errors
    /// Why no clone starts any more.
    pub fn outlive(&self, expires: Instant) -> Result<(), String> {
        self.change_expiry(|known| known.max(expires))
    }

    /// Connections that fetch nothing.
    pub fn reclaimers(&self) -> usize {
        self.state().reclaimers
    }

    /// Counts a node whose clones are about to start. A seed near its end lives on for [`LEAST_LIFE`], or as long as it was
    /// given if that is less; that time, if so. It is near if less than half of that time is left: its owners hear of each
    /// change.
    ///
    /// # Errors
    /// Why none starts any more.
    pub fn find(&self) -> Result<Option<Duration>, String> {
        let mut state = self.state();
        match &state.phase {
            Phase::Open => {
                state.found += 1;
                let life = state.life.min(LEAST_LIFE);
                let now = Instant::now();
                let is_near = state.expires < now + life / 2;
                if is_near {
                    state.expires = now + life;
                }
                Ok(is_near.then_some(life))
            }
            Phase::Closing { why, .. } | Phase::Ended { why, .. } => Err(why.clone()),
        }
    }

    /// Whether its pages are still there, for nodes that have clones of it, or of a clone of it.
    ///
    /// # Errors
    /// Why they are gone.
    pub fn has_pages(&self) -> Result<(), String> {
        match &self.state().phase {
            Phase::Open | Phase::Closing { .. } => Ok(()),
            Phase::Ended { why, .. } => Err(why.clone()),
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

    /// Closes a seed that has expired by `now`, with `grace` until its end. Nothing can prolong it in between.
    pub fn close_if_expired(&self, now: Instant, grace: Duration) {
        let mut state = self.state();
        if state.phase == Phase::Open && now >= state.expires {
            let (why, until) = ("it has expired".to_owned(), now + grace);
            state.phase = Phase::Closing { why, until };
        }
    }

    /// Records that its pages are gone.
    pub fn end(&self, why: &str, cut_off: Reclaimed) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Ended { .. }) {
            state.phase = Phase::Ended { why: why.to_owned(), cut_off };
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Closes it and waits for its end; what was cut off.
    pub fn reclaim(&self, wait: Duration) -> Reclaimed {
        self.state().reclaimers += 1;
        self.close("it is being reclaimed", Instant::now() + wait);
        let mut state = self.state();
        loop {
            if let Phase::Ended { cut_off, .. } = state.phase {
                state.reclaimers -= 1;
                return cut_off;
            }
            state = unpoisoned(self.changed.wait(state));
        }
    }

    /// Takes back the wake-up.
    pub fn is_awake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
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
        assert_eq!(seed.has_pages(), Ok(()));
        seed.end("it was reclaimed", Reclaimed::default());
        assert_eq!(seed.has_pages(), Err("it was reclaimed".to_owned()));
    }

    #[test]
    fn a_seed_near_its_end_lives_on_when_clones_start() {
        let now = Instant::now();
        let s = Duration::from_secs;
        let seed = Seed::new(now + s(600)).unwrap();
        assert_eq!((seed.find(), seed.expires()), (Ok(None), now + s(600)));
        seed.state().expires = now + s(5);
        assert_eq!(seed.find(), Ok(Some(LEAST_LIFE)));
        assert!(seed.expires() >= now + LEAST_LIFE);
        // Half of it is left: its owners need not hear of it again.
        seed.state().expires = now + s(40);
        assert_eq!((seed.find(), seed.expires()), (Ok(None), now + s(40)));
        // Not longer than it was given.
        seed.renew(Instant::now() + s(4)).unwrap();
        assert_eq!(seed.find(), Ok(None));
        seed.state().expires = Instant::now() + s(1);
        assert!(seed.find().unwrap().is_some_and(|life| life <= s(4)));
        assert!(seed.expires() > Instant::now() + s(2) && seed.expires() < Instant::now() + s(5));
        seed.renew(now).unwrap();
        seed.find().unwrap();
        assert!(seed.expires() <= Instant::now());
    }

    #[test]
    fn a_seed_that_was_prolonged_does_not_expire() {
        let seed = Seed::new(Instant::now() + LEAST_LIFE).unwrap();
        let expired = seed.expires();
        // A node came between the look at the time and the close.
        seed.outlive(expired + LEAST_LIFE).unwrap();
        seed.close_if_expired(expired, LEAST_LIFE);
        assert_eq!(seed.phase(), Phase::Open);
        let now = seed.expires();
        seed.close_if_expired(now, LEAST_LIFE);
        let why = "it has expired".to_owned();
        assert_eq!(seed.phase(), Phase::Closing { why, until: now + LEAST_LIFE });
        seed.close_if_expired(now + LEAST_LIFE, LEAST_LIFE);
        assert!(matches!(seed.phase(), Phase::Closing { until, .. } if until == now + LEAST_LIFE));
    }

    #[test]
    fn a_seed_that_closes_is_not_renewed() {
        let now = Instant::now();
        let seed = Seed::new(now).unwrap();
        let later = now + Duration::from_secs(60);
        assert_eq!((seed.renew(later), seed.expires()), (Ok(()), later));
        assert_eq!((seed.outlive(now), seed.expires()), (Ok(()), later));
        let last = later + Duration::from_secs(1);
        assert_eq!((seed.outlive(last), seed.expires()), (Ok(()), last));
        seed.renew(later).unwrap();
        seed.close("it has expired", now);
        assert_eq!(seed.outlive(last), Err("it has expired".to_owned()));
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
        let cut_off = Reclaimed { cut_off: 2, cut_off_clones: 9 };
        seed.end("it was reclaimed", cut_off);
        assert_eq!(waiting.join().unwrap(), cut_off);
        assert_eq!(seed.find(), Err("it was reclaimed".to_owned()));
    }
}
