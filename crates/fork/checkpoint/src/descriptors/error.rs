//! Why a descriptor, or all of them, could not be collected.

use farfork_image::model::OpenFile;
use farfork_sys::words::words;
use rustix::io::Errno;

use crate::refuse::Cause;

/// Why descriptors could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// `/proc` cannot be read.
    #[error(
        "cannot read {what} of process {pid} from /proc ({reason}): run as root or as the \
         process's owner, with the /proc of its PID namespace mounted"
    )]
    Proc {
        /// The process.
        pid: i32,
        /// What was to be read.
        what: String,
        /// The kernel's answer.
        reason: &'static str,
    },
    /// A system call about a descriptor failed.
    #[error(
        "cannot get {what} of process {pid} from the kernel ({reason}): run as root, on a kernel \
         with CONFIG_KCMP and CONFIG_UNIX_DIAG"
    )]
    Kernel {
        /// The process.
        pid: i32,
        /// What was to be got.
        what: String,
        /// The kernel's answer.
        reason: &'static str,
    },
    /// The packets of its connections cannot be blocked.
    #[error(
        "cannot block the packets of the connections of process {pid} ({reason}): run as root, \
         on Linux 5.12 or later with CONFIG_NF_TABLES_INET"
    )]
    NetworkLock {
        /// The process.
        pid: i32,
        /// The kernel's answer.
        reason: &'static str,
    },
}

/// The error of a failed network lock.
pub fn network_lock_error(pid: i32, errno: Errno) -> DescriptorError {
    DescriptorError::NetworkLock { pid, reason: words(errno.raw_os_error()) }
}

/// The error of a failed system call, by what it was to get.
pub fn kernel_error(pid: i32, what: impl Into<String>) -> impl FnOnce(Errno) -> DescriptorError {
    let what = what.into();
    move |errno| DescriptorError::Kernel { pid, what, reason: words(errno.raw_os_error()) }
}

/// The error of a failed read in `/proc`.
pub fn proc_error(
    pid: i32,
    what: impl Into<String>,
) -> impl FnOnce(std::io::Error) -> DescriptorError {
    let what = what.into();
    move |error| {
        let reason = error.raw_os_error().map_or("unexpected content", words);
        DescriptorError::Proc { pid, what, reason }
    }
}

/// The error of a file in `/proc` whose content farfork does not understand.
pub fn unexpected(pid: i32, what: impl Into<String>) -> DescriptorError {
    DescriptorError::Proc { pid, what: what.into(), reason: "unexpected content" }
}

/// One description that cannot be carried.
#[derive(Debug)]
pub struct Refused {
    /// What it is, beyond its link in `/proc`; may be empty.
    pub detail: String,
    /// Why, and what the user can do.
    pub cause: &'static Cause,
}

/// Why the capture of one description ended without a file.
#[derive(Debug)]
pub enum CaptureError {
    /// It cannot be carried.
    Refused(Refused),
    /// It could not be looked at.
    Failed(DescriptorError),
}

impl From<DescriptorError> for CaptureError {
    fn from(error: DescriptorError) -> CaptureError {
        CaptureError::Failed(error)
    }
}

/// What the capture of one description gives.
pub type CaptureResult = Result<OpenFile, CaptureError>;

/// A refusal without details beyond the link in `/proc`.
pub fn refuse(cause: &'static Cause) -> CaptureError {
    refuse_detail("", cause)
}

/// A refusal with details beyond the link in `/proc`.
pub fn refuse_detail(detail: impl Into<String>, cause: &'static Cause) -> CaptureError {
    CaptureError::Refused(Refused { detail: detail.into(), cause })
}
