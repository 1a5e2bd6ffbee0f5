//! Pools and images that this node uses, and their pins.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfork_image::mounts;
use farfork_image::verify::{self, Seen};
use farfork_pages::Observed;
use farfork_pages::overlay::{OverlayKind, Start};
use farfork_pool::{
    BorrowedImage, Epochs, Host, ImageFile, ImageId, Ownership, PageBits, PinFile, Pool, PoolError,
};
use farfork_restore::{AttachedImage, ImageSource, RestoreError, attach};
use farfork_types::{Cid, Tiering};

use crate::error::NodeError;
use crate::far_order;
use crate::far_parts;
use crate::headroom::{self, MemoryHeadroom};
use crate::overlays::{Overlay, Overlays};
use crate::paths;
use farfork_sys::sync::locked;

/// Images whose metadata is kept at hand.
const KEPT_IMAGES: usize = 256;
/// How long a check of an image's files holds.
const FILES_FRESH: Duration = Duration::from_secs(2);
/// How long after its last start the files of an image are checked every second.
const IN_USE: Duration = Duration::from_secs(60);

/// Everything this node has attached.
#[derive(Debug)]
pub struct Images {
    node: String,
    /// What clones map of an image.
    source: ImageSource,
    pools: Mutex<HashMap<PathBuf, Arc<NodePool>>>,
}

/// One pool as this node uses it.
#[derive(Debug)]
pub struct NodePool {
    host: Arc<Host>,
    /// Device and inode.
    file: (u64, u64),
    /// Images that were read, whether clones of them live or not.
    images: Mutex<HashMap<Cid, Arc<NodeImage>>>,
    /// What clones map of it.
    source: ImageSource,
    /// An image is read once, and copied once, by the thread that needs it first.
    reading: Mutex<()>,
    /// The node's tables have one writer.
    noting: Mutex<()>,
}

/// One image as this node uses it.
#[derive(Debug)]
pub struct NodeImage {
    /// The image, read and checked.
    pub attached: AttachedImage,
    overlays: Overlays,
    /// Clones that might have been watched.
    starts: AtomicU32,
    /// The epoch of accessed bits, and since when it is known here.
    epoch: Mutex<Option<(u64, Instant)>>,
    /// When its files were last seen to be what they were.
    files_seen: Mutex<Option<Instant>>,
    /// What they were then.
    seen: Mutex<Seen>,
    /// When a clone was last asked for.
    used: Mutex<Option<Instant>>,
}

impl Images {
    /// Nothing attached yet.
    pub fn new(node: &str, source: ImageSource) -> Images {
        Images { node: node.to_owned(), source, pools: Mutex::default() }
    }

    /// The pool at `path`, opened at its first use.
    pub fn pool(&self, path: &Path) -> Result<Arc<NodePool>, NodeError> {
        let mut pools = locked(&self.pools);
        if let Some(pool) = pools.get(path).filter(|known| known.is_at(path)) {
            return Ok(Arc::clone(pool));
        }
        // It may be known by another path: its row has one writer.
        let known = pools.values().find(|known| known.is_at(path)).cloned();
        let pool = match known {
            Some(pool) => pool,
            None => Arc::new(NodePool::open(path, &self.node, self.source)?),
        };
        pools.insert(path.to_owned(), Arc::clone(&pool));
        Ok(pool)
    }
}

impl Images {
    /// Unpins images whose last clone has ended unnoticed: clones that an earlier agent had started.
    pub fn reconcile(&self) {
        let pools: Vec<Arc<NodePool>> = locked(&self.pools).values().cloned().collect();
        for pool in pools {
            // A pool that is gone has nothing to be let go of.
            let _ = pool.host.settle();
        }
    }

    /// Lets go of pools that no clone uses and that are gone: far processes take theirs along.
    fn forget_gone(&self) {
        let mut pools = locked(&self.pools);
        pools.retain(|path, pool| Arc::strong_count(pool) > 1 || pool.is_at(path));
    }

    /// Looks at the files of images in use, so that a restore need not: that takes about 1.5 us a
    /// file, a tenth of what a clone of a Python process takes in all.
    pub fn refresh(&self) {
        self.forget_gone();
        let pools: Vec<Arc<NodePool>> = locked(&self.pools).values().cloned().collect();
        for pool in pools {
            let images: Vec<Arc<NodeImage>> = locked(&pool.images).values().cloned().collect();
            for image in images.into_iter().filter(|image| image.is_in_use()) {
                image.refresh();
            }
            pool.drop_idle_copies();
            far_order::learn(pool.pool());
        }
    }
}

