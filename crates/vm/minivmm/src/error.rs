//! Why a machine does not run.

use std::io;

use farfork_sys::words;

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// The operating system refused.
    #[error("cannot {doing}: {}; farfork doctor shows what this machine can do", words::of(.source))]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The state is not one of this monitor.
    #[error(
        "cannot restore a machine: its state is not one of this monitor, or is damaged; write it again"
    )]
    State,
    /// There is no such workload.
    #[error(
        "cannot make a guest of the workload {name}: {why}; take one of json, html, pyaes and the others of bench/workloads/record.py, and 256 MiB"
    )]
    Workload {
        /// Its name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// The guest did what it should not.
    #[error(
        "the guest stopped for another reason than its end: {0}; run it on a machine whose KVM works"
    )]
    Exit(String),
}

impl VmmError {
    /// For `map_err`: what was being done.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> VmmError {
        move |source| VmmError::Io { doing, source: source.into() }
    }

    /// The same for KVM's errors.
    pub(crate) fn kvm(doing: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VmmError {
        move |error| VmmError::io(doing)(io::Error::from_raw_os_error(error.errno()))
    }
}
