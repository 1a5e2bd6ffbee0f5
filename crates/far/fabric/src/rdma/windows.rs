//! Windows that a server has given to this connection, and why there are none for other regions.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use farfork_sys::sync::locked;

use super::wire::{WINDOW, Window};
use crate::error::{FabricError, Refusal};
use crate::fabric::Fabric;
use crate::region::RegionKey;
use crate::tcp::{Answered, Connection};

/// When a window is asked for again that the server has refused.
const AGAIN: Duration = Duration::from_secs(10);

type Key = [u8; RegionKey::BYTES];

/// By the key of the region.
#[derive(Default)]
pub struct Windows {
    given: Mutex<HashMap<Key, Window>>,
    missing: Mutex<HashMap<Key, Missing>>,
}

/// A region that is read over the connection meanwhile.
struct Missing {
    why: String,
    until: Until,
}

enum Until {
    /// The server registers the region's file. Its answer comes here.
    Answered(Answered),
    Later(Instant),
}

impl Windows {
    /// What was given for a region, which may be [`Window::NONE`].
    pub fn known(&self, key: &RegionKey) -> Option<Window> {
        locked(&self.given).get(&key.to_bytes()).copied()
    }

    #[cfg(test)]
    pub fn pretend(&self, key: &RegionKey, window: Window) {
        locked(&self.given).insert(key.to_bytes(), window);
    }

    /// A window that was withdrawn.
    pub fn forget(&self, key: &RegionKey) {
        locked(&self.given).remove(&key.to_bytes());
    }

    /// Why a region has none.
    pub fn why_missing(&self, key: &RegionKey) -> Option<String> {
        // A second thread that asked for the same one may have been late.
        if self.known(key).is_some_and(|window| window.bytes > 0) {
            return None;
        }
        locked(&self.missing).get(&key.to_bytes()).map(|missing| missing.why.clone())
    }

    /// The window of a region, asked for if it is not known; `None` if the region has none, or none yet: reads must not wait for
    /// it until their deadline.
    pub fn find(
        &self,
        control: &Connection,
        key: &RegionKey,
        deadline: Instant,
    ) -> Result<Option<Window>, FabricError> {
        let window = match self.known(key) {
            Some(window) => Some(window),
            None => self.ask(control, &key.to_bytes(), deadline)?,
        };
        Ok(window.filter(|window| window.bytes > 0))
    }

    fn ask(
        &self,
        control: &Connection,
        key: &Key,
        deadline: Instant,
    ) -> Result<Option<Window>, FabricError> {
        let now = Instant::now();
        let earlier = self.answered(key, now);
        let answer = match earlier {
            Earlier::NotYet => return Ok(None),
            Earlier::Answered(answer) => answer,
            Earlier::Nothing => {
                let asked = control.begin_ask(WINDOW, key)?;
                match asked.recv_timeout(deadline.saturating_duration_since(now) / 2) {
                    Ok(answer) => answer,
                    Err(RecvTimeoutError::Timeout) => {
                        let why = format!("{} still registers it with its device", control.peer());
                        self.miss(key, why, Until::Answered(asked));
                        return Ok(None);
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let peer = control.peer().to_owned();
                        return Err(FabricError::DeadlinePassed { peer });
                    }
                }
            }
        };
        self.take_in(control.peer(), key, answer, now + AGAIN)
    }

    /// What became of an earlier question.
    fn answered(&self, key: &Key, now: Instant) -> Earlier {
        let mut all = locked(&self.missing);
        let earlier = match all.get(key).map(|missing| &missing.until) {
            None => Earlier::Nothing,
            Some(Until::Later(again)) if now < *again => Earlier::NotYet,
            Some(Until::Later(_)) => Earlier::Nothing,
            Some(Until::Answered(reply)) => match reply.try_recv() {
                Ok(answer) => Earlier::Answered(answer),
                Err(TryRecvError::Empty) => Earlier::NotYet,
                Err(TryRecvError::Disconnected) => Earlier::Nothing,
            },
        };
        if !matches!(earlier, Earlier::NotYet) {
            all.remove(key);
        }
        earlier
    }

    fn take_in(
        &self,
        peer: &str,
        key: &Key,
        answer: Result<Vec<u8>, FabricError>,
        again: Instant,
    ) -> Result<Option<Window>, FabricError> {
        match answer {
            Ok(bytes) => {
                let window = Window::from_bytes(&bytes).ok_or_else(|| FabricError::Broken {
                    peer: peer.to_owned(),
                    why: "it gave something that is not a window".to_owned(),
                })?;
                if window == Window::NONE {
                    let why = format!("the device of {peer} cannot register it");
                    self.miss(key, why, Until::Later(again));
                }
                locked(&self.given).insert(*key, window);
                Ok(Some(window))
            }
            // It may have a reason of its own: whether the region can be read is found over the connection.
            Err(error @ FabricError::Refused { refusal: Refusal::Failed { .. }, .. }) => {
                self.miss(key, error.to_string(), Until::Later(again));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn miss(&self, key: &Key, why: String, until: Until) {
        locked(&self.missing).insert(*key, Missing { why, until });
    }
}

enum Earlier {
    Nothing,
    NotYet,
    Answered(Result<Vec<u8>, FabricError>),
}
