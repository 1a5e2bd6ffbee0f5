//! The file system of far images: one directory, one read-only file for each image.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use farfork_mount::{FileFacts, Files, Owner};
use farfork_sys::sync::{locked, unpoisoned};
use farfork_sys::words;
use farfork_types::Cid;

use crate::failures::{Failure, Recorder, now_unix_us};
use crate::known;
use crate::orders::{FOR_CLONES, IN_ADVANCE, Orders};
use crate::others;
use crate::place::Place;
use crate::source::{Cause, FarImage, FoundImage, SHORT_LIMIT, SourceAt};
use crate::sources::Sources;
use crate::split::{Missing, SplitImage};
use crate::touched::Touched;

/// How long an image that closes is kept after its last use: a command opens it right after it was found.
const CLOSING_IDLE: Duration = Duration::from_millis(300);

/// How many open an image of an earlier far process is not known: it stays until the mount goes.
const UNKNOWN_USERS: u64 = 1 << 32;

/// Images of a mount.
pub struct FarImages {
    pub sources: Sources,
    failures: Recorder,
    orders: Orders,
    touched: Touched,
    known: RwLock<Known>,
    owner: Owner,
    pub reads: AtomicU64,
    pub failed_reads: AtomicU64,
    /// Where images are noted for the next far process.
    notes: PathBuf,
    /// Where keys of their nodes lie.
    keys: PathBuf,
}

/// The handle of files whose reads are noted for the node's own pools; others have 0.
const NOTED: u64 = 1;
/// The handle of files whose reads are noted for the image's node.
const OF_CLONES: u64 = 2;

struct Known {
    by_inode: BTreeMap<u64, Arc<KnownImage>>,
    by_cid: BTreeMap<Cid, u64>,
    next: u64,
}

/// An image that was asked for.
struct KnownImage {
    image: Arc<SplitImage>,
    /// The node that was named for it.
    named: Option<SourceAt>,
    /// Open files of it: a mapping has one, too.
    users: AtomicU64,
    /// Whether it was opened since this process knows it.
    was_opened: AtomicBool,
    /// When it was last asked for.
    asked: Mutex<Instant>,
}

impl KnownImage {
    fn new(image: SplitImage, named: Option<SourceAt>, users: u64) -> Arc<KnownImage> {
        let (users, asked) = (AtomicU64::new(users), Mutex::new(Instant::now()));
        let (image, was_opened) = (Arc::new(image), AtomicBool::new(false));
        Arc::new(KnownImage { image, named, users, was_opened, asked })
    }

    /// Files of the keys that it needs.
    fn keys(&self) -> impl Iterator<Item = &Path> {
        let owners = self.image.owners.iter().map(|owner| &owner.at);
        self.named.iter().chain(owners).map(|at| &*at.key)
    }

    fn is_idle(&self, idle: Duration) -> bool {
        let asked = *locked(&self.asked);
        self.named.is_some() && self.users.load(Ordering::SeqCst) == 0 && asked.elapsed() > idle
    }

    /// Whether it is idle, and kept only for clones that can no longer start.
    fn is_closing(&self) -> bool {
        let image = &self.image.image;
        // A command that has found it is about to open it, however slow the machine is.
        self.was_opened.load(Ordering::SeqCst)
            && self.is_idle(CLOSING_IDLE)
            && image.source.is_closing(image)
    }
}

impl Known {
    fn add(&mut self, inode: u64, known: Arc<KnownImage>) {
        self.next = self.next.max(inode + 1);
        self.by_cid.insert(known.image.image.cid, inode);
        self.by_inode.insert(inode, known);
    }

    fn remove(&mut self, inode: u64) {
        if let Some(known) = self.by_inode.remove(&inode) {
            self.by_cid.remove(&known.image.image.cid);
        }
    }
}

impl FarImages {
    /// The images that an earlier far process of this mount has noted. New inodes begin with a number that no earlier mount had: a device's number comes
    /// again, and the agent knows files by both.
    pub fn new(sources: Sources, failures: Recorder, place: &Place) -> FarImages {
        let (notes, keys) = (place.known(), place.keys());
        let orders = Orders::new(place.orders());
        let uid = rustix::process::geteuid().as_raw();
        let owner = Owner { uid, gid: rustix::process::getegid().as_raw() };
        let mut known =
            Known { by_inode: BTreeMap::new(), by_cid: BTreeMap::new(), next: now_unix_us() };
        for (inode, named, image) in known::all(&notes, &sources, &keys) {
            if let Err(why) = image.write_keys() {
                eprintln!("farfork: {why}");
            }
            known.add(inode, KnownImage::new(image, named, UNKNOWN_USERS));
        }
        let known = RwLock::new(known);
        let (reads, failed_reads) = (AtomicU64::new(0), AtomicU64::new(0));
        let touched = Touched::default();
        FarImages {
            sources,
            failures,
            orders,
            touched,
            known,
            owner,
            reads,
            failed_reads,
            notes,
            keys,
        }
    }

