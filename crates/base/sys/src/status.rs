//! `/proc/PID/task/TID/status`.

use crate::proc;

/// The thread does not exist, or `/proc` is not mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusError {
    /// The process.
    pub pid: i32,
}

/// The lines that matter to farfork.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Name of the thread.
    pub name: String,
    /// `R`, `S`, `T` (stopped), `Z` (ended) and the like.
    pub state: Option<char>,
    /// Id of the thread in its innermost PID namespace.
    pub innermost_tid: u32,
    /// Id of its process there.
    pub innermost_pid: u32,
    /// Session, by its id in the innermost PID namespace.
    pub session: u32,
    /// The same by its id here.
    pub session_here: u32,
    /// Process group, by its id in the innermost PID namespace.
    pub group: u32,
    /// The same by its id here.
    pub group_here: u32,
    /// File creation mask.
    pub umask: u32,
    /// Real, effective, saved, file-system ids.
    pub uids: [u32; 4],
    /// The same for groups.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient.
    pub capabilities: [u64; 5],
    /// Whether privileges can no longer be gained.
    pub no_new_privs: bool,
    /// Locked memory in KiB.
    pub locked_kb: u64,
    /// Page tables in KiB.
    pub page_tables_kb: u64,
    /// Seccomp mode.
    pub seccomp: u32,
    /// Seccomp filters (Linux 5.9).
    pub seccomp_filters: Option<u32>,
    /// Signals with handlers and ignored ones.
    pub handled: u64,
    /// Ignored signals.
    pub ignored: u64,
    /// Signals pending for the thread or the process.
    pub pending: u64,
    /// The thread that traces it; 0 if none does.
    pub tracer: u32,
    /// Whether another tracer than this thread holds it.
    pub is_ptraced_before: bool,
}

impl Status {
    /// Reads the status of a thread.
    pub fn read(pid: i32, tid: i32) -> Result<Status, StatusError> {
        let text = proc::text(format!("/proc/{pid}/task/{tid}/status"))
            .map_err(|_| StatusError { pid })?;
        let mut status = Status::default();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once(':') {
                status.take(key, value.trim());
            }
        }
        Ok(status)
    }

    fn take(&mut self, key: &str, value: &str) {
        let set = || u64::from_str_radix(value, 16).unwrap_or(0);
        let ids =
            || value.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>();
        let last = || ids().last().copied().unwrap_or(0);
        let first = || ids().first().copied().unwrap_or(0);
        let kilobytes = || ids().first().copied().unwrap_or(0).into();
        let four = || ids().try_into().unwrap_or_default();
        match key {
            "Name" => self.name = value.to_owned(),
            "State" => self.state = value.chars().next(),
            "Umask" => self.umask = u32::from_str_radix(value, 8).unwrap_or(0),
            "NSpid" => self.innermost_tid = last(),
            "NStgid" => self.innermost_pid = last(),
            "NSsid" => (self.session_here, self.session) = (first(), last()),
            "NSpgid" => (self.group_here, self.group) = (first(), last()),
            "Uid" => self.uids = four(),
            "Gid" => self.gids = four(),
            "Groups" => self.groups = ids(),
            "CapInh" => self.capabilities[0] = set(),
            "CapPrm" => self.capabilities[1] = set(),
            "CapEff" => self.capabilities[2] = set(),
            "CapBnd" => self.capabilities[3] = set(),
            "CapAmb" => self.capabilities[4] = set(),
            "NoNewPrivs" => self.no_new_privs = value == "1",
            "VmLck" => self.locked_kb = kilobytes(),
            "VmPTE" => self.page_tables_kb = kilobytes(),
            "Seccomp" => self.seccomp = last(),
            "Seccomp_filters" => self.seccomp_filters = Some(last()),
            "SigCgt" => self.handled = set(),
            "SigIgn" => self.ignored = set(),
            "SigPnd" | "ShdPnd" => self.pending |= set(),
            "TracerPid" => {
                // A tracer is a thread, and the kernel names that.
                let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                self.tracer = last();
                self.is_ptraced_before = self.tracer != 0 && self.tracer != own;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_is_described() {
        let (pid, tid) = (std::process::id() as i32, rustix::thread::gettid());
        let status = Status::read(pid, tid.as_raw_nonzero().get()).unwrap();
        assert_eq!(status.innermost_pid, pid as u32);
        assert_eq!(status.uids[1], rustix::process::geteuid().as_raw());
        assert!(matches!(status.state, Some('R' | 'S')) && status.page_tables_kb > 0);
        assert!(!status.is_ptraced_before && !status.name.is_empty());
        assert_eq!(Status::read(pid, 1 << 30).unwrap_err(), StatusError { pid });
    }
}
