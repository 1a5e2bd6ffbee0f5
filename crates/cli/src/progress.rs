//! How far long work is, on one line of a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use farfork_types::CHUNK_BYTES;

use crate::size;

/// Work that is done sooner shows nothing.
const SILENCE: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(100);

/// A line that is rewritten, and cleared at the end.
pub(crate) struct Progress {
    doing: &'static str,
    is_terminal: bool,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// Starts; nothing is shown unless stderr is a terminal.
    pub(crate) fn new(doing: &'static str) -> Progress {
        let is_terminal = io::stderr().is_terminal();
        Progress { doing, is_terminal, next: Instant::now() + SILENCE, shown: false }
    }

    /// So many windows of all are done.
    pub(crate) fn windows(&mut self, done: u64, all: u64) {
        if !self.is_terminal || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + INTERVAL;
        self.shown = true;
        let bytes = |windows: u64| size::show(windows * CHUNK_BYTES);
        let percent = 100 * done / all.max(1);
        eprint!("\r{} {} of {} ({percent} %)\x1b[K", self.doing, bytes(done), bytes(all));
        let _ = io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
