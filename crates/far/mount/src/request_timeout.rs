//! The kernel's own limit for requests of the file system (Linux 6.14): what the far process leaves unanswered,
//! because it is stopped or hangs, ends with the file system, so that clones get SIGBUS and can be killed.
//!
//! `FUSE_INIT` carries the limit. The crate for FUSE does not know it, so its answer goes through a pipe, and
//! the limit is written into it:
//!
//! ```text
//!   0  length, error, number          16     48  flags2: bit 10 (FUSE_REQUEST_TIMEOUT)   4
//!  16  version, read-ahead, flags, …  32     52  depth of stacks                        4
//!                                            56  limit in seconds                       2
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use fuse_backend_rs::api::filesystem::FileSystem;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::transport::{FuseBuf, FuseDevWriter, Reader, Writer};
use rustix::pipe::{PipeFlags, pipe_with};

/// `FUSE_INIT`.
const INIT: u32 = 26;
/// Bit of `flags2`, in both directions.
const REQUEST_TIMEOUT: u32 = 1 << 10;
/// Where `flags2` stands in the kernel's request, behind its header of 40 bytes.
const OFFERED_AT: usize = 40 + 16;
/// Where things stand in the answer, with its header of 16 bytes.
const FLAGS2_AT: usize = 16 + 32;
const LIMIT_AT: usize = 16 + 40;

/// The limit in seconds, for reads that end by `deadline` once a thread has taken them: they may wait as long for
/// a thread. The kernel takes 15 s at least, and looks every 15 s.
pub fn of(deadline: Duration) -> u16 {
    let seconds = (2 * deadline + Duration::from_secs(5)).as_secs() + 1;
    seconds.try_into().unwrap_or(u16::MAX)
}

/// Whether a request is the kernel's first.
pub fn is_init(request: &[u8]) -> bool {
    word(request, 4) == Some(INIT)
}

/// Answers it, with the limit if this kernel has one.
pub fn answer_init<F: FileSystem + Sync>(
    device: &File,
    server: &Server<F>,
    request: &mut [u8],
    answer: &mut [u8],
    limit_s: u16,
) -> io::Result<()> {
    let offered = word(request, OFFERED_AT).unwrap_or(0);
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    let reader = Reader::<()>::from_fuse_buffer(FuseBuf::new(request)).map_err(io::Error::other)?;
    let writer = FuseDevWriter::<()>::new(writing.as_raw_fd(), answer).map_err(io::Error::other)?;
    let handled = server.handle_message(reader, Writer::FuseDev(writer), None, None);
    handled.map_err(io::Error::other)?;
    drop(writing);
    let mut bytes = vec![0; 4096];
    let length = rustix::io::read(reading, &mut bytes)?;
    bytes.truncate(length);
    put_limit(&mut bytes, offered, limit_s);
    rustix::io::write(device.as_fd(), &bytes)?;
    Ok(())
}

/// Writes the limit into an answer that is long enough for it, if the kernel has offered it.
fn put_limit(answer: &mut [u8], offered: u32, limit_s: u16) {
    let Some(flags2) = word(answer, FLAGS2_AT) else { return };
    if offered & REQUEST_TIMEOUT == 0 || answer.len() < LIMIT_AT + 2 {
        return;
    }
    let flags2 = flags2 | REQUEST_TIMEOUT;
    answer[FLAGS2_AT..FLAGS2_AT + 4].copy_from_slice(&flags2.to_ne_bytes());
    answer[LIMIT_AT..LIMIT_AT + 2].copy_from_slice(&limit_s.to_ne_bytes());
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse_backend_rs::abi::fuse_abi::{InitOut, OutHeader};
    use std::mem::offset_of;

    #[test]
    fn the_limit_stands_where_the_kernel_reads_it() {
        assert_eq!(FLAGS2_AT, size_of::<OutHeader>() + offset_of!(InitOut, flags2));
        // After the depth of stacks, which the crate counts to what is unused.
        assert_eq!(LIMIT_AT, size_of::<OutHeader>() + offset_of!(InitOut, unused) + 4);
        let mut answer = vec![0; 80];
        put_limit(&mut answer, 0, 17);
        put_limit(&mut answer[..50], REQUEST_TIMEOUT, 17);
        assert_eq!(answer, vec![0; 80]);
        put_limit(&mut answer, REQUEST_TIMEOUT | 1, 17);
        assert_eq!((answer[FLAGS2_AT + 1], answer[LIMIT_AT]), (4, 17));
        assert_eq!(answer.iter().filter(|byte| **byte != 0).count(), 2);
    }

    #[test]
    fn the_limit_is_longer_than_any_read() {
        assert_eq!(of(Duration::from_millis(5000)), 16);
        assert_eq!(of(Duration::from_millis(50)), 6);
        assert_eq!(of(Duration::from_secs(600)), 1206);
        assert_eq!(of(Duration::from_secs(1 << 20)), u16::MAX);
    }
}
