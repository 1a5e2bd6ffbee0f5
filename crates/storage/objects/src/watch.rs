//! Recovers clients as soon as they die.
//!
//! A watcher may be killed at any moment, also in the middle of a recovery: another one, or any client that needs
//! memory, starts that recovery again. Descriptors of processes make it prompt. That a client is dead is known by its
//! lock alone, so a pid of another namespace or of a later process does no harm.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::ObjectsError;
use crate::layout::ClientId;
use crate::recovery::recover_if_dead;
use crate::region::{Platform, Region};
use crate::words::Words;

/// New clients are noticed as often as this.
const LONGEST_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl<P: Platform> Region<P> {
    /// Recovers every client that dies, until `stop` is true (which it notices within a tenth of a second). Returns how
    /// many.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn watch(&self, stop: &AtomicBool) -> Result<u64, ObjectsError> {
        self.watch_with(stop, recover_if_dead)
    }

    /// The same with another way to recover a client, which returns whether it did.
    pub(crate) fn watch_with(
        &self,
        stop: &AtomicBool,
        mut recover: impl FnMut(&Region<P>, ClientId) -> Result<bool, ObjectsError>,
    ) -> Result<u64, ObjectsError> {
        let mut recovered = 0;
        let mut watched: Vec<Watched> = Vec::new();
        while !stop.load(Ordering::Acquire) {
            for id in ClientId::all().filter(|id| self.is_in_use(*id)) {
                recovered += u64::from(recover(self, id)?);
            }
            let pid = |id: ClientId| self.words.word(self.layout.client_pid(id));
            watched.retain(|known| self.is_in_use(known.id) && pid(known.id) == known.pid);
            for id in ClientId::all().filter(|id| self.is_in_use(*id)) {
                if watched.iter().all(|known| known.id != id) {
                    watched.push(Watched { id, pid: pid(id), process: open(pid(id)) });
                }
            }
            wait(&mut watched);
        }
        Ok(recovered)
    }
}

struct Watched {
    id: ClientId,
    pid: u64,
    /// `None` once it has ended, or if this process cannot see it.
    process: Option<OwnedFd>,
}

/// `None` if this process cannot see it.
fn open(pid: u64) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a process ends, and does not wait for it again.
fn wait(watched: &mut [Watched]) {
    let living: Vec<&mut Option<OwnedFd>> =
        watched.iter_mut().map(|known| &mut known.process).filter(|it| it.is_some()).collect();
    let mut fds: Vec<PollFd<'_>> = living
        .iter()
        .filter_map(|process| process.as_ref())
        .map(|process| PollFd::new(process, PollFlags::IN))
        .collect();
    // A signal only makes it look sooner.
    let _ = poll(&mut fds, Some(&LONGEST_WAIT));
    let has_ended: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    for (process, has_ended) in living.into_iter().zip(has_ended) {
        if has_ended {
            *process = None;
        }
    }
}
