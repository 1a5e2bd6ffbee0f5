//! The pool's directory, by an open descriptor: nothing here follows its path again, so that a pool that
//! was replaced or unmounted meanwhile is never mixed with what took its place.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fallocate,
};
use rustix::io::Errno;

use crate::error::{Misplaced, PoolError};
use crate::failpoint::step;
use crate::layout::{IMAGES, NEW};
use crate::lock::{self, HeldLock, LockByte};
use crate::media::Medium;

/// The directory of a pool.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// Whose it is, if it is not this process's: what is made in it becomes theirs.
    owner: Option<(Uid, Gid)>,
    /// Whether all new files have names, as on a medium that has no others.
    names_all: bool,
}

/// A file that is not at its place yet. Its lock shows that its writer lives.
#[derive(Debug)]
pub(crate) struct NewFile<'d> {
    directory: &'d Directory,
    pub(crate) file: File,
    /// None for a file without a name.
    name: Option<NewName<'d>>,
    alive: HeldLock,
}

/// A name below [`NEW`], which goes with this. What is left of a killed process is swept when its lock is
/// free.
#[derive(Debug)]
struct NewName<'d> {
    directory: &'d Directory,
    path: String,
}

impl Drop for NewName<'_> {
    fn drop(&mut self) {
        let _ = self.directory.remove(&self.path);
    }
}

impl Directory {
    /// Opens the directory at `path`, which may be a link.
    pub(crate) fn open(path: &Path) -> Result<Directory, PoolError> {
        let failed = PoolError::io("open the pool", path);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let found = rustix::fs::fstat(&fd).map_err(PoolError::io("look at", path))?;
        let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
        let owner = (owner != rustix::process::geteuid()).then_some((owner, group));
        let path = path.canonicalize().map_err(PoolError::io("find", path))?;
        Ok(Directory { fd, path, owner, names_all: false })
    }

    /// From now on all new files have names, as on a medium that has no others.
    pub(crate) fn name_all(&mut self) {
        self.names_all = true;
    }

    /// Where it lies; absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// For `map_err`: what was being done, to which file in it.
    pub(crate) fn failed(
        &self,
        doing: &'static str,
        name: &str,
    ) -> impl FnOnce(io::Error) -> PoolError + use<> {
        let path = if name.is_empty() { self.path.clone() } else { self.path.join(name) };
        move |source| PoolError::of(doing, path, source)
    }