    /// The images that were asked for.
    pub fn images(&self) -> Vec<Arc<SplitImage>> {
        unpoisoned(self.known.read())
            .by_inode
            .values()
            .map(|known| Arc::clone(&known.image))
            .collect()
    }

    /// The image with this name or id. The source is asked each time: a name may have moved, and a seed may
    /// have ended.
    pub fn find(&self, image: &str, named: Option<&SourceAt>) -> Result<Arc<SplitImage>, Cause> {
        let source = self.sources.of(named)?;
        if named.is_some() {
            source.connect()?;
        }
        let FoundImage { image: found, has_owners } = source.find(image)?;
        if let Some(before) = self.before(&found)? {
            return Ok(before);
        }
        others::demand_same(&self.notes, &found)?;
        let found = self.with_owners(found, has_owners)?;
        let mut known = unpoisoned(self.known.write());
        if known.by_cid.contains_key(&found.image.cid) {
            // Another search has found it meanwhile.
            drop(known);
            return self.find(image, named);
        }
        // While this is locked no image goes, and takes its keys along.
        found.write_keys()?;
        if let Some(SourceAt { key, .. }) = named
            && key.starts_with(&self.keys)
            && !key.exists()
        {
            // The last image that needed it was forgotten since the command wrote it.
            return Err(format!("the key in {} is gone: try again", key.display()));
        }
        let inode = known.next;
        known::note(&self.notes, inode, named, &found)
            .map_err(|error| format!("cannot note the image: {}", words::of(&error)))?;
        let new = KnownImage::new(found, named.cloned(), 0);
        known.add(inode, Arc::clone(&new));
        new.image.connect_owners();
        Ok(Arc::clone(&new.image))
    }

    /// The image as it was found before, if it was.
    fn before(&self, found: &FarImage) -> Result<Option<Arc<SplitImage>>, Cause> {
        let known = unpoisoned(self.known.read());
        let inode = known.by_cid.get(&found.cid);
        let Some(before) = inode.and_then(|inode| known.by_inode.get(inode)) else {
            return Ok(None);
        };
        if !before.image.image.is_same(found) {
            let (source, cid) = (found.source.name(), found.cid);
            return Err(format!("{source} has another image {cid} than before"));
        }
        *locked(&before.asked) = Instant::now();
        Ok(Some(Arc::clone(&before.image)))
    }

    /// An image, with those that own parts of it.
    fn with_owners(&self, found: FarImage, has_owners: bool) -> Result<SplitImage, Cause> {
        if !has_owners {
            return Ok(SplitImage::whole(found));
        }
        let lineage = found.source.lineage(&found)?;
        SplitImage::new(found, lineage, &self.sources, &self.keys)
    }

    /// The images that a process has open, and that have a node of their own.
    pub fn in_use(&self) -> Vec<Arc<SplitImage>> {
        let known = unpoisoned(self.known.read());
        let is_used = |known: &&Arc<KnownImage>| {
            known.named.is_some() && known.users.load(Ordering::SeqCst) > 0
        };
        known.by_inode.values().filter(is_used).map(|known| Arc::clone(&known.image)).collect()
    }

    /// Has the nodes of images know which pages clones needed since the last time.
    pub fn say_touched(&self) {
        for split in self.images() {
            self.say_touched_of(&split.image, Instant::now() + SHORT_LIMIT);
        }
    }

    /// The same for one image, whose node has until then to answer.
    pub fn say_touched_of(&self, image: &FarImage, deadline: Instant) {
        let pages = self.touched.take(image.cid);
        if !pages.is_empty() {
            image.source.say_touched(image.cid, &pages, deadline.min(Instant::now() + SHORT_LIMIT));
        }
    }

