//! Memory that both ends of a connection on one host share. The client makes it and chooses places in it; the
//! server writes answers there.
//!
//! Neither end maps it: it is written and read by system calls, so that a peer which changes it meanwhile can
//! change bytes, but nothing else. Its length is sealed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

/// The most bytes of memory that a server accepts. What it writes is charged to it at first.
pub const MAX_MEMORY_BYTES: u64 = 64 << 20;
/// Places begin at cache lines.
const LINE_BYTES: u64 = 64;

/// A sealed memfd.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    bytes: u64,
}

impl SharedMemory {
    /// New memory of `bytes`, which takes space where it is written.
    ///
    /// # Errors
    ///
    /// The kernel has no memory, or no descriptor.
    pub fn new(bytes: u64) -> io::Result<SharedMemory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("farfork-fabric", flags)?);
        file.set_len(bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(SharedMemory { file, bytes })
    }

    /// Memory that a peer has made.
    ///
    /// # Errors
    ///
    /// It is something else, its length may change, or it is too large.
    pub fn received(descriptor: OwnedFd) -> io::Result<SharedMemory> {
        let refused = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        // Only memfds have seals: no other file can block a write, or fail late.
        let seals = fcntl_get_seals(&descriptor).map_err(|_| refused("it is not memory"))?;
        let file = File::from(descriptor);
        let bytes = file.metadata()?.len();
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) || bytes > MAX_MEMORY_BYTES {
            return Err(refused("the memory can change its length, or is too large"));
        }
        Ok(SharedMemory { file, bytes })
    }

    /// Whether a range lies in it.
    pub fn has(&self, place: u64, bytes: u32) -> bool {
        place.checked_add(u64::from(bytes)).is_some_and(|end| end <= self.bytes)
    }

    /// Writes at a place that [`SharedMemory::has`].
    ///
    /// # Errors
    ///
    /// The kernel has no memory.
    pub fn write(&self, place: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, place)
    }

    /// A copy of what is at a place.
    ///
    /// # Errors
    ///
    /// The place is not in the memory.
    pub fn read(&self, place: u64, bytes: u32) -> io::Result<Vec<u8>> {
        let mut copy = vec![0; bytes as usize];
        self.file.read_exact_at(&mut copy, place)?;
        Ok(copy)
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Which ranges of shared memory are free: where each begins, and its length. No two of them touch.
#[derive(Debug)]
pub struct Places(BTreeMap<u64, u64>);

impl Places {
    /// All of so many bytes.
    pub fn new(bytes: u64) -> Places {
        Places(BTreeMap::from([(0, bytes)]))
    }

    /// The first free range that is long enough; `None` if none is. No bytes need no range.
    pub fn take(&mut self, bytes: u32) -> Option<u64> {
        let wanted = whole_lines(bytes);
        if wanted == 0 {
            return Some(0);
        }
        let (at, free) = self.0.iter().find(|(_, free)| **free >= wanted)?;
        let (at, free) = (*at, *free);
        self.0.remove(&at);
        if free > wanted {
            self.0.insert(at + wanted, free - wanted);
        }
        Some(at)
    }

    /// Takes back a range that was taken.
    pub fn give(&mut self, at: u64, bytes: u32) {
        let (mut at, mut free) = (at, whole_lines(bytes));
        if free == 0 {
            return;
        }
        if let Some(after) = self.0.remove(&(at + free)) {
            free += after;
        }
        if let Some((before, length)) = self.0.range(..at).next_back().map(|(b, l)| (*b, *l))
            && before + length == at
        {
            (at, free) = (before, length + free);
        }
        self.0.insert(at, free);
    }
}

fn whole_lines(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::ftruncate;

    proptest! {
        /// Ranges that are taken do not overlap and lie in the memory, and come together again.
        #[test]
        fn places_are_apart(steps in prop::collection::vec((0u32..3000, any::<bool>()), 1..200)) {
            let all = 64 * 300;
            let mut places = Places::new(all);
            let mut taken: Vec<(u64, u32)> = Vec::new();
            for (number, back) in steps {
                if back && !taken.is_empty() {
                    let (at, bytes) = taken.swap_remove(number as usize % taken.len());
                    places.give(at, bytes);
                } else if let Some(at) = places.take(number) {
                    prop_assert!(at + u64::from(number) <= all);
                    for (other, bytes) in taken.iter().filter(|_| number > 0) {
                        let apart = at + u64::from(number) <= *other || other + u64::from(*bytes) <= at;
                        prop_assert!(apart || *bytes == 0);
                    }
                    taken.push((at, number));
                }
            }
            taken.iter().for_each(|(at, bytes)| places.give(*at, *bytes));
            prop_assert_eq!(places.0, BTreeMap::from([(0, all)]));
        }
    }

    #[test]
    fn only_memory_of_a_sealed_length_is_accepted() {
        let good = SharedMemory::new(4096).unwrap();
        good.write(4000, &[7; 96]).unwrap();
        let there = SharedMemory::received(good.file.try_clone().unwrap().into()).unwrap();
        assert_eq!(there.read(3999, 3).unwrap(), [0, 7, 7]);
        assert!(there.has(0, 4096) && !there.has(1, 4096) && !there.has(u64::MAX, 1));
        assert!(ftruncate(&there.file, 0).is_err(), "a peer can shrink it");
        let unsealed = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(SharedMemory::received(unsealed).is_err());
        assert!(SharedMemory::received(tempfile::tempfile().unwrap().into()).is_err());
        let large = SharedMemory::new(MAX_MEMORY_BYTES + 1).unwrap();
        assert!(SharedMemory::received(large.file.into()).is_err());
    }
}
