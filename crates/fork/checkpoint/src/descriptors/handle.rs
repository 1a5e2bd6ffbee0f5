//! Access to descriptors of other processes (`pidfd_getfd`).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::error::{DescriptorError, kernel_error, unexpected};
use super::table::Entry;

/// Processes by pidfd.
pub struct Handles(HashMap<i32, OwnedFd>);

impl Handles {
    /// Those of processes `pids`.
    pub fn open_all(pids: &[i32]) -> Result<Handles, DescriptorError> {
        let handle = |pid: &i32| {
            let handle = Pid::from_raw(*pid)
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
                .map_err(kernel_error(*pid, "a pidfd"))?;
            Ok((*pid, handle))
        };
        pids.iter().map(handle).collect::<Result<_, _>>().map(Handles)
    }

    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        let failed = || kernel_error(entry.pid, format!("a duplicate of {}", entry.object("")));
        if let Some(held) = &entry.held {
            return fcntl_dupfd_cloexec(held, 0).map_err(failed());
        }
        let handle = self.0.get(&entry.pid).ok_or_else(|| unexpected(entry.pid, "descriptors"))?;
        pidfd_getfd(handle, entry.fd as i32, PidfdGetfdFlags::empty()).map_err(failed())
    }
}
