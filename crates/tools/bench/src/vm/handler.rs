//! Page servers to compare with, which know nothing of zeros: a plain one, and one after REAP.
//!
//! The plain one copies one page of the memory file for each fault, as Firecracker's example does, and records the
//! order of faults. The other one is REAP's idea (ASPLOS '21): pages that an earlier machine needed lie in a file
//! of their own, which is read by one call and copied before the guest runs. Both are written for this
//! benchmark.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use farfork_pageserver::{HandOver, Regions};
use farfork_sys::sync::locked;
use farfork_sys::userfault::{MESSAGE_WORDS, Message, Userfault, load_message};
use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{BenchError, io};

const PAGE_BYTES: u64 = 4096;
/// Messages that are read at once.
const MESSAGES: usize = 64;
/// How long a machine is waited for.
const LIMIT: Duration = Duration::from_secs(20);

/// Pages of the working set: their file, and where they belong, as `(offset, bytes)` in the order of the file.
#[derive(Clone, Debug)]
pub struct WorkingSet {
    /// The file.
    pub path: PathBuf,
    /// What it has.
    pub runs: Vec<(u64, u64)>,
}

impl WorkingSet {
    /// Writes the pages at these offsets, neighbours together.
    pub fn write(path: &Path, memory: &Path, offsets: &[u64]) -> Result<WorkingSet, BenchError> {
        let source = File::open(memory).map_err(io("open", memory))?;
        let runs = runs(offsets, 0);
        let mut bytes = Vec::new();
        for &(offset, length) in &runs {
            let start = bytes.len();
            bytes.resize(start + length as usize, 0);
            source.read_exact_at(&mut bytes[start..], offset).map_err(io("read", memory))?;
        }
        std::fs::write(path, &bytes).map_err(io("write", path))?;
        Ok(WorkingSet { path: path.to_owned(), runs })
    }
}

/// Ranges of these pages, as `(offset, bytes)`; gaps of at most `gap` bytes are closed.
pub fn runs(offsets: &[u64], gap: u64) -> Vec<(u64, u64)> {
    let mut offsets = offsets.to_vec();
    offsets.sort_unstable();
    offsets.dedup();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for offset in offsets {
        match runs.last_mut() {
            Some((start, bytes)) if *start + *bytes + gap >= offset => {
                *bytes = offset + PAGE_BYTES - *start;
            }
            _ => runs.push((offset, PAGE_BYTES)),
        }
    }
    runs
}

/// A handler that listens at a socket until it is dropped.
pub struct Handler {
    /// Where.
    pub socket: PathBuf,
    /// Offsets of faults of the last machine, in order.
    faults: Arc<Mutex<Vec<u64>>>,
    filled: Receiver<()>,
    is_over: Arc<AtomicBool>,
}

impl Handler {
    /// Starts one for the bytes of a memory file.
    pub fn start(
        socket: &Path,
        memory: &Arc<[u8]>,
        set: Option<WorkingSet>,
    ) -> Result<Handler, BenchError> {
        let listener = UnixListener::bind(socket).map_err(io("listen at", socket))?;
        let memory = Arc::clone(memory);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let faults = Arc::new(Mutex::new(Vec::new()));
        let (sender, filled) = channel();
        let recorded = Arc::clone(&faults);
        thread::spawn(move || {
            for machine in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (memory, faults) = (Arc::clone(&memory), Arc::clone(&recorded));
                let (set, sender) = (set.clone(), sender.clone());
                thread::spawn(move || {
                    let mut met = Vec::new();
                    serve(&machine, &memory, set.as_ref(), &sender, &mut met);
                    *locked(&faults) = met;
                });
            }
        });
        Ok(Handler { socket: socket.to_owned(), faults, filled, is_over })
    }

    /// Waits until the working set of a machine is there.
    pub fn wait(&self) -> Result<(), BenchError> {
        self.filled.recv_timeout(LIMIT).map_err(super::failed)
    }

    /// Takes what the machine that has ended last had faults for.
    pub fn take_faults(&self) -> Vec<u64> {
        let until = std::time::Instant::now() + LIMIT;
        loop {
            let mut faults = locked(&self.faults);
            if !faults.is_empty() || std::time::Instant::now() > until {
                return std::mem::take(&mut faults);
            }
            drop(faults);
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Wakes the thread, which lets go of the memory.
        self.is_over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.socket);
    }
}

/// Serves a machine until its socket is closed, or something does not work: its guest shows that.
fn serve(
    machine: &UnixStream,
    memory: &[u8],
    set: Option<&WorkingSet>,
    filled: &Sender<()>,
    met: &mut Vec<u64>,
) -> Option<()> {
    let mut hand_over = HandOver::default();
    while !hand_over.receive(machine).ok()? {
        poll(&mut [PollFd::new(machine, PollFlags::IN)], None).ok()?;
    }
    let regions = Regions::checked(hand_over.regions(), memory.len() as u64).ok()?;
    let userfault: OwnedFd = hand_over.userfaults.pop()?;
    let userfault = Userfault::from(userfault);
    if let Some(set) = set {
        let bytes = std::fs::read(&set.path).ok()?;
        let mut at = 0;
        for &(offset, length) in &set.runs {
            let part = &bytes[at..at + length as usize];
            userfault.copy(regions.at_offset(offset)?.address, part);
            at += part.len();
        }
        filled.send(()).ok()?;
    }
    let words: Vec<AtomicU64> = (0..MESSAGES * MESSAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
    loop {
        let mut polled = [
            PollFd::new(&userfault, PollFlags::IN),
            PollFd::from_borrowed_fd(machine.as_fd(), PollFlags::IN | PollFlags::RDHUP),
        ];
        poll(&mut polled, None).ok()?;
        if !polled[1].revents().is_empty() {
            return None;
        }
        let read = userfault.read(&words).ok()?;
        for message in words[..read].chunks(MESSAGE_WORDS) {
            let Some(Message::Fault { address }) = load_message(message) else { continue };
            let found = regions.find(address)?;
            let offset = found.offset as usize;
            met.push(found.offset);
            userfault.copy(found.address, &memory[offset..offset + PAGE_BYTES as usize]);
        }
    }
}
