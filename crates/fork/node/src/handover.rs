//! Handing an image to the init that starts a clone of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farfork_plan::protocol::Request;
use farfork_restore::{Hands, Started};

use crate::error::NodeError;
use crate::images::{NodeImage, Pin};
use crate::overlays::Overlay;

/// Sends a request, with everything that goes with it.
pub fn hand_over(
    overlay: Option<Arc<Overlay>>,
    image: &NodeImage,
    pin: &Pin,
    (request, externals): (Request, &[OwnedFd]),
    send: impl FnOnce(&Request, &Hands<'_>) -> Result<Started, NodeError>,
) -> Result<Started, NodeError> {
    let request =
        Request { overlay_bytes: overlay.as_ref().map_or(0, |overlay| overlay.bytes), ..request };
    let pool = image.attached.pool();
    let hands = Hands {
        pool: pool.as_fd(),
        pin: pin.lock().unwrap_or(pool).as_fd(),
        overlay: overlay.as_ref().map(|overlay| overlay.as_fd()),
        externals,
    };
    send(&request, &hands)
}
