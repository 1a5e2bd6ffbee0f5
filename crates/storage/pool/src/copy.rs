//! Images in this machine's own memory, for clones that cannot map the pool itself.
//!
//! A device may refuse private mappings: no process can have pages of it that are shared until they are
//! written. A copy is a file in memory with an image's bytes at the places that they have in the pool,
//! and holes elsewhere: a process that maps it need not know, and all that clones do works as on tmpfs. It
//! is sealed, and goes with the last process that has it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use farfork_sys::memfd;
use farfork_types::CHUNK_BYTES;
use rustix::fs::{MemfdFlags, OFlags, fcntl_get_seals, memfd_create};

use crate::error::PoolError;
use crate::ids::{ChunkIndex, Extent};
use crate::lock;
use crate::map::SharedMap;
use crate::media::{self, Medium};
use crate::pool::Pool;

/// How names of copies begin; the path of the pool follows, by which a checkpoint of a clone finds it.
const NAME: &str = "farfork:";
/// What the kernel shows around the name of such a file.
const SHOWN: (&str, &str) = ("/memfd:", " (deleted)");

/// The pool of a copy that a list of mappings shows like this.
pub fn pool_of_copy(shown: &str) -> Option<PathBuf> {
    let name = shown.strip_prefix(SHOWN.0)?.strip_suffix(SHOWN.1)?;
    name.strip_prefix(NAME).map(PathBuf::from)
}

impl Pool {
    /// A copy of an image, of which these are the extents, in memory that is charged to the caller. The
    /// image must not be removed meanwhile.
    ///
    /// # Errors
    /// [`PoolError::Io`]: there is not so much memory, or the pool's path is longer than names of such
    /// files can be (about 240 bytes); [`PoolError::Gone`], [`PoolError::Truncated`].
    pub fn copy(&self, extents: &[Extent]) -> Result<OwnedFd, PoolError> {
        self.intact()?;
        self.try_copy(extents).map_err(PoolError::io("copy an image to memory from", &self.path))
    }

    fn try_copy(&self, extents: &[Extent]) -> io::Result<OwnedFd> {
        let name = [NAME.as_bytes(), self.path.as_os_str().as_bytes()].concat();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(CString::new(name)?.as_c_str(), flags)?);
        file.set_len(self.layout.size())?;
        media::reserve(Medium::Tmpfs, &file, extents)?;
        // A mapping that could write would keep the file from being sealed, also in a process that another
        // thread forks meanwhile.
        let reader = File::from(lock::reopen(&file, OFlags::RDONLY)?);
        let map = SharedMap::read_only(&reader, self.layout.size())?;
        for run in extents {
            map.gather(*run);
            file.write_all_at(self.map.bytes(run.offset, run.bytes()), run.offset)?;
        }
        memfd::seal(&file)?;
        Ok(file.into())
    }

    /// Whether `file` is a copy of an image: has its bytes, where the pool has them, and keeps them. Its
    /// maker does not prove that, and a file that only looks like one could have an image read by
    /// a process that may not.
    ///
    /// # Errors
    /// [`PoolError::Gone`], [`PoolError::Truncated`].
    pub fn is_copy(&self, file: &File, extents: &[Extent]) -> Result<bool, PoolError> {
        self.intact()?;
        let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(memfd::FINAL));
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut has_chunk = |chunk: Extent| {
            let bytes = self.map.bytes(chunk.offset, chunk.bytes());
            file.read_exact_at(&mut buffer, chunk.offset).is_ok() && buffer == bytes
        };
        Ok(is_sealed && extents.iter().flat_map(chunks).all(&mut has_chunk))
    }
}

fn chunks(run: &Extent) -> impl Iterator<Item = Extent> {
    let first = run.first().0;
    (first..first + run.chunks).map(|chunk| ChunkIndex(chunk).run(1))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{SealFlags, fcntl_add_seals};

    use super::*;

    fn pool_with_image() -> (tempfile::TempDir, Pool, Vec<Extent>) {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::create(&dir.path().join("a pool"), 8 * CHUNK_BYTES).unwrap();
        let mut writer = pool.begin().unwrap();
        writer.allocate(1).unwrap();
        let extents = writer.allocate(2).unwrap();
        writer.bytes_mut(extents[0])[CHUNK_BYTES as usize..].fill(7);
        writer.publish(0).unwrap();
        (dir, pool, extents)
    }

    #[test]
    fn a_copy_has_the_bytes_of_the_image_at_their_places_and_no_others() {
        let (_dir, pool, extents) = pool_with_image();
        let copy = File::from(pool.copy(&extents).unwrap());
        assert!(pool.is_copy(&copy, &extents).unwrap());
        let mut bytes = [0; 2];
        copy.read_exact_at(&mut bytes, extents[0].offset + CHUNK_BYTES - 1).unwrap();
        assert_eq!(bytes, [0, 7]);
        let found = rustix::fs::fstat(&copy).unwrap();
        assert_eq!(found.st_size as u64, 8 * CHUNK_BYTES);
        assert_eq!(found.st_blocks as u64 * 512, 2 * CHUNK_BYTES);
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap();
        assert_eq!(pool_of_copy(shown.to_str().unwrap()).as_deref(), Some(pool.path()));
    }

    #[test]
    fn nothing_else_is_taken_for_a_copy() {
        let (_dir, pool, extents) = pool_with_image();
        let (start, bytes) = (extents[0].offset, extents[0].bytes());
        let sealed = |file: &File| memfd::seal(file).unwrap();
        let writable =
            |file: &File| fcntl_add_seals(file, memfd::FINAL.difference(SealFlags::WRITE)).unwrap();
        let forged = |content: &dyn Fn(&mut Vec<u8>), seal: fn(&File)| {
            let mut all = pool.map.bytes(0, start + bytes).to_vec();
            content(&mut all);
            let name = format!("{NAME}{}", pool.path().display());
            let flags = MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create(name.as_str(), flags).unwrap());
            file.write_all_at(&all, 0).unwrap();
            seal(&file);
            pool.is_copy(&file, &extents).unwrap()
        };
        assert!(forged(&|_| {}, sealed));
        assert!(!forged(&|_| {}, writable), "it can still change");
        assert!(!forged(&|all| *all.last_mut().unwrap() = 8, sealed));
        assert!(!forged(&|all| all.truncate(start as usize + 1), sealed));
        assert!(!pool.is_copy(&tempfile::tempfile().unwrap(), &extents).unwrap());
        for shown in ["/memfd:farfork-overlay (deleted)", "/a/memfd:farfork:/p", "farfork:/p"] {
            assert_eq!(pool_of_copy(shown), None);
        }
    }
}
