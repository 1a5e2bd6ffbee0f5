//! A directory of read-only files that never change, as a FUSE file system.

use std::ffi::CStr;
use std::io;
use std::time::Duration;

use farfork_types::PAGE_BYTES;
use fuse_backend_rs::abi::fuse_abi::{Attr, FsOptions, OpenOptions, stat64};
use fuse_backend_rs::api::filesystem::{Context, DirEntry, Entry, FileSystem, ZeroCopyWriter};

/// What the directory has as its inode, by the protocol.
pub(crate) const ROOT: u64 = 1;
/// Nothing that was said about a file ever changes.
const FOR_GOOD: Duration = Duration::from_secs(1 << 30);

/// Who the files and their directory belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// What is shown of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its inode, greater than 1. Another file never gets it as long as the file system is mounted.
    pub inode: u64,
    /// Length.
    pub bytes: u64,
    /// What of that is stored.
    pub stored_bytes: u64,
    /// When it was made, in nanoseconds since 1970.
    pub made_unix_ns: u64,
}

/// The files. Errors are those that a process gets which accesses them.
pub trait Files: Send + Sync + 'static {
    /// Who may read.
    fn owner(&self) -> Owner;

    /// The file of this name.
    ///
    /// # Errors
    /// `ENOENT`.
    fn by_name(&self, name: &CStr) -> io::Result<FileFacts>;

    /// The file with this inode.
    ///
    /// # Errors
    /// `ESTALE`.
    fn by_inode(&self, inode: u64) -> io::Result<FileFacts>;

    /// A process opens a file, by these flags of `open(2)`. The number is given to each read.
    ///
    /// # Errors
    /// `ESTALE`.
    fn open(&self, _inode: u64, _flags: i32) -> io::Result<u64> {
        Ok(0)
    }

    /// The last process that had opened the file at one time has closed it.
    fn close(&self, _inode: u64) {}

    /// Reads so many bytes, which lie in the file, for process `pid`; `handle` is what opening gave.
    ///
    /// # Errors
    /// `EIO`: an access ends in SIGBUS.
    fn read(
        &self,
        inode: u64,
        range: std::ops::Range<u64>,
        handle: u64,
        pid: i32,
    ) -> io::Result<Vec<u8>>;

    /// Names of the files, with their inodes.
    fn list(&self) -> Vec<(String, u64)>;
}

/// Files as the file system that [`answer`](crate::answer) takes.
pub(crate) struct Directory<F>(pub(crate) std::sync::Arc<F>);

impl<F: Files> Directory<F> {
    fn attributes(&self, file: Option<FileFacts>) -> stat64 {
        let Owner { uid, gid } = self.0.owner();
        let common = Attr { uid, gid, blksize: PAGE_BYTES as u32, ..Attr::default() };
        let attributes = match file {
            None => Attr { ino: ROOT, mode: libc::S_IFDIR | 0o500, nlink: 2, ..common },
            Some(FileFacts { inode, bytes, stored_bytes, made_unix_ns }) => {
                let (made, nanoseconds) =
                    (made_unix_ns / 1_000_000_000, (made_unix_ns % 1_000_000_000) as u32);
                Attr {
                    ino: inode,
                    mode: libc::S_IFREG | 0o400,
                    nlink: 1,
                    size: bytes,
                    blocks: stored_bytes.div_ceil(512),
                    atime: made,
                    mtime: made,
                    ctime: made,
                    atimensec: nanoseconds,
                    mtimensec: nanoseconds,
                    ctimensec: nanoseconds,
                    ..common
                }
            }
        };
        attributes.into()
    }
}

impl<F: Files> FileSystem for Directory<F> {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, _capable: FsOptions) -> io::Result<FsOptions> {
        // Requests of 1 MiB, many at once, and those of a server that was killed are sent again.
        Ok(FsOptions::ASYNC_READ
            | FsOptions::BIG_WRITES
            | FsOptions::MAX_PAGES
            | FsOptions::PARALLEL_DIROPS
            | FsOptions::INIT_EXT
            | FsOptions::HAS_RESEND)
    }

    fn lookup(&self, _: &Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        if parent != ROOT {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        let file = self.0.by_name(name)?;
        Ok(Entry {
            inode: file.inode,
            generation: 0,
            attr: self.attributes(Some(file)),
            attr_flags: 0,
            attr_timeout: FOR_GOOD,
            entry_timeout: FOR_GOOD,
        })
    }

    fn getattr(&self, _: &Context, inode: u64, _: Option<u64>) -> io::Result<(stat64, Duration)> {
        let file = if inode == ROOT { None } else { Some(self.0.by_inode(inode)?) };
        Ok((self.attributes(file), FOR_GOOD))
    }

    fn open(
        &self,
        _: &Context,
        inode: u64,
        flags: u32,
        _: u32,
    ) -> io::Result<(Option<u64>, OpenOptions, Option<u32>)> {
        let flags = flags as i32;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        // What one process has read is there for the next.
        Ok((Some(self.0.open(inode, flags)?), OpenOptions::KEEP_CACHE, None))
    }

    fn release(
        &self,
        _: &Context,
        inode: u64,
        _: u32,
        _: u64,
        _: bool,
        _: bool,
        _: Option<u64>,
    ) -> io::Result<()> {
        self.0.close(inode);
        Ok(())
    }

    fn read(
        &self,
        context: &Context,
        inode: u64,
        handle: u64,
        to: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: u32,
    ) -> io::Result<usize> {
        let end = offset.saturating_add(size.into()).min(self.0.by_inode(inode)?.bytes);
        if offset >= end {
            return Ok(0);
        }
        let read = self.0.read(inode, offset..end, handle, context.pid)?;
        to.write_all(&read)?;
        Ok(read.len())
    }

    fn opendir(&self, _: &Context, _: u64, _: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        Ok((Some(0), OpenOptions::empty()))
    }

    fn releasedir(&self, _: &Context, _: u64, _: u32, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        _: &Context,
        _: u64,
        _: u64,
        _: u32,
        offset: u64,
        add_entry: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>,
    ) -> io::Result<()> {
        for (at, (name, ino)) in self.0.list().iter().enumerate().skip(offset as usize) {
            let (offset, type_) = (at as u64 + 1, u32::from(libc::DT_REG));
            if add_entry(DirEntry { ino: *ino, offset, type_, name: name.as_bytes() })? == 0 {
                break;
            }
        }
        Ok(())
    }
}
