//! The progress of long work, on one line of a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farfork_types::CHUNK_BYTES;

use crate::size;

/// Work that takes less time shows nothing.
const QUIET: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(100);

/// A line that is rewritten, and cleared when this is dropped.
pub(crate) struct Progress<'a> {
    doing: &'a str,
    is_terminal: bool,
    next: Instant,
    shown: bool,
}

impl<'a> Progress<'a> {
    /// Starts. Shows nothing unless stderr is a terminal.
    pub(crate) fn new(doing: &'a str) -> Progress<'a> {
        let is_terminal = io::stderr().is_terminal();
        Progress { doing, is_terminal, next: Instant::now() + QUIET, shown: false }
    }

    /// Shows how many windows of all are done.
    pub(crate) fn windows(&mut self, done: u64, all: u64) {
        self.bytes(done * CHUNK_BYTES, all * CHUNK_BYTES);
    }

    /// Shows how many bytes of all are done of a part of the work.
    pub(crate) fn bytes_of(&mut self, doing: &'a str, done: u64, all: u64) {
        self.doing = doing;
        self.bytes(done, all);
    }

    /// Shows how many bytes of all are done.
    fn bytes(&mut self, done: u64, all: u64) {
        let percent = 100 * done / all.max(1);
        self.show(|| format!("{} of {} ({percent} %)", size::show(done), size::show(all)));
    }

    /// Whether a terminal shows it.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_terminal
    }

    /// Shows how many calls of all are done.
    pub(crate) fn calls(&mut self, done: u64, all: u64) {
        let done = done.min(all);
        let percent = 100 * done / all.max(1);
        self.show(|| format!("{done} of {all} calls ({percent} %)"));
    }

    /// Shows the time spent, where the rest is unknown.
    pub(crate) fn time(&mut self, elapsed: Duration) {
        self.show(|| format!("({} s)", elapsed.as_secs()));
    }

    fn show(&mut self, status: impl FnOnce() -> String) {
        if !self.is_terminal || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + INTERVAL;
        self.shown = true;
        eprint!("\r{} {}\x1b[K", self.doing, status());
        let _ = io::stderr().flush();
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// The same for work that must not block on a terminal: another thread writes the line.
pub(crate) struct Background {
    state: Arc<State>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    done: AtomicU64,
    all: AtomicU64,
    is_over: AtomicBool,
}

impl Background {
    /// Starts. `None` unless stderr is a terminal, or if no thread can be created.
    pub(crate) fn start(doing: &'static str) -> Option<Background> {
        let mut progress = Progress::new(doing);
        if !progress.is_terminal {
            return None;
        }
        let state = Arc::new(State::default());
        let shown = Arc::clone(&state);
        let writer = thread::Builder::new().spawn(move || {
            while !shown.is_over.load(Ordering::Relaxed) {
                thread::park_timeout(INTERVAL);
                let all = shown.all.load(Ordering::Relaxed);
                if all > 0 {
                    progress.bytes(shown.done.load(Ordering::Relaxed), all);
                }
            }
        });
        writer.ok().map(|writer| Background { state, writer: Some(writer) })
    }

    /// Shows how many bytes of all are done.
    pub(crate) fn bytes(&self, done: u64, all: u64) {
        self.state.done.store(done, Ordering::Relaxed);
        self.state.all.store(all, Ordering::Relaxed);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            writer.thread().unpark();
            let _ = writer.join();
        }
    }
}
