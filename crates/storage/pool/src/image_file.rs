//! A published image, open.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use farfork_types::Cid;
use rustix::fs::OFlags;

use crate::error::PoolError;
use crate::far_parts::FarParts;
use crate::layout::{self, IMAGES};
use crate::lock::{self, LockByte};
use crate::media::Medium;
use crate::pool::Pool;

/// Mode of a published image.
pub(crate) const SEALED: u32 = 0o400;

/// Which file an image is. Two that are equal hold the same bytes: nothing writes to a published image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId {
    /// Its id.
    pub cid: Cid,
    /// Device of the file, as `stat` has it.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Length of the image: of the file, without its [table of far parts](FarParts).
    pub bytes: u64,
    /// When it was published, in seconds since 1970.
    pub created_unix_s: u64,
}

/// A published image, open for reading: it stays readable when it is removed.
#[derive(Debug)]
pub struct ImageFile {
    /// Which file it is.
    pub id: ImageId,
    file: File,
    /// What of it lies on another node.
    far: Option<Box<FarParts>>,
    /// The same image on another node, as a file here.
    far_file: Option<File>,
}

impl ImageFile {
    /// Takes the open file of the image `cid` over from another process of this program, which has found
    /// it with [`Pool::find`]. It stays readable when the image is removed.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn handed_over(file: File, cid: Cid) -> io::Result<ImageFile> {
        let found = file.metadata()?;
        ImageFile::of(file, &found, cid)
    }

    /// What of it lies on another node.
    pub fn far(&self) -> Option<&FarParts> {
        self.far.as_deref()
    }

    /// The same, with the image as another node has it: a file with the same bytes at the same offsets.
    /// What lies far is read there.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub fn with_far_file(&self, far_file: File) -> io::Result<ImageFile> {
        let file = self.file.try_clone()?;
        Ok(ImageFile { id: self.id, file, far: self.far.clone(), far_file: Some(far_file) })
    }

    /// The file that [`with_far_file`](ImageFile::with_far_file) was given.
    pub fn far_file(&self) -> Option<&File> {
        self.far_file.as_ref()
    }

    /// The file: what lies far is a hole there.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it lies on. Images may be mounted, and unmounted, while their pool is open.
    ///
    /// # Errors
    /// [`PoolError::ReadImage`].
    pub fn medium(&self) -> Result<Medium, PoolError> {
        let cid = self.id.cid;
        Medium::of(&self.file).map_err(|source| PoolError::ReadImage { cid, source })
    }

    /// Reads `len` bytes at `offset`. Nothing maps the file: were it truncated just now, this is an
    /// error and no signal.
    ///
    /// # Errors
    /// [`PoolError::TruncatedImage`], [`PoolError::ReadImage`].
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, PoolError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.id.bytes);
        end.ok_or(PoolError::TruncatedImage { cid: self.id.cid })?;
        let mut bytes = vec![0; len as usize];
        self.read_to(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The same, to where the caller wants them. Of an image with far parts these are read from its
    /// [far file](ImageFile::with_far_file).
    ///
    /// # Errors
    /// As [`read`](ImageFile::read); [`PoolError::FarBytes`] if there is no far file.
    pub fn read_to(&self, offset: u64, to: &mut [u8]) -> Result<(), PoolError> {
        let Some(far) = &self.far else { return self.read_in(&self.file, offset, to) };
        let mut done = 0;
        while done < to.len() {
            let place = offset + done as u64;
            let (is_far, end) = far.at(place);
            let bytes = end.saturating_sub(place).min((to.len() - done) as u64) as usize;
            let file = match (is_far, &self.far_file) {
                (false, _) => &self.file,
                (true, Some(file)) => file,
                (true, None) => {
                    let (cid, node) = (self.id.cid, far.source.clone());
                    return Err(PoolError::FarBytes { cid, node });
                }
            };
            self.read_in(file, place, &mut to[done..done + bytes])?;
            done += bytes;
        }
        Ok(())
    }

    fn read_in(&self, file: &File, offset: u64, to: &mut [u8]) -> Result<(), PoolError> {
        let cid = self.id.cid;
        file.read_exact_at(to, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => PoolError::TruncatedImage { cid },
            _ => PoolError::ReadImage { cid, source },
        })
    }

    /// Takes an open file, of which `found` is known, for the image `cid`.
    fn of(file: File, found: &Metadata, cid: Cid) -> io::Result<ImageFile> {
        let (far, bytes) = FarParts::read(&file, cid)?.unzip();
        let id = ImageId {
            cid,
            device: found.dev(),
            inode: found.ino(),
            bytes: bytes.unwrap_or(found.len()),
            created_unix_s: found.mtime() as u64,
        };
        Ok(ImageFile { id, file, far: far.map(Box::new), far_file: None })
    }
}

