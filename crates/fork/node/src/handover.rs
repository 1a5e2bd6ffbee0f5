//! Handing an image to the init that starts a clone of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farfork_plan::protocol::Request;
use farfork_pool::BorrowedImage;
use farfork_restore::{RequestFds, Started};

use crate::error::NodeError;
use crate::images::NodeImage;
use crate::overlays::Overlay;

/// A request and all that goes with it.
pub struct Handover<'h> {
    /// The image.
    pub image: &'h NodeImage,
    /// Keeps the image in the pool.
    pub pin: &'h BorrowedImage,
    /// The overlay, if there is one.
    pub overlay: Option<Arc<Overlay>>,
    /// The request, without its overlay.
    pub request: Request,
    /// The external descriptors, or the socket of a clone that waits.
    pub externals: &'h [OwnedFd],
}

impl Handover<'_> {
    /// Sends the request with its descriptors.
    pub fn send(
        self,
        send: impl FnOnce(&Request, &RequestFds<'_>) -> Result<Started, NodeError>,
    ) -> Result<Started, NodeError> {
        let Handover { image, pin, overlay, request, externals } = self;
        let overlay_bytes = overlay.as_ref().map_or(0, |overlay| overlay.bytes);
        let request = Request { overlay_bytes, ..request };
        let mapped = image.attached.copy().map_or(pin.image().file().as_fd(), AsFd::as_fd);
        let fds = RequestFds {
            image: mapped,
            pin: pin.lock().map_or(mapped, AsFd::as_fd),
            overlay: overlay.as_ref().map(|overlay| overlay.as_fd()),
            sources: &image.attached.sources,
            externals,
        };
        send(&request, &fds)
    }
}