    /// What its images lie on: what the pool does, or a mount of their own, such as far memory.
    pub(crate) fn medium_of_images(&self, own: Medium) -> Result<Medium, PoolError> {
        let failed = || self.failed("look at", IMAGES);
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let images = rustix::fs::openat(&self.fd, IMAGES, flags, Mode::empty());
        let device = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|found| found.st_dev);
        let look = || -> Result<Medium, io::Error> {
            let images = images?;
            match device(&images)? == rustix::fs::fstat(&self.fd)?.st_dev {
                true => Ok(own),
                false => Medium::under(images),
            }
        };
        look().map_err(failed())
    }

    /// What is known of the directory itself, and of the one above it.
    pub(crate) fn look_around(&self) -> io::Result<(Stat, Stat)> {
        let above = rustix::fs::statat(&self.fd, "..", AtFlags::empty())?;
        Ok((rustix::fs::fstat(&self.fd)?, above))
    }

    /// Opens a file that is neither a link nor anything but a regular file; `None` if it is not there.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<Option<File>> {
        // Opening a pipe would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(self.not_a_file(name)),
            opened => File::from(opened?),
        };
        match file.metadata()?.is_file() {
            true => Ok(Some(file)),
            false => Err(self.not_a_file(name)),
        }
    }

    /// That something else stands where a file belongs.
    fn not_a_file(&self, name: &str) -> io::Error {
        self.misplaced(name, "a file")
    }

    fn misplaced(&self, name: &str, expected: &'static str) -> io::Error {
        let kind = |found: Stat| FileType::from_raw_mode(found.st_mode);
        let found = match self.look(name) {
            Ok(found) => found.map(kind),
            Err(error) => return error,
        };
        let found = match found {
            Some(FileType::Directory) => "a directory",
            Some(FileType::Symlink) => "a symbolic link",
            Some(FileType::Fifo) => "a pipe",
            Some(FileType::Socket) => "a socket",
            Some(FileType::RegularFile) => "a file",
            _ => "something else",
        };
        io::Error::other(Misplaced { path: self.path.join(name), found, expected })
    }

    /// What is known of a file; `None` if it is not there.
    pub(crate) fn look(&self, name: &str) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        }
    }

    /// Whether something is a directory, and no link to one.
    pub(crate) fn is_directory(&self, name: &str) -> io::Result<bool> {
        let kind = |found: Stat| FileType::from_raw_mode(found.st_mode);
        Ok(self.look(name)?.map(kind) == Some(FileType::Directory))
    }

    /// The names in a directory below it; none if it is not there, or no directory.
    pub(crate) fn list(&self, name: &str) -> io::Result<Vec<String>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(opened)? {
            let entry = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            let entry = entry.to_string_lossy().into_owned();
            if entry != "." && entry != ".." {
                names.push(entry);
            }
        }
        Ok(names)
    }

    /// Makes a directory below it, unless it is there.
    pub(crate) fn make(&self, name: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Err(Errno::EXIST) => match self.is_directory(name)? {
                true => Ok(()),
                false => Err(self.misplaced(name, "a directory")),
            },
            made => {
                made?;
                if let Some((owner, group)) = self.owner {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::chownat(&self.fd, name, Some(owner), Some(group), flags)?;
                }
                step();
                Ok(())
            }
        }
    }

    /// Removes a file; whether it was there.
    pub(crate) fn remove(&self, name: &str) -> io::Result<bool> {
        self.unlink(name, AtFlags::empty())
    }

    /// Removes an empty directory; one that is not empty stays.
    pub(crate) fn remove_directory(&self, name: &str) -> io::Result<bool> {
        match self.unlink(name, AtFlags::REMOVEDIR) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            done => done,
        }
    }

    fn unlink(&self, name: &str, flags: AtFlags) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::ISDIR) => Err(self.not_a_file(name)),
            done => {
                done?;
                step();
                Ok(true)
            }
        }
    }

    /// Removes a directory below it with all files in it, or a file.
    pub(crate) fn remove_with_files(&self, name: &str) -> io::Result<()> {
        if self.look(name)?.is_some() && !self.is_directory(name)? {
            return self.remove(name).map(drop);
        }
        for file in self.list(name)? {
            self.remove(&format!("{name}/{file}"))?;
        }
        self.remove_directory(name).map(drop)
    }

    /// Moves a file, which replaces what is at its new place.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::renameat(&self.fd, from, &self.fd, to) {
            Err(Errno::ISDIR) => Err(self.not_a_file(to)),
            done => {
                done?;
                step();
                Ok(())
            }
        }
    }

    /// Makes a link of a few bytes, unless something has its name.
    pub(crate) fn make_link(&self, target: &str, name: &str) -> io::Result<()> {
        rustix::fs::symlinkat(target, &self.fd, name)?;
        step();
        Ok(())
    }

    /// Makes a link of a few bytes, which replaces what is at its place.
    pub(crate) fn put_link(&self, target: &str, name: &str) -> io::Result<()> {
        loop {
            let new = format!("{NEW}/{}", unique()?);
            self.make_link(target, &new)?;
            match self.rename(&new, name) {
                // A link has no lock that shows that its writer lives: a sweep may have taken it.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && self.look(&new)?.is_none() => {}
                Err(error) => {
                    let _ = self.remove(&new);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// What a link says; `None` if nothing is there, and an empty text if it is not a link.
    pub(crate) fn read_link(&self, name: &str) -> io::Result<Option<String>> {
        match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(Errno::INVAL) => Ok(Some(String::new())),
            read => Ok(Some(read?.to_string_lossy().into_owned())),
        }
    }

    /// A file without a name in the directory `of`, where the medium has such files; else one with a
    /// name below [`NEW`].
    pub(crate) fn new_file(&self, of: &str) -> io::Result<NewFile<'_>> {
        if self.names_all {
            return self.new_named_file();
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, of, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => self.new_named_file(),
            opened => {
                let file = self.given(opened?)?;
                let alive = HeldLock::take(&file, LockByte::WRITER)?;
                Ok(NewFile { directory: self, file, name: None, alive })
            }
        }
    }

    /// A file that was just made, as its owner's.
    fn given(&self, made: OwnedFd) -> io::Result<File> {
        if let Some((owner, group)) = self.owner {
            rustix::fs::fchown(&made, Some(owner), Some(group))?;
        }
        Ok(File::from(made))
    }

    /// The same, always with a name.
    pub(crate) fn new_named_file(&self) -> io::Result<NewFile<'_>> {
        loop {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let path = format!("{NEW}/{}", unique()?);
            let made = rustix::fs::openat(&self.fd, &path, flags, Mode::RUSR | Mode::WUSR)?;
            step();
            let name = Some(NewName { directory: self, path });
            let file = self.given(made)?;
            let alive = HeldLock::take(&file, LockByte::WRITER)?;
            // A sweep may have come between.
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                return Ok(NewFile { directory: self, file, name, alive });
            }
        }
    }

    /// Sees to it that what appeared in a directory below it stays there.
    pub(crate) fn sync(&self, name: &str) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?)?)
    }

    /// Writes a small file, which replaces what is at its place: readers see one of the two, whole.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.new_named_file()?;
        new.write_small(bytes)?;
        new.appear(name).map(drop)
    }

    /// Removes files whose writer has died; how many, and their bytes.
    pub(crate) fn sweep(&self) -> io::Result<(usize, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for name in self.list(NEW)? {
            let path = format!("{NEW}/{name}");
            let Some(found) = self.look(&path)? else { continue };
            let kind = FileType::from_raw_mode(found.st_mode);
            let mut lock = None;
            if kind == FileType::RegularFile {
                // It may be sealed already, so that not even its owner can open it to write.
                let Some(file) = self.open_file(&path, OFlags::RDONLY)? else { continue };
                // A writer that is just about to lock it looks whether it is still there.
                lock = lock::try_share(&file, LockByte::WRITER)?;
                if lock.is_none() {
                    continue;
                }
            }
            // Its writer may have moved it to its place meanwhile. A directory was not made here.
            if kind != FileType::Directory && self.remove(&path)? {
                files += 1;
                bytes += found.st_blocks as u64 * 512;
            }
            drop(lock);
        }
        Ok((files, bytes))
    }
}

