//! Ghosts that have their image already: the plan was run up to what has to wait for the start.

use std::time::{Duration, Instant};

use farfork_pages::overlay::{OverlayKind, Start};
use farfork_pool::BorrowedImage;
use farfork_restore::{Event, Ghost, Started, Waker};
use farfork_types::wire::{GhostImage, RestoreCall};
use farfork_types::{Cid, Tiering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::{Container, GhostStage};
use crate::error::NodeError;
use crate::handover::Handover;
use crate::images::NodeImage;
use crate::session::Node;

/// How long a plan may take up to its last steps.
const PATIENCE: Duration = Duration::from_secs(60);

/// A clone that waits.
#[derive(Debug)]
pub struct AttachedGhost {
    /// Its pid, as seen here.
    pub pid: i32,
    /// Its image.
    pub cid: Cid,
    /// The name by which the image was requested.
    pub name: String,
    /// When its pages become local.
    pub tiering: Tiering,
    /// Its init's messages.
    pub started: Started,
    /// Wakes it.
    pub waker: Waker,
    /// Its warnings so far.
    pub warnings: Vec<String>,
    /// Holds the image.
    pub pin: BorrowedImage,
}

impl Node {
    /// Has an empty ghost make the clone of an image, up to its last steps.
    pub fn attach_ghost(
        &self,
        ghost: Ghost,
        container: &Container,
        user: Option<&str>,
        wanted: &GhostImage,
    ) -> Result<GhostStage, NodeError> {
        let GhostImage { pool, cid, name, tiering } = wanted;
        let invalid = || NodeError::Protocol(format!("invalid image id {cid}"));
        let cid: Cid = cid.parse().map_err(|_| invalid())?;
        let pool = self.images.pool(pool)?;
        if let Some(user) = user {
            self.check_user(&container.id, user, name, pool.pool(), cid)?;
        }
        let (image, pin) = pool.attach(cid)?;
        check_image(&image, name)?;
        let (waker, theirs) = Waker::new()?;
        let request = image.attached.request_waiting();
        let kind = OverlayKind { tiering: *tiering, start: Start::Later, share: None };
        let overlay = image.overlay_within(pool.pool(), kind, &container.headroom())?;
        let externals = [theirs];
        let handover =
            Handover { image: &image, pin: &pin, overlay, request, externals: &externals };
        let started = handover.send(|request, fds| Ok(ghost.spawn(cid, request, fds)?))?;
        drop(externals);
        let read = &image.attached.image;
        let plan = &read.plan;
        let (pid, warnings) = await_waiting(&started, plan)
            .map_err(|error| container.shortage().map_or(error, NodeError::Agent))?;
        let (name, tiering) = (name.clone(), *tiering);
        Ok(GhostStage::Attached(AttachedGhost {
            pid,
            cid,
            name,
            tiering,
            started,
            waker,
            warnings,
            pin,
        }))
    }

    /// Refuses what a ghost with this image does not do, as [`check_ghost`](Node::check_ghost).
    pub fn check_attached(
        attached: &AttachedGhost,
        id: &str,
        call: &RestoreCall,
    ) -> Result<(), NodeError> {
        if call.profile {
            return Err(NodeError::ProfileAttached);
        }
        if call.local_share.is_some() {
            return Err(NodeError::ShareAttached);
        }
        if call.cid == attached.cid.to_string() {
            return Ok(());
        }
        let (id, has, name) = (id.to_owned(), attached.name.clone(), call.name.clone());
        Err(NodeError::GhostOfImage { id, has, name })
    }
}

/// Refuses trees, of which each process would have to wait, and connections, which one clone only can
/// continue.
fn check_image(image: &NodeImage, name: &str) -> Result<(), NodeError> {
    let model = &image.attached.image.model;
    let name = || name.to_owned();
    if model.members.len() > 1 {
        return Err(NodeError::GhostOfTree { name: name() });
    }
    if model.connections().next().is_some() {
        return Err(NodeError::Connections { name: name() });
    }
    Ok(())
}

/// Reads a clone's messages until it waits. Returns its pid and its warnings.
fn await_waiting(started: &Started, plan: &[u8]) -> Result<(i32, Vec<String>), NodeError> {
    let begun = Instant::now();
    let mut warnings = Vec::new();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let mut polls = [PollFd::new(started, PollFlags::IN)];
        let time = Timespec::try_from(left).ok();
        if matches!(poll(&mut polls, time.as_ref()), Ok(0)) {
            return Err(started.too_slow(PATIENCE).into());
        }
        match started.next(plan)? {
            Event::Warned(warning) => warnings.push(warning),
            Event::Waits { pid } => return Ok((pid, warnings)),
            Event::Running { .. } | Event::Exited(_) => return Err(started.killed().into()),
        }
    }
}