impl Pool {
    /// The published image `cid`.
    ///
    /// # Errors
    /// [`PoolError::NoImage`]; [`PoolError::UnsafeImage`] if others than the pool's owner could have
    /// written to it, or can read it; [`PoolError::Gone`], [`PoolError::Io`].
    pub fn find(&self, cid: Cid) -> Result<ImageFile, PoolError> {
        let name = layout::image(cid);
        let failed = self.directory.failed("open", &name);
        let Some(file) = self.directory.open_file(&name, OFlags::RDONLY).map_err(failed)? else {
            self.intact()?;
            return Err(self.no_image(cid));
        };
        let found = file.metadata().map_err(self.directory.failed("look at", &name))?;
        let why = match found.nlink() {
            _ if found.uid() != self.owner => Some("it belongs to another user than the pool"),
            2.. => Some("it has another name beside its own (a hard link)"),
            _ if found.mode() & 0o077 != 0 => Some("other users may read or write it"),
            _ => None,
        };
        if let Some(why) = why {
            let path = self.directory.path().join(name);
            return Err(PoolError::UnsafeImage { path, cid, why });
        }
        ImageFile::of(file, &found, cid).map_err(|source| PoolError::ReadImage { cid, source })
    }

    /// Whether the writer of the published image `cid` holds it still.
    ///
    /// # Errors
    /// As [`find`](Pool::find).
    pub fn is_held(&self, cid: Cid) -> Result<bool, PoolError> {
        let image = self.find(cid)?;
        lock::is_held(&image.file, LockByte::WRITER)
            .map_err(PoolError::io("look for the writer of an image in", self.path()))
    }

    /// The image that a process maps as the open file `file`: published, or, where no other than the
    /// pool's owner can make a file on its file system, removed since. A process may have made a file
    /// that only looks like one, so that a clone of it would open files that it may not.
    ///
    /// # Errors
    /// As [`find`](Pool::find).
    pub fn image_of(&self, file: File, cid: Cid) -> Result<Option<ImageFile>, PoolError> {
        let look = || -> io::Result<Option<ImageFile>> {
            let found = file.metadata()?;
            let place = rustix::fs::fstat(self.directory.fd())?;
            let is_removed = found.nlink() == 0
                && self.is_own_mount
                && found.dev() == place.st_dev
                && found.uid() == self.owner
                && found.mode() & 0o777 == SEALED;
            let is_published = match self.directory.look(&layout::image(cid))? {
                Some(now) => (now.st_dev, now.st_ino) == (found.dev(), found.ino()),
                None => false,
            };
            let is_image = is_published || is_removed;
            is_image.then(|| ImageFile::of(file, &found, cid)).transpose()
        };
        look().map_err(PoolError::io("look at an image in", self.path()))
    }

    pub(crate) fn no_image(&self, cid: Cid) -> PoolError {
        PoolError::NoImage { path: self.path().to_owned(), cid }
    }

    /// The ids of all published images, and names there that are none.
    pub(crate) fn listed(&self) -> Result<(Vec<Cid>, Vec<String>), PoolError> {
        let names = self.directory.list(IMAGES).map_err(self.directory.failed("list", IMAGES))?;
        let (mut cids, mut strays) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match name.parse::<Cid>() {
                Ok(cid) if cid.to_string() == name => cids.push(cid),
                _ => strays.push(name),
            }
        }
        Ok((cids, strays))
    }

    /// The ids of all published images.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn images(&self) -> Result<Vec<Cid>, PoolError> {
        Ok(self.listed()?.0)
    }

    /// Bytes of memory that a published image takes, and of its side tables; none if it has gone.
    pub(crate) fn taken(&self, cid: Cid) -> io::Result<Option<(u64, u64)>> {
        let Some(image) = self.directory.look(&layout::image(cid))? else { return Ok(None) };
        let mut tables = 0;
        let directory = layout::tables(cid);
        for table in self.directory.list(&directory)? {
            let found = self.directory.look(&format!("{directory}/{table}"))?;
            tables += found.map_or(0, |found| found.st_blocks as u64 * 512);
        }
        Ok(Some((image.st_blocks as u64 * 512, tables)))
    }
}