const HUGE: usize = farfork_types::CHUNK_BYTES as usize;

/// A name that no other has.
fn unique() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::from)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether a name looks like one that no other has.
pub(crate) fn is_unique(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Gives the memory of a range of a file back, by whole pages; it reads as zeros then.
pub(crate) fn give_back(file: impl AsFd, from: u64, to: u64) -> io::Result<()> {
    let from = farfork_types::align_up(from, farfork_types::PAGE_BYTES);
    if from >= to {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, hole, from, to - from) {
        Err(Errno::OPNOTSUPP) => Ok(()), // it stays allocated, and reads as zeros as it was
        done => Ok(done?),
    }
}

impl NewFile<'_> {
    /// Writes all that it will have.
    pub(crate) fn write_small(&self, bytes: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, 0)?;
        // Where huge pages are the rule, the kernel has taken one.
        give_back(&self.file, bytes.len() as u64, bytes.len().next_multiple_of(HUGE) as u64)
    }

    /// Puts the file at a place where nothing is, or, with a name of its own, replaces what is there.
    /// Returns the proof that its writer lives.
    pub(crate) fn appear(self, place: &str) -> io::Result<HeldLock> {
        match &self.name {
            Some(name) => self.directory.rename(&name.path, place)?,
            None => {
                let shown = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let (here, directory) = (rustix::fs::CWD, &self.directory.fd);
                rustix::fs::linkat(here, shown, directory, place, AtFlags::SYMLINK_FOLLOW)?;
                step();
            }
        }
        Ok(self.alive)
    }

    /// Takes the place of a file that is there, which goes. Readers see one of the two. If nothing is at
    /// the place, nothing appears there.
    pub(crate) fn replace(self, place: &str) -> io::Result<()> {
        let directory = self.directory;
        let name = match self.name {
            Some(name) => name,
            None => {
                let path = format!("{NEW}/{}", unique()?);
                let shown = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let here = rustix::fs::CWD;
                let flags = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(here, shown, &directory.fd, path.as_str(), flags)?;
                let name = NewName { directory, path };
                step();
                name
            }
        };
        let (from, flags) = (name.path.as_str(), RenameFlags::EXCHANGE);
        rustix::fs::renameat_with(&directory.fd, from, &directory.fd, place, flags)?;
        step();
        // What was replaced goes with the name. No sweep takes the new file for it: it has moved.
        drop(name);
        Ok(())
    }
}
