//! A plain handler of page faults: one page of the memory file is copied for each fault, whatever it holds.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use farfork_pageserver::{HandOver, Regions};
use farfork_sys::userfault::{MESSAGE_WORDS, Message, Userfault, load_message};
use rustix::event::{PollFd, PollFlags, poll};

use crate::error::{BenchError, io};

const PAGE_BYTES: usize = 4096;
/// Messages that are read at once.
const MESSAGES: usize = 64;

/// A handler that listens at a socket as long as this process lives.
pub struct Handler {
    /// Where.
    pub socket: PathBuf,
}

impl Handler {
    /// Starts one for a memory file, all of which it has in memory.
    pub fn start(socket: &Path, memory: &Path) -> Result<Handler, BenchError> {
        let listener = UnixListener::bind(socket).map_err(io("listen at", socket))?;
        let memory = std::fs::read(memory).map_err(io("read", memory))?;
        let memory: Arc<[u8]> = memory.into();
        thread::spawn(move || {
            for machine in listener.incoming().map_while(Result::ok) {
                let memory = Arc::clone(&memory);
                thread::spawn(move || serve(&machine, &memory));
            }
        });
        Ok(Handler { socket: socket.to_owned() })
    }
}

/// Serves a machine until its socket is closed, or something does not work: its guest shows that.
fn serve(machine: &UnixStream, memory: &[u8]) -> Option<()> {
    let mut hand_over = HandOver::default();
    while !hand_over.receive(machine).ok()? {
        poll(&mut [PollFd::new(machine, PollFlags::IN)], None).ok()?;
    }
    let regions = Regions::checked(hand_over.regions(), memory.len() as u64).ok()?;
    let userfault: OwnedFd = hand_over.userfaults.pop()?;
    let userfault = Userfault::from(userfault);
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
            userfault.copy(found.address, &memory[offset..offset + PAGE_BYTES]);
        }
    }
}
