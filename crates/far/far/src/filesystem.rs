//! The file system of far images: one directory, one read-only file for each image.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farfork_sys::words;
use farfork_types::{Cid, PAGE_BYTES};
use fuse_backend_rs::abi::fuse_abi::{Attr, FsOptions, OpenOptions, stat64};
use fuse_backend_rs::api::filesystem::{Context, DirEntry, Entry, FileSystem, ZeroCopyWriter};

use crate::failures::{Failure, Recorder, now_unix_us};
use crate::known;
use crate::source::{Cause, FarImage, SourceAt};
use crate::sources::Sources;

/// The directory's inode, by the protocol.
pub const ROOT: u64 = 1;
/// Nothing that was said about an image ever changes.
const FOR_GOOD: Duration = Duration::from_secs(1 << 30);

/// How many open an image of an earlier far process is not known: it stays until the mount goes.
const UNKNOWN_USERS: u64 = 1 << 32;

/// Images of a mount.
pub struct FarImages {
    pub sources: Sources,
    failures: Recorder,
    known: RwLock<Known>,
    owner: (u32, u32),
    pub reads: AtomicU64,
    pub failed_reads: AtomicU64,
    /// Where images are noted for the next far process.
    notes: PathBuf,
}

struct Known {
    by_inode: BTreeMap<u64, Arc<KnownImage>>,
    by_cid: BTreeMap<Cid, u64>,
    next: u64,
}

/// An image that was asked for.
struct KnownImage {
    image: Arc<FarImage>,
    /// The node that was named for it.
    named: Option<SourceAt>,
    /// Open files of it: a mapping has one, too.
    users: AtomicU64,
    /// When it was last asked for.
    asked: Mutex<Instant>,
}

impl KnownImage {
    fn new(image: FarImage, named: Option<SourceAt>, users: u64) -> Arc<KnownImage> {
        let (users, asked) = (AtomicU64::new(users), Mutex::new(Instant::now()));
        Arc::new(KnownImage { image: Arc::new(image), named, users, asked })
    }

    fn is_idle(&self, idle: Duration) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.named.is_some() && self.users.load(Ordering::SeqCst) == 0 && asked.elapsed() > idle
    }
}

impl Known {
    fn add(&mut self, inode: u64, known: Arc<KnownImage>) {
        self.next = self.next.max(inode + 1);
        self.by_cid.insert(known.image.cid, inode);
        self.by_inode.insert(inode, known);
    }

    fn remove(&mut self, inode: u64) {
        if let Some(known) = self.by_inode.remove(&inode) {
            self.by_cid.remove(&known.image.cid);
        }
    }
}

impl FarImages {
    /// The images that an earlier far process of this mount has noted at `notes`. New inodes begin with a number that no earlier mount had: a device's number comes
    /// again, and the agent knows files by both.
    pub fn new(sources: Sources, failures: Recorder, notes: PathBuf) -> FarImages {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut known =
            Known { by_inode: BTreeMap::new(), by_cid: BTreeMap::new(), next: now_unix_us() };
        for (inode, named, image) in known::all(&notes, &sources) {
            known.add(inode, KnownImage::new(image, named, UNKNOWN_USERS));
        }
        let known = RwLock::new(known);
        let (reads, failed_reads) = (AtomicU64::new(0), AtomicU64::new(0));
        FarImages { sources, failures, known, owner, reads, failed_reads, notes }
    }

