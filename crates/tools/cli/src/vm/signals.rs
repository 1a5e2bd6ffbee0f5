//! Interrupts and requests to end, to be read.

use std::error::Error;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// They end nothing from here on, and can be read.
pub(super) fn blocked() -> Result<SignalFd, Box<dyn Error>> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    let failed = |_| "cannot wait for signals";
    set.thread_block().map_err(failed)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&set, flags).map_err(failed)?)
}
