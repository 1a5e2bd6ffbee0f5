//! Rings of io_uring for a clone. Its filter forbids it to make any, and a message cannot carry one: so the
//! agent makes them, and the clone takes them out of the agent's table. Each comes with one end of a socket
//! pair, in which its number waits, and by which the kernel shows the agent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use farfork_image::compile;
use farfork_image::model::{Model, OpenFile};
use farfork_sys::ring::{self, Shape};
use farfork_sys::words;
use rustix::io::write;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::error::NodeError;

/// The rings of a clone. The clone must run, or have failed, before this goes.
#[derive(Debug, Default)]
pub struct Rings {
    _made: Vec<OwnedFd>,
}

impl Rings {
    /// Makes the rings of `model`, and adds what the clone takes them by to `given`.
    pub fn make(model: &Model, given: &mut Vec<OwnedFd>) -> Result<Rings, NodeError> {
        let mut made = Vec::new();
        for wanted in compile::rings(model) {
            let OpenFile::Ring { entries, completions, has_array, position, .. } =
                model.files[wanted.file as usize]
            else {
                continue;
            };
            let shape = Shape { entries, completions, has_array, position };
            let failed = |error: io::Error| {
                let why = words::of(&error);
                NodeError::Agent(format!(
                    "cannot make the ring of descriptor {} (io_uring): {why}; it needs Linux 6.5, and \
                     kernel.io_uring_disabled must be 0",
                    wanted.fd
                ))
            };
            let ring = in_its_own_thread(shape).map_err(failed)?;
            given.push(way_to(&ring).map_err(failed)?);
            made.push(ring);
        }
        Ok(Rings { _made: made })
    }
}

/// The kernel notes for each thread which rings it has used, as long as the thread lives.
fn in_its_own_thread(shape: Shape) -> io::Result<OwnedFd> {
    let maker = std::thread::Builder::new().name("ring".to_owned());
    let made = maker.spawn(move || ring::make(shape))?.join();
    made.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

fn way_to(ring: &OwnedFd) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let (own, given) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    write(&own, &ring.as_raw_fd().to_ne_bytes())?;
    Ok(given)
}