impl NodePool {
    fn open(path: &Path, node: &str, source: ImageSource) -> Result<NodePool, NodeError> {
        let pool = Pool::open(path)?;
        let file = fs::metadata(path).map_or((0, 0), |now| (now.dev(), now.ino()));
        let directory = paths::pins(node);
        // A directory that cannot be made shows as an error of the file in it.
        let _ = fs::create_dir_all(&directory);
        let pins = PinFile::open(&directory.join(paths::pool_name(&pool)))?;
        let host = Host::register(pool, node, pins)?;
        let (images, reading, noting) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(NodePool { host, file, images, source, reading, noting })
    }

    /// Whether the pool is still what is at `path`: it may have been made anew.
    fn is_at(&self, path: &Path) -> bool {
        let identity = |m: fs::Metadata| (m.dev(), m.ino());
        fs::metadata(path).is_ok_and(|now| identity(now) == self.file) && self.pool().is_intact()
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.host.pool()
    }

    /// Adds what a clone has done to the table of this node beside its image, which must not be
    /// removed.
    pub fn add_access(
        self: &Arc<Self>,
        cid: Cid,
        epochs: Epochs,
        observed: &Observed,
    ) -> Result<(), NodeError> {
        let bits = PageBits::from(&observed.access());
        let _noting = locked(&self.noting);
        Ok(self.pool().add_access(self.host.id(), cid, epochs, &bits)?)
    }

    /// Borrows `cid` and reads it, unless it was read before.
    pub fn attach(&self, cid: Cid) -> Result<(Arc<NodeImage>, BorrowedImage), NodeError> {
        let borrowed = self.host.borrow(cid)?;
        let image = match self.known(&borrowed.image().id) {
            Some(image) => image,
            None => self.read(borrowed.image())?,
        };
        image.check_files(cid)?;
        Ok((image, borrowed))
    }

    /// Forgets what was read of an image.
    pub fn forget(&self, cid: Cid) {
        locked(&self.images).remove(&cid);
    }

    /// What was read of an image, if its file is still the same.
    fn known(&self, id: &ImageId) -> Option<Arc<NodeImage>> {
        let known = locked(&self.images).get(&id.cid).cloned();
        known.filter(|known| known.attached.image.id == *id)
    }

    fn read(&self, file: &ImageFile) -> Result<Arc<NodeImage>, NodeError> {
        let _reading = locked(&self.reading);
        if let Some(image) = self.known(&file.id) {
            return Ok(image);
        }
        let (cid, bytes) = (file.id.cid, file.id.bytes);
        if self.source != ImageSource::Pool && !self.make_room(bytes) {
            return Err(NodeError::NoRoomForCopy { cid, bytes });
        }
        let is_mapped = self.source != ImageSource::Copy;
        let whole = match is_mapped {
            true => far_parts::for_clones(file)?,
            false => far_parts::with_far_side(file)?,
        };
        let attached = attach(self.pool(), whole.as_ref().unwrap_or(file), self.source)?;
        if let Some(whole) = whole.filter(|_| is_mapped) {
            far_order::prefetch_parts(self.pool(), &whole);
        }
        let (files_seen, seen, used) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (overlays, starts) = (Overlays::default(), AtomicU32::new(0));
        let epoch = Mutex::default();
        let image = NodeImage { attached, overlays, starts, epoch, files_seen, seen, used };
        let image = Arc::new(image);
        if locked(&self.images).len() >= KEPT_IMAGES {
            match self.source {
                ImageSource::Copy | ImageSource::Split => self.drop_copies_but(|_| false),
                ImageSource::Pool => locked(&self.images).clear(), // clones hold what they use themselves
            }
        }
        locked(&self.images).insert(cid, Arc::clone(&image));
        Ok(image)
    }

    /// Drops copies that no clone maps, if none was requested lately or the image is gone.
    fn drop_idle_copies(&self) {
        if self.source != ImageSource::Pool {
            self.drop_copies_but(|image| {
                let own = &image.attached.image.id;
                image.is_in_use() && self.pool().find(own.cid).is_ok_and(|now| now.id == *own)
            });
        }
    }

    /// Drops copies that no clone maps, except for those that `keeps` keeps.
    fn drop_copies_but(&self, keeps: impl Fn(&NodeImage) -> bool) {
        let is_held = |image: &NodeImage| self.host.is_in_use(image.attached.image.id.cid);
        locked(&self.images).retain(|_, image| {
            keeps(image) || Arc::strong_count(image) > 1 || is_held(image).unwrap_or(true)
        });
    }

