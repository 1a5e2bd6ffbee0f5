//! Files in memory that cannot be written any more.

use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;

/// The seals of a file whose bytes never change.
pub const FINAL: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// How long to wait for the kernel to release a page.
const SEAL_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Seals a file whose bytes are all written, with [`FINAL`].
///
/// The kernel refuses while one of its pages is held (`EBUSY`, after 150 ms), since the holder
/// might write it. Reclaim, compaction and DAMON hold pages for a moment, so the call is retried.
///
/// # Errors
/// `EBUSY`: it is mapped writable, or a page is held for seconds; `EPERM`: it was made without
/// `MFD_ALLOW_SEALING`, or is sealed.
pub fn seal(file: impl AsFd) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match fcntl_add_seals(&file, FINAL) {
            Err(Errno::BUSY) if begin.elapsed() < SEAL_LIMIT => thread::sleep(PAUSE),
            sealed => return Ok(sealed?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::pipe::{SpliceFlags, pipe, splice};

    use super::*;

    #[test]
    fn a_page_that_is_held_for_a_while_is_waited_for() {
        let mut file = File::from(memfd_create("held", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(&[7; 4096]).unwrap();
        let (reader, writer) = pipe().unwrap();
        let spliced = splice(&file, Some(&mut 0), &writer, None, 4096, SpliceFlags::empty());
        assert_eq!(spliced.unwrap(), 4096);
        assert_eq!(fcntl_add_seals(&file, FINAL), Err(Errno::BUSY));
        let holder = thread::spawn(move || {
            thread::sleep(Duration::from_millis(400));
            drop((reader, writer));
        });
        seal(&file).unwrap();
        holder.join().unwrap();
        assert!(file.write_all(&[8]).is_err());
    }
}