    /// Forgets images that have a node of their own, if no process has had them open for `idle`, and at once if
    /// no clone of them may start any more: nothing is
    /// connected to their nodes any more. Returns them: the kernel has to forget their names, so that their
    /// pages go.
    ///
    /// # Errors
    /// The images that are left cannot be noted; then none is forgotten.
    pub fn forget_idle(&self, idle: Duration) -> io::Result<Vec<Cid>> {
        // Their nodes are asked, so nothing is locked meanwhile.
        let known = unpoisoned(self.known.read());
        let all: Vec<_> = known.by_inode.values().map(Arc::clone).collect();
        drop(known);
        let closing: Vec<_> = all.into_iter().filter(|known| known.is_closing()).collect();
        let closes = |known: &Arc<KnownImage>| {
            known.is_idle(CLOSING_IDLE) && closing.iter().any(|other| Arc::ptr_eq(other, known))
        };
        let mut known = unpoisoned(self.known.write());
        let all = known.by_inode.iter();
        let (gone, left): (Vec<_>, Vec<_>) =
            all.partition(|(_, known)| known.is_idle(idle) || closes(known));
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
        // An image that goes may own parts of one that stays, which needs its key.
        let needed: Vec<&Path> = known.by_inode.values().flat_map(|left| left.keys()).collect();
        let gone_keys = gone.iter().flat_map(|(_, known)| known.keys());
        for key in gone_keys.filter(|key| key.starts_with(&self.keys) && !needed.contains(key)) {
            let _ = std::fs::remove_file(key);
        }
        let gone: Vec<Cid> = gone.iter().map(|(_, known)| known.image.image.cid).collect();
        gone.iter().for_each(|cid| self.touched.forget(*cid));
        Ok(gone)
    }

    fn named(&self, name: &CStr) -> io::Result<(u64, Arc<SplitImage>)> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let name = name.to_str().map_err(|_| absent())?;
        let cid: Cid = name.parse().map_err(|_| absent())?;
        let lookup = || {
            let known = unpoisoned(self.known.read());
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
        let known = unpoisoned(self.known.read());
        let known = known.by_inode.get(&inode).map(Arc::clone);
        known.ok_or_else(stale)
    }

    fn fetch(&self, pid: i32, image: &SplitImage, offset: u64, bytes: u32) -> io::Result<Vec<u8>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        image.read(offset, bytes).map_err(|Missing { page, source, cause }| {
            self.failed_reads.fetch_add(1, Ordering::Relaxed);
            let failure = Failure {
                unix_us: now_unix_us(),
                pid: pid as u32,
                cid: image.image.cid.to_string(),
                page,
                source,
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

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// What is shown of an image.
fn facts(inode: u64, image: &FarImage) -> FileFacts {
    let FarImage { bytes, modified_unix_ns, .. } = *image;
    FileFacts { inode, bytes, stored_bytes: bytes, made_unix_ns: modified_unix_ns }
}

impl Files for FarImages {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn by_name(&self, name: &CStr) -> io::Result<FileFacts> {
        let (inode, image) = self.named(name)?;
        Ok(facts(inode, &image.image))
    }

    fn by_inode(&self, inode: u64) -> io::Result<FileFacts> {
        Ok(facts(inode, &self.known(inode)?.image.image))
    }

    fn open(&self, inode: u64, flags: i32) -> io::Result<u64> {
        // Counted while the images are locked: none is forgotten as it is opened.
        let images = unpoisoned(self.known.read());
        let known = images.by_inode.get(&inode).ok_or_else(stale)?;
        known.users.fetch_add(1, Ordering::SeqCst);
        known.was_opened.store(true, Ordering::SeqCst);
        Ok(match flags & FOR_CLONES {
            FOR_CLONES => NOTED,
            IN_ADVANCE => 0,
            _ if known.named.is_some() => OF_CLONES,
            _ => 0,
        })
    }

    fn close(&self, inode: u64) {
        let Ok(known) = self.known(inode) else { return };
        known.users.fetch_sub(1, Ordering::SeqCst);
        // Kept for clones that come soon after the last one.
        *locked(&known.asked) = Instant::now();
    }

    fn read(&self, inode: u64, range: Range<u64>, handle: u64, pid: i32) -> io::Result<Vec<u8>> {
        let image = Arc::clone(&self.known(inode)?.image);
        let bytes = range.end - range.start;
        let read = self.fetch(pid, &image, range.start, bytes as u32)?;
        match handle {
            NOTED => self.orders.note(image.image.cid, range.start, bytes),
            OF_CLONES => self.touched.note(image.image.cid, range.start, bytes),
            _ => {}
        }
        Ok(read)
    }

    fn list(&self) -> Vec<(String, u64)> {
        let known = unpoisoned(self.known.read());
        known.by_cid.iter().map(|(cid, inode)| (cid.to_string(), *inode)).collect()
    }
}
