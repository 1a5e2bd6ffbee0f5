//! Images in this machine's own memory, for clones that had better not map the pool itself.
//!
//! On media that report no faults, pages of a private mapping cannot be supplied one by one. A copy is a
//! file in memory with an image's bytes: a process that maps it need not know, and all that clones do works
//! as on tmpfs. It is sealed, and goes with the last process that has it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use farfork_sys::memfd;
use farfork_types::{CHUNK_BYTES, Cid};
use rustix::fs::{MemfdFlags, OFlags, fcntl_get_seals, memfd_create};

use crate::error::PoolError;
use crate::image_file::ImageFile;
use crate::lock;
use crate::map::GatherMap;
use crate::media::{self, Medium};
use crate::pool::Pool;

/// How names of copies begin; the id and the path of the pool follow, by which a checkpoint of a clone
/// finds the image.
const NAME: &str = "farfork:";
/// What the kernel shows around the name of such a file.
const SHOWN: (&str, &str) = ("/memfd:", " (deleted)");

/// The pool and the image of a copy that a list of mappings shows like this.
pub fn source_of_copy(shown: &str) -> Option<(PathBuf, Cid)> {
    let name = shown.strip_prefix(SHOWN.0)?.strip_suffix(SHOWN.1)?;
    let (cid, path) = name.strip_prefix(NAME)?.split_once(':')?;
    Some((PathBuf::from(path), cid.parse().ok()?))
}

impl Pool {
    /// A copy of an image, in memory that is charged to the caller.
    ///
    /// # Errors
    /// [`PoolError::Io`]: there is not so much memory, or the pool's path is longer than names of such
    /// files can be (about 200 bytes); [`PoolError::TruncatedImage`], [`PoolError::ReadImage`].
    pub fn copy(&self, image: &ImageFile) -> Result<OwnedFd, PoolError> {
        let failed = || PoolError::io("copy an image to memory from", self.path());
        let (file, map) = self.new_copy(image).map_err(failed())?;
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        for (offset, bytes) in chunks(image) {
            let part = &mut buffer[..bytes];
            image.read_to(offset, part)?;
            file.write_all_at(part, offset).map_err(failed())?;
        }
        // A mapping keeps a file from being sealed only if it can write.
        drop(map);
        memfd::seal(&file).map_err(failed())?;
        Ok(file.into())
    }

    fn new_copy(&self, image: &ImageFile) -> io::Result<(File, GatherMap)> {
        let start = format!("{NAME}{}:", image.id.cid);
        let name = [start.as_bytes(), self.path().as_os_str().as_bytes()].concat();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(CString::new(name)?.as_c_str(), flags)?);
        let bytes = image.id.bytes;
        file.set_len(bytes)?;
        media::reserve(Medium::Tmpfs, &file, &(0..bytes))?;
        let reader = File::from(lock::reopen(&file, OFlags::RDONLY)?);
        let map = GatherMap::new(&reader, bytes)?;
        map.gather(&(0..farfork_types::align_down(bytes, CHUNK_BYTES)));
        Ok((file, map))
    }

    /// Whether `file` is a copy of an image: has its bytes and keeps them. Its maker does not prove that,
    /// and a file that only looks like one could have files opened that its process may not.
    ///
    /// # Errors
    /// [`PoolError::TruncatedImage`], [`PoolError::ReadImage`].
    pub fn is_copy(&self, file: &File, image: &ImageFile) -> Result<bool, PoolError> {
        let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(memfd::FINAL));
        let is_as_long = file.metadata().is_ok_and(|found| found.len() == image.id.bytes);
        if !is_sealed || !is_as_long {
            return Ok(false);
        }
        let size = CHUNK_BYTES as usize;
        let (mut own, mut other) = (vec![0; size], vec![0; size]);
        for (offset, bytes) in chunks(image) {
            image.read_to(offset, &mut own[..bytes])?;
            let read = file.read_exact_at(&mut other[..bytes], offset);
            if read.is_err() || own[..bytes] != other[..bytes] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Places of an image's chunks, and their lengths.
fn chunks(image: &ImageFile) -> impl Iterator<Item = (u64, usize)> + use<> {
    let all = image.id.bytes;
    let places = (0..all).step_by(CHUNK_BYTES as usize);
    places.map(move |offset| (offset, (all - offset).min(CHUNK_BYTES) as usize))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{SealFlags, fcntl_add_seals};

    use super::*;

    fn pool_with_image() -> (tempfile::TempDir, Pool, ImageFile) {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::create(&dir.path().join("a pool"), 8 * CHUNK_BYTES).unwrap();
        let mut writer = pool.begin(None).unwrap();
        writer.reserve(2 * CHUNK_BYTES).unwrap();
        writer.bytes_mut(CHUNK_BYTES..CHUNK_BYTES + 9000).fill(7);
        writer.keep(std::slice::from_ref(&(0..CHUNK_BYTES + 9000))).unwrap();
        let (cid, _) = writer.publish().unwrap();
        let image = pool.find(cid).unwrap();
        (dir, pool, image)
    }

    #[test]
    fn a_copy_has_the_bytes_of_the_image() {
        let (_dir, pool, image) = pool_with_image();
        let copy = File::from(pool.copy(&image).unwrap());
        assert!(pool.is_copy(&copy, &image).unwrap());
        let mut bytes = [0; 2];
        copy.read_exact_at(&mut bytes, CHUNK_BYTES - 1).unwrap();
        assert_eq!(bytes, [0, 7]);
        assert_eq!(copy.metadata().unwrap().len(), CHUNK_BYTES + 3 * 4096);
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap();
        let source = source_of_copy(shown.to_str().unwrap());
        assert_eq!(source, Some((pool.path().to_owned(), image.id.cid)));
    }

    #[test]
    fn nothing_else_is_taken_for_a_copy() {
        let (_dir, pool, image) = pool_with_image();
        let sealed = |file: &File| memfd::seal(file).unwrap();
        let writable =
            |file: &File| fcntl_add_seals(file, memfd::FINAL.difference(SealFlags::WRITE)).unwrap();
        let forged = |content: &dyn Fn(&mut Vec<u8>), seal: fn(&File)| {
            let mut all = image.read(0, image.id.bytes).unwrap();
            content(&mut all);
            let name = format!("{NAME}{}:{}", image.id.cid, pool.path().display());
            let flags = MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create(name.as_str(), flags).unwrap());
            file.write_all_at(&all, 0).unwrap();
            seal(&file);
            pool.is_copy(&file, &image).unwrap()
        };
        assert!(forged(&|_| {}, sealed));
        assert!(!forged(&|_| {}, writable), "it can still change");
        assert!(!forged(&|all| *all.last_mut().unwrap() = 8, sealed));
        assert!(!forged(&|all| all.truncate(4096), sealed));
        assert!(!pool.is_copy(&tempfile::tempfile().unwrap(), &image).unwrap());
        for shown in ["/memfd:farfork-overlay (deleted)", "/a/memfd:farfork:/p", "farfork:/p"] {
            assert_eq!(source_of_copy(shown), None);
        }
    }
}
