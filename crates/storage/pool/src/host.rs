//! A host that uses images of a pool, and keeps them from being reused while it does.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use farfork_sys::sync::locked;
use farfork_types::Cid;

use crate::error::PoolError;
use crate::image_file::ImageFile;
use crate::nodes::{NodeId, NodeRow};
use crate::ownership::Ownership;
use crate::pinfile::PinFile;
use crate::pool::Pool;
use crate::writer::ImageWriter;

/// A pool as one registered node uses it. Pins stand for borrows: in the pool for other hosts, and as a lock that
/// processes of this one share.
#[derive(Debug)]
pub struct Host {
    pool: Pool,
    row: NodeRow,
    pins: PinFile,
    /// Against an end that looks whether it drops the last lock.
    locks: Mutex<Locks>,
}

/// Locks that borrows hold, one for all of an image: at each lock and close of the file the kernel walks over all its
/// locks.
type Locks = HashMap<Cid, Weak<OwnedFd>>;

/// A borrowed image.
#[derive(Debug)]
pub struct BorrowedImage {
    host: Arc<Host>,
    file: ImageFile,
    lock: Option<Arc<OwnedFd>>,
}

impl Host {
    /// Registers the node `name`, whose processes hold locks in `pins`. What processes of it that died have borrowed
    /// is settled.
    ///
    /// # Errors
    /// As [`Pool::register_node`].
    pub fn register(pool: Pool, name: &str, pins: PinFile) -> Result<Arc<Host>, PoolError> {
        let row = pool.register_node(name, &pins)?;
        let host = Arc::new(Host { pool, row, pins, locks: Mutex::default() });
        host.settle()?;
        Ok(host)
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Its number in the pool.
    pub fn id(&self) -> NodeId {
        self.row.id()
    }

    /// Whether a process of this host has the image.
    ///
    /// # Errors
    /// [`PoolError::Io`].
    pub fn is_in_use(&self, cid: Cid) -> Result<bool, PoolError> {
        self.pins.is_held(cid)
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        locked(&self.locks)
    }

    fn lock(&self, cid: Cid, locks: &mut Locks) -> Result<Arc<OwnedFd>, PoolError> {
        if let Some(lock) = locks.get(&cid).and_then(Weak::upgrade) {
            return Ok(lock);
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(self.pins.hold(cid)?);
        locks.insert(cid, Arc::downgrade(&lock));
        Ok(lock)
    }

    fn end(&self, cid: Cid) -> Result<(), PoolError> {
        let _locks = self.locks();
        match self.pins.is_held(cid)? {
            true => Ok(()),
            false => self.pool.unpin(&self.row, cid),
        }
    }
}

impl Ownership for Arc<Host> {
    type Writer<'a> = ImageWriter<'a>;
    type Borrowed = BorrowedImage;

    fn begin(&self, bytes: u64) -> Result<ImageWriter<'_>, PoolError> {
        let mut writer = self.pool.begin(None)?;
        writer.reserve(bytes)?;
        Ok(writer)
    }

    fn write(&self, writer: &mut ImageWriter<'_>, offset: u64, bytes: &[u8]) {
        writer.bytes_mut(offset..offset + bytes.len() as u64).copy_from_slice(bytes);
    }

    fn publish(&self, writer: ImageWriter<'_>) -> Result<Cid, PoolError> {
        Ok(writer.publish()?.0)
    }

    /// Pins the image before it is looked for: a removal does it the other way round.
    fn borrow(&self, cid: Cid) -> Result<BorrowedImage, PoolError> {
        let mut locks = self.locks();
        self.pool.pin(&self.row, cid)?;
        let file = self.pool.find(cid)?;
        let lock = Some(self.lock(cid, &mut locks)?);
        Ok(BorrowedImage { host: Arc::clone(self), file, lock })
    }

    fn read(&self, borrowed: &BorrowedImage, offset: u64, to: &mut [u8]) -> Result<(), PoolError> {
        borrowed.file.read_to(offset, to)
    }

    fn reclaim(&self, cid: Cid) -> Result<(), PoolError> {
        self.pool.remove(cid)
    }

    fn settle(&self) -> Result<(), PoolError> {
        let _locks = self.locks();
        self.pool.reconcile(&self.row, &self.pins).map(drop)
    }
}

impl BorrowedImage {
    /// The pool that the image is in.
    pub fn pool(&self) -> &Pool {
        &self.host.pool
    }

    /// The image.
    pub fn image(&self) -> &ImageFile {
        &self.file
    }

    /// The lock that shows the borrow to other processes of this host. It goes on in each that inherits it.
    pub fn lock(&self) -> Option<&OwnedFd> {
        self.lock.as_deref()
    }
}

impl Drop for BorrowedImage {
    fn drop(&mut self) {
        drop(self.lock.take());
        // A pin that stays is cleared by the next process of the node, or by a check of the pool.
        let _ = self.host.end(self.file.id.cid);
    }
}
