//! One object that goes back and forth between two processes.
#![allow(unsafe_code)] // reason: forks

use std::path::Path;
use std::time::{Duration, Instant};

use farfork::{Client, Mailbox, ObjectsError, Timeout};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// A process that is silent for so long is gone.
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));

/// A client here, and a process that returns what it gets. Dropped, it ends that process.
pub(super) struct RoundTrips {
    client: Client,
    there: Mailbox,
    back: Mailbox,
    other: Pid,
}

impl RoundTrips {
    pub(super) fn start(region: &Path, slots: u64) -> Result<RoundTrips, ObjectsError> {
        let mut client = Client::open(region)?;
        let there = client.mailbox("there", slots)?;
        let back = client.mailbox("and-back", slots)?;
        let failed = |source: nix::errno::Errno| ObjectsError::Io {
            doing: "start a process that uses",
            path: region.to_owned(),
            source: source.into(),
        };
        // SAFETY: the other threads of this program have ended, and the child never returns.
        match unsafe { fork() }.map_err(failed)? {
            ForkResult::Parent { child } => Ok(RoundTrips { client, there, back, other: child }),
            ForkResult::Child => {
                let _ = return_all(region, slots);
                // SAFETY: ends the process at once.
                unsafe { nix::libc::_exit(0) }
            }
        }
    }

    /// Half the time of a round trip.
    pub(super) fn one_way_ns(mut self, trips: usize) -> Result<f64, ObjectsError> {
        let mut object = self.client.allocate(64)?;
        let mut begun = Instant::now();
        // The first trips find the other process asleep.
        for trip in 0..trips + 100 {
            if trip == 100 {
                begun = Instant::now();
            }
            self.client.send(self.there, object, PATIENCE)?;
            object = self.client.receive(self.back, PATIENCE)?.ok_or(ObjectsError::Full)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / (2 * trips) as f64)
    }
}

impl Drop for RoundTrips {
    fn drop(&mut self) {
        let _ = kill(self.other, Signal::SIGKILL);
        let _ = waitpid(self.other, None);
        let _ = self.client.region().recover();
    }
}

fn return_all(region: &Path, slots: u64) -> Result<(), ObjectsError> {
    let mut client = Client::open(region)?;
    let (there, back) = (client.mailbox("there", slots)?, client.mailbox("and-back", slots)?);
    while let Some(object) = client.receive(there, PATIENCE)? {
        client.send(back, object, PATIENCE)?;
    }
    Ok(())
}