    /// Whether there is memory for a copy of `bytes`. If not, copies without clones are dropped first:
    /// allocating more than there is would get processes OOM-killed.
    fn make_room(&self, bytes: u64) -> bool {
        let own = MemoryHeadroom::of_process(std::process::id() as i32);
        let has_room = || own.has(bytes) && headroom::machine_has(bytes);
        if !has_room() {
            self.drop_copies_but(|_| false);
        }
        has_room()
    }
}

impl NodeImage {
    /// The overlay of profiled clones.
    pub fn watch(&self) -> Result<Option<Arc<Overlay>>, NodeError> {
        self.overlays.watch(&self.attached.image)
    }

    /// Whether the clone that starts now is the first of `every`.
    pub fn is_next_of(&self, every: u32) -> bool {
        self.starts.fetch_add(1, Ordering::Relaxed).is_multiple_of(every)
    }

    /// Begins a new epoch if this node has known the current one for `after`: the accessed bits are reset.
    /// Another node may have begun the current one.
    ///
    /// # Errors
    /// The pool has no room for the table, or the image was removed.
    pub fn forget_accessed(&self, pool: &Pool, after: Duration) -> Result<(), PoolError> {
        let cid = self.attached.image.id.cid;
        let mut known = locked(&self.epoch);
        let now = pool.epochs(cid)?.accessed;
        let (_, since) = *known.get_or_insert((now, Instant::now()));
        if known.is_some_and(|(epoch, _)| epoch != now) {
            *known = Some((now, Instant::now()));
        } else if since.elapsed() >= after {
            pool.reset_access(cid, false)?;
            *known = None;
        }
        Ok(())
    }

    /// The overlay of this kind.
    fn overlay(&self, pool: &Pool, kind: OverlayKind) -> Result<Option<Arc<Overlay>>, NodeError> {
        let tiering = kind.tiering;
        if tiering != Tiering::Mow && !self.attached.medium.tells_of_faults() {
            return Err(NodeError::TieringMedium { tiering, pool: pool.path().to_owned() });
        }
        self.overlays.get(pool, &self.attached.image, kind)
    }

    /// The same with a limit of memory. Pages that become local in advance may never be needed: without
    /// memory for them they do not become local.
    pub fn overlay_within(
        &self,
        pool: &Pool,
        kind: OverlayKind,
        headroom: &MemoryHeadroom,
    ) -> Result<Option<Arc<Overlay>>, NodeError> {
        let overlay = self.overlay(pool, kind)?;
        let ahead_bytes = overlay.as_ref().map_or(0, |overlay| overlay.ahead_bytes);
        if kind.share.is_some()
            && !(headroom.has(ahead_bytes) && headroom::machine_has(ahead_bytes))
        {
            return Err(NodeError::ShareRoom { bytes: ahead_bytes });
        }
        match kind.start {
            _ if ahead_bytes == 0 || headroom.has(ahead_bytes) => Ok(overlay),
            Start::AtOnce => Ok(None),
            Start::Later | Start::LaterWithoutRoom => {
                self.overlay(pool, OverlayKind { start: Start::LaterWithoutRoom, ..kind })
            }
        }
    }

    /// Forgets the check of the files, and the use, by a trial. The next start checks the files again: the
    /// parent, or other processes, go on writing to them.
    pub fn was_only_tried(&self) {
        (*locked(&self.used), *locked(&self.files_seen)) = (None, None);
    }

    fn check_files(&self, cid: Cid) -> Result<(), NodeError> {
        *locked(&self.used) = Some(Instant::now());
        if self.files_seen().is_some_and(|seen| seen.elapsed() < FILES_FRESH) {
            return Ok(());
        }
        match self.refresh() {
            changes if changes.is_empty() => Ok(()),
            changes => Err(RestoreError::FilesChanged { cid, changes }.into()),
        }
    }

    fn files_seen(&self) -> Option<Instant> {
        *locked(&self.files_seen)
    }

    fn is_in_use(&self) -> bool {
        locked(&self.used).is_some_and(|used| used.elapsed() < IN_USE)
    }

    /// Compares the files with what they were; a change is found again by the next restore.
    fn refresh(&self) -> Vec<String> {
        let now = Instant::now();
        let changes = verify::changed_files(&self.attached.image.model, &mut locked(&self.seen));
        let mut changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        changes.extend(mounts::changed_mounts(&self.attached.image.model.mounts));
        *locked(&self.files_seen) = changes.is_empty().then_some(now);
        changes
    }
}