    /// The images that were asked for.
    pub fn images(&self) -> Vec<Arc<FarImage>> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_inode
            .values()
            .map(|known| Arc::clone(&known.image))
            .collect()
    }

    /// The image with this name or id. The source is asked each time: a name may have moved, and a seed may
    /// have ended.
    pub fn find(&self, image: &str, named: Option<&SourceAt>) -> Result<Arc<FarImage>, Cause> {
        let source = self.sources.of(named)?;
        if named.is_some() {
            source.connect()?;
        }
        let found = source.find(image)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(inode) = known.by_cid.get(&found.cid).copied()
            && let Some(before) = known.by_inode.get(&inode)
        {
            if !before.image.is_same(&found) {
                let (source, cid) = (source.name(), found.cid);
                return Err(format!("{source} has another image {cid} than before"));
            }
            *before.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            return Ok(Arc::clone(&before.image));
        }
        let inode = known.next;
        known::note(&self.notes, inode, named, &found)
            .map_err(|error| format!("cannot note the image: {}", words::of(&error)))?;
        let new = KnownImage::new(found, named.cloned(), 0);
        known.add(inode, Arc::clone(&new));
        Ok(Arc::clone(&new.image))
    }

    /// Forgets images that have a node of their own, if no process has had them open for `idle`: nothing is
    /// connected to their nodes any more. Returns them: the kernel has to forget their names, so that their
    /// pages go.
    ///
    /// # Errors
    /// The images that are left cannot be noted; then none is forgotten.
    pub fn forget_idle(&self, idle: Duration) -> io::Result<Vec<Cid>> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let all = known.by_inode.iter();
        let (gone, left): (Vec<_>, Vec<_>) = all.partition(|(_, known)| known.is_idle(idle));
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        let noted =
            left.iter().map(|(inode, known)| (**inode, known.named.as_ref(), &*known.image));
        known::note_all(&self.notes, noted)?;
        let gone: Vec<_> = gone.into_iter().map(|(inode, at)| (*inode, Arc::clone(at))).collect();
        for (inode, _) in &gone {
            known.remove(*inode);
        }
        let own = |at: &SourceAt| self.notes.parent().is_some_and(|own| at.key.starts_with(own));
        for at in gone.iter().filter_map(|(_, known)| known.named.as_ref()).filter(|at| own(at)) {
            let _ = std::fs::remove_file(&at.key);
        }
        Ok(gone.iter().map(|(_, known)| known.image.cid).collect())
    }

    fn by_name(&self, name: &CStr) -> io::Result<(u64, Arc<FarImage>)> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let name = name.to_str().map_err(|_| absent())?;
        let cid: Cid = name.parse().map_err(|_| absent())?;
        let lookup = || {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let inode = *known.by_cid.get(&cid)?;
            Some((inode, Arc::clone(&known.by_inode.get(&inode)?.image)))
        };
        if let Some(known) = lookup() {
            return Ok(known);
        }
        self.find(name, None).map_err(|_| absent())?;
        lookup().ok_or_else(absent)
    }

    fn known(&self, inode: u64) -> io::Result<Arc<KnownImage>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.by_inode.get(&inode).map(Arc::clone);
        known.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn image(&self, inode: u64) -> io::Result<Arc<FarImage>> {
        Ok(Arc::clone(&self.known(inode)?.image))
    }

    fn attributes(&self, inode: u64, image: Option<&FarImage>) -> stat64 {
        let (uid, gid) = self.owner;
        let common = Attr { ino: inode, uid, gid, blksize: PAGE_BYTES as u32, ..Attr::default() };
        let attributes = match image {
            Some(image) => {
                let created = image.modified_unix_ns / 1_000_000_000;
                let nanoseconds = (image.modified_unix_ns % 1_000_000_000) as u32;
                Attr {
                    mode: libc::S_IFREG | 0o400,
                    nlink: 1,
                    size: image.bytes,
                    blocks: image.bytes.div_ceil(512),
                    atime: created,
                    mtime: created,
                    ctime: created,
                    atimensec: nanoseconds,
                    mtimensec: nanoseconds,
                    ctimensec: nanoseconds,
                    ..common
                }
            }
            None => Attr { mode: libc::S_IFDIR | 0o700, nlink: 2, ..common },
        };
        attributes.into()
    }

    fn fetch(&self, pid: i32, image: &FarImage, offset: u64, bytes: u32) -> io::Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        image.source.read(image, offset, bytes).map_err(|cause| {
            self.failed_reads.fetch_add(1, Ordering::Relaxed);
            let failure = Failure {
                unix_us: now_unix_us(),
                pid: pid as u32,
                cid: image.cid.to_string(),
                page: offset / PAGE_BYTES,
                source: image.source.name(),
                cause,
            };
            eprintln!(
                "farfork: cannot read page {} of image {} from {}: {}",
                failure.page, failure.cid, failure.source, failure.cause
            );
            self.failures.record(&failure);
            io::Error::from_raw_os_error(libc::EIO)
        })
    }
}

impl FileSystem for FarImages {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, _capable: FsOptions) -> io::Result<FsOptions> {
        // Requests of 1 MiB, many at once, and those of a far process that was killed are sent again.
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
        let (inode, image) = self.by_name(name)?;
        Ok(Entry {
            inode,
            generation: 0,
            attr: self.attributes(inode, Some(&image)),
            attr_flags: 0,
            attr_timeout: FOR_GOOD,
            entry_timeout: FOR_GOOD,
        })
    }

    fn getattr(&self, _: &Context, inode: u64, _: Option<u64>) -> io::Result<(stat64, Duration)> {
        let image = if inode == ROOT { None } else { Some(self.image(inode)?) };
        Ok((self.attributes(inode, image.as_deref()), FOR_GOOD))
    }

    fn open(
        &self,
        _: &Context,
        inode: u64,
        flags: u32,
        _: u32,
    ) -> io::Result<(Option<u64>, OpenOptions, Option<u32>)> {
        if flags as i32 & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        self.known(inode)?.users.fetch_add(1, Ordering::SeqCst);
        // What one clone has fetched is there for the next.
        Ok((Some(0), OpenOptions::KEEP_CACHE, None))
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
        let known = self.known(inode)?;
        known.users.fetch_sub(1, Ordering::SeqCst);
        // Kept for clones that come soon after the last one.
        *known.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    fn read(
        &self,
        context: &Context,
        inode: u64,
        _: u64,
        w: &mut dyn ZeroCopyWriter,
        size: u32,
        offset: u64,
        _: Option<u64>,
        _: u32,
    ) -> io::Result<usize> {
        let image = self.image(inode)?;
        let bytes = image.bytes.saturating_sub(offset).min(u64::from(size)) as u32;
        let read = self.fetch(context.pid, &image, offset, bytes)?;
        w.write_all(&read)?;
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
        let known: Vec<(Cid, u64)> = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            known.by_cid.iter().map(|(cid, inode)| (*cid, *inode)).collect()
        };
        for (at, (cid, inode)) in known.iter().enumerate().skip(offset as usize) {
            let name = cid.to_string();
            let entry = DirEntry {
                ino: *inode,
                offset: at as u64 + 1,
                type_: u32::from(libc::DT_REG),
                name: name.as_bytes(),
            };
            if add_entry(entry)? == 0 {
                break;
            }
        }
        Ok(())
    }
}
