//! Overlays of an image's plan, compiled once for all clones that start alike.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use farfork_image::format::Image;
use farfork_pages::overlay::{OverlayKind, Start};
use farfork_pages::{Access, overlay};
use farfork_pool::Pool;
use farfork_sys::memfd;
use farfork_types::Tiering;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::NodeError;
use farfork_sys::sync::locked;

/// The overlay that inits of an image's clones map.
#[derive(Debug)]
pub struct Overlay {
    file: OwnedFd,
    /// Bytes of its mapping.
    pub bytes: u64,
    /// Bytes that become local though the clone may never touch them.
    pub ahead_bytes: u64,
}

impl Overlay {
    /// Writes and seals the file: clones map it.
    fn put(compiled: &overlay::Overlay) -> std::io::Result<Overlay> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("farfork-overlay", flags)?);
        file.write_all(&compiled.bytes)?;
        memfd::seal(&file)?;
        let (bytes, ahead_bytes) = (compiled.bytes.len() as u64, compiled.ahead_bytes);
        Ok(Overlay { file: file.into(), bytes, ahead_bytes })
    }
}

impl AsFd for Overlay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A compiled overlay.
#[derive(Debug)]
struct CachedOverlay {
    overlay: Option<Arc<Overlay>>,
    /// The version of the side tables that it was compiled from.
    version: u64,
    /// When that was last looked at.
    looked: Instant,
}

/// How long an overlay is used without a look at the side tables.
const FRESH: Duration = Duration::from_millis(100);
/// The same for clones that start at once under the default policy. Their overlay only guides the helper,
/// and compiling it for a large image delays a start by milliseconds.
const FRESH_HELP: Duration = Duration::from_secs(1);

/// Those of one image; most clones need none.
#[derive(Debug, Default)]
pub struct Overlays {
    known: Mutex<HashMap<OverlayKind, CachedOverlay>>,
    watch: OnceLock<Option<Arc<Overlay>>>,
}

impl Overlays {
    /// The overlay for clones that are watched.
    pub fn watch(&self, image: &Image) -> Result<Option<Arc<Overlay>>, NodeError> {
        if let Some(known) = self.watch.get() {
            return Ok(known.clone());
        }
        let put = overlay::compile_watch(image).map(|made| Overlay::put(&made)).transpose();
        let made = put.map_err(|source| NodeError::Overlay { source })?.map(Arc::new);
        Ok(self.watch.get_or_init(|| made).clone())
    }

    /// The overlay for clones of `image` in `pool`: how their pages are tiered, and when they start.
    pub fn get(
        &self,
        pool: &Pool,
        image: &Image,
        kind: OverlayKind,
    ) -> Result<Option<Arc<Overlay>>, NodeError> {
        let helped = OverlayKind { tiering: Tiering::Mow, start: Start::AtOnce, share: None };
        let fresh = if kind == helped { FRESH_HELP } else { FRESH };
        let mut all = locked(&self.known);
        let fresh = all.get(&kind).filter(|known| known.looked.elapsed() < fresh);
        if let Some(known) = fresh {
            return Ok(known.overlay.clone());
        }
        // Side tables that cannot be read, as of a removed image, only make clones slower.
        let cid = image.id.cid;
        let version = pool.access_version(cid).unwrap_or(0);
        let looked = Instant::now();
        if let Some(known) = all.get_mut(&kind).filter(|known| known.version == version) {
            known.looked = looked;
            return Ok(known.overlay.clone());
        }
        let access = match version {
            0 => Access::default(),
            _ => pool.access(cid).map(Access::from).unwrap_or_default(),
        };
        let compiled = overlay::compile(image, &access, kind);
        let put = compiled.map(|compiled| Overlay::put(&compiled)).transpose();
        let overlay = put.map_err(|source| NodeError::Overlay { source })?.map(Arc::new);
        all.insert(kind, CachedOverlay { overlay: overlay.clone(), version, looked });
        Ok(overlay)
    }
}
