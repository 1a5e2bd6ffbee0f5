//! Starting a clone: from the call to its first instruction, or to the error.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farfork_pages::overlay::{OverlayKind, Start};
use farfork_pages::share::Share;
use farfork_plan::protocol::{PidMode, Request};
use farfork_pool::BorrowedImage;
use farfork_restore::{Event, PeerEnd, RequestFds, Started, Template};
use farfork_sys::{numa, words};
use farfork_types::wire::{Reply, RestoreCall, Running};
use farfork_types::{Cid, Tiering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::channel::Channel;
use crate::error::NodeError;
use crate::externals;
use crate::ghosts::{AttachedGhost, Container, GhostStage, WaitingGhost};
use crate::handover::Handover;
use crate::headroom::MemoryHeadroom;
use crate::images::NodeImage;
use crate::profile::{self, Profile, Watched};
use crate::registry::{CloneNumber, CloneOrigin};
use crate::rings::Rings;
use crate::session::Node;
use crate::user;
use farfork_sys::sync::locked;

/// Names of the phases whose ends a clone reports.
const PHASES: [&str; 6] = ["init", "container", "process", "memory", "state", "leave"];
/// How long a caller waits for the rest of a clone that could not be started to end.
const CLEARING: Duration = Duration::from_secs(5);

/// What a clone reported before its first instruction.
struct RunningReport {
    pid: i32,
    at_ns: [u64; 6],
    warnings: Vec<String>,
}

/// A clone on its way.
struct StartingClone {
    started: Started,
    container: Option<Container>,
    /// What held the image as long as the clone waited in its ghost.
    ghost_pin: Option<BorrowedImage>,
    /// The end on which it has waited, which it closes on its way.
    _peer_end: Option<PeerEnd>,
    warnings: Vec<String>,
    tiering: Tiering,
}

impl Node {
    /// Starts one clone for the caller behind `channel`.
    pub fn start(
        &self,
        channel: &Channel,
        call: &RestoreCall,
        fds: Vec<OwnedFd>,
    ) -> Result<(CloneNumber, Running), NodeError> {
        let cid: Cid = call
            .cid
            .parse()
            .map_err(|_| NodeError::Protocol(format!("invalid image id {}", call.cid)))?;
        let pool = self.images.pool(&call.pool)?;
        let (image, pin) = pool.attach(cid)?;
        self.check_rights(call, &image)?;
        let mut externals = externals::gather(&image.attached.image.model, call, fds)?;
        let _rings = Rings::make(&image.attached.image.model, &mut externals)?;
        if !call.same_pid && image.attached.image.model.connections().next().is_some() {
            return Err(NodeError::Connections { name: call.name.clone() });
        }
        let is_made = match &call.ghost {
            Some(id) => self.check_ghost(id, call, pool.pool(), cid)?,
            None => false,
        };
        // A clone that waits in its ghost already cannot be profiled.
        let is_watched = !is_made && self.is_watched(call, &image, &pin)?;
        let epochs = is_watched.then(|| pool.pool().epochs(cid)).transpose()?;
        let StartingClone { started, container, ghost_pin, _peer_end, warnings, tiering } =
            self.spawn(channel, call, &image, is_watched, &pin, &externals)?;
        drop(externals);
        let read = &image.attached.image;
        let plan = &read.plan;
        let followed = await_running(channel, call, &started, plan).and_then(|arrived| {
            let followed = self.registry.follow(arrived.pid, &started);
            let words = |error| format!("cannot watch the clone: {}", words::of(&error));
            Ok((arrived, followed.map_err(words).map_err(NodeError::Agent)?))
        });
        let (arrived, followed) = match followed {
            Ok(both) => both,
            Err(error) => {
                let shortage = container.as_ref().and_then(Container::shortage);
                clear(started, (pin, ghost_pin), container);
                return Err(shortage.map_or(error, NodeError::Agent));
            }
        };
        let RunningReport { pid, at_ns, warnings: others } = arrived;
        let warnings = [warnings, others].concat();
        let times =
            if is_made { woken(pid, at_ns) } else { running(pid, call.requested_ns, at_ns) };
        let watched = |epochs| {
            let watched = Watched::open(pid, &image.attached.image.model).ok()?;
            let profile = Arc::new(Profile::new(watched, Arc::clone(&pool), cid, epochs));
            self.sampler.add(&profile);
            Some(profile)
        };
        let profile = epochs.and_then(watched);
        let (name, pool, local_share) = (call.name.clone(), Arc::clone(&pool), call.local_share);
        let origin = CloneOrigin {
            pid,
            cid,
            name,
            tiering,
            profile,
            pool,
            image,
            local_share,
            pin,
            container,
        };
        let number = self.registry.add(followed, origin, started);
        Ok((number, Running { warnings, tiering, ..times }))
    }

    /// Whether a clone is to be profiled: its caller wants it, or it is its turn. A profiled clone maps its
    /// pages from the pool. Under `hybrid`, clones take turns all the same: which pages the others copy
    /// comes from profiled clones, and would go stale without them.
    fn is_watched(
        &self,
        call: &RestoreCall,
        image: &NodeImage,
        pin: &BorrowedImage,
    ) -> Result<bool, NodeError> {
        let pool = pin.pool();
        let tiering = call.tiering;
        if call.local_share.is_some() && (call.profile || tiering != Tiering::Mow) {
            return Err(NodeError::ShareTiering);
        }
        if call.profile && tiering != Tiering::Mow {
            return Err(NodeError::ProfileTiering { tiering });
        }
        if call.local_share.is_some() {
            return Ok(false);
        }
        let takes_turns = match tiering {
            Tiering::Mow => true,
            Tiering::Hybrid => image.attached.medium.tells_of_faults(),
            Tiering::Copy | Tiering::Moa => false,
        };
        let is_its_turn = || self.profile_every != 0 && image.is_next_of(self.profile_every);
        if !(call.profile || takes_turns && is_its_turn()) {
            return Ok(false);
        }
        let is_reported = profile::are_read_pages_reported(pin, &image.attached)
            .map_err(|source| NodeError::Overlay { source })?;
        if call.profile && !is_reported {
            return Err(NodeError::ProfileMedium { pool: pool.path().to_owned() });
        }
        if let Some(after) = self.reset_accessed.filter(|_| is_reported && !call.profile) {
            // Stale accessed bits do not keep a clone from starting.
            let _ = image.forget_accessed(pool, after);
        }
        Ok(is_reported)
    }

    /// The share that is to be local, and what this agent can do for it.
    fn share(&self, call: &RestoreCall, image: &NodeImage) -> Option<Share> {
        let copies = image.attached.medium.tells_of_faults()
            && (self.own_ids.is_none() || user::may_supply_pages());
        let far_nodes = || {
            let nodes = numa::nodes_without_processors().into_iter();
            nodes.filter(|node| *node < 64).fold(0, |mask, node| mask | 1 << node)
        };
        call.local_share.map(|local| Share { local, copies, far_nodes: far_nodes() })
    }

    /// Refuses what an agent that is not root cannot do, before anything of the clone is made.
    fn check_rights(&self, call: &RestoreCall, image: &NodeImage) -> Result<(), NodeError> {
        let Some(own) = &self.own_ids else { return Ok(()) };
        if call.same_pid {
            return Err(NodeError::SamePidUnprivileged { name: call.name.clone() });
        }
        let tiering = call.tiering;
        if matches!(tiering, Tiering::Moa | Tiering::Hybrid) && !user::may_supply_pages() {
            return Err(NodeError::TieringUnprivileged { tiering });
        }
        own.check(&call.name, &image.attached.image.model)
    }

    /// Has the template fork an init, or takes a ghost to become it. A clone that waits in its ghost gets
    /// its descriptors, and then the client wakes it.
    fn spawn(
        &self,
        channel: &Channel,
        call: &RestoreCall,
        image: &NodeImage,
        is_watched: bool,
        pin: &BorrowedImage,
        externals: &[OwnedFd],
    ) -> Result<StartingClone, NodeError> {
        let mode = if call.same_pid { PidMode::Same } else { PidMode::New };
        let request = image.attached.request(mode, externals.len(), self.own_ids.is_some());
        let cid = image.attached.image.id.cid;
        let tiering = if is_watched { Tiering::Mow } else { call.tiering };
        let kind = OverlayKind { tiering, start: Start::AtOnce, share: self.share(call, image) };
        let overlay = |headroom: &MemoryHeadroom| match is_watched {
            true => image.watch(),
            false => image.overlay_within(pin.pool(), kind, headroom),
        };
        let Some(id) = &call.ghost else {
            let overlay = overlay(&self.headroom)?;
            let handover = Handover { image, pin, overlay, request, externals };
            let started = handover.send(|request, fds| self.fork(cid, request, fds))?;
            return Ok(StartingClone {
                started,
                container: None,
                ghost_pin: None,
                _peer_end: None,
                warnings: Vec::new(),
                tiering,
            });
        };
        let WaitingGhost { stage, container, .. } = self.ghosts.take(id, &call.name)?;
        let (started, waited, warnings, tiering) = match stage {
            GhostStage::Empty(ghost) => {
                let overlay = overlay(&container.headroom())?;
                let handover = Handover { image, pin, overlay, request, externals };
                let started = handover.send(|request, fds| Ok(ghost.spawn(cid, request, fds)?))?;
                (started, None, Vec::new(), tiering)
            }
            GhostStage::Attached(AttachedGhost {
                started, waker, warnings, pin, tiering, ..
            }) => {
                waker.supply(externals)?;
                channel.send(&Reply::Ready, &[waker.as_fd()])?;
                // From here on the client alone can wake it.
                (started, Some((pin, waker.leave())), warnings, tiering)
            }
        };
        let (ghost_pin, _peer_end) = waited.unzip();
        Ok(StartingClone {
            started,
            container: Some(container),
            ghost_pin,
            _peer_end,
            warnings,
            tiering,
        })
    }

    /// Has the template fork an init. A template that was killed, or that lacks new mounts, is replaced
    /// first.
    fn fork(
        &self,
        cid: Cid,
        request: &Request,
        fds: &RequestFds<'_>,
    ) -> Result<Started, NodeError> {
        let mut template = locked(&self.template);
        template.renew()?;
        let first = template.spawn(cid, request, fds);
        if first.is_err() && template.has_ended() {
            *template = Template::start()?;
            return Ok(template.spawn(cid, request, fds)?);
        }
        Ok(first?)
    }
}

/// Waits until a clone runs, as long as its caller waits and for the time that the caller gives it.
fn await_running(
    channel: &Channel,
    call: &RestoreCall,
    started: &Started,
    plan: &[u8],
) -> Result<RunningReport, NodeError> {
    let patience = Duration::from_secs(call.timeout_s);
    let deadline = Instant::now().checked_add(patience);
    let mut warnings = Vec::new();
    // The clone reports that it runs just before it does. This thread, woken by that, must not displace
    // it from its processor.
    let _no_preemption = farfork_sys::sched_attr::NoPreemption::begin();
    loop {
        if !await_message(started, channel, deadline)? {
            return Err(started.too_slow(patience).into());
        }
        match started.next(plan)? {
            Event::Warned(warning) => warnings.push(warning),
            Event::Running { pid, at_ns } => return Ok(RunningReport { pid, at_ns, warnings }),
            Event::Waits { .. } => {}
            Event::Exited(_) => return Err(started.killed().into()),
        }
    }
}

/// Waits for a message of a clone that is starting. False at the deadline; an error if its caller exits
/// first.
pub fn await_message(
    started: &Started,
    channel: &Channel,
    deadline: Option<Instant>,
) -> Result<bool, NodeError> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polls =
            [PollFd::new(started, PollFlags::IN), PollFd::new(channel, PollFlags::RDHUP)];
        match poll(&mut polls, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(NodeError::Connection(errno.into())),
            Ok(0) => return Ok(false),
            Ok(_) if !polls[0].revents().is_empty() => return Ok(true),
            Ok(_) => return Err(NodeError::CallerGone),
        }
    }
}

/// Ends all processes of a clone. A process that is at work in the kernel cannot be killed at once: it
/// keeps its image, but does not keep the caller waiting. When the container is gone, the image is not pinned any more.
fn clear(
    started: Started,
    pins: (BorrowedImage, Option<BorrowedImage>),
    container: Option<Container>,
) {
    let (done, cleared) = mpsc::channel();
    thread::spawn(move || {
        started.end();
        drop(pins);
        drop(container);
        let _ = done.send(());
    });
    let _ = cleared.recv_timeout(CLEARING);
}

fn running(pid: i32, requested_ns: u64, at_ns: [u64; 6]) -> Running {
    let mut before = requested_ns;
    let mut phases_us = BTreeMap::new();
    for (phase, at) in PHASES.iter().zip(at_ns) {
        phases_us.insert((*phase).to_owned(), microseconds(at.saturating_sub(before)));
        before = at;
    }
    let total = at_ns[5].saturating_sub(requested_ns);
    Running { pid, restore_us: microseconds(total), phases_us, ..Running::default() }
}

/// The same for a clone that waited in its ghost: see [`Status::at_ns`](farfork_plan::protocol::Status).
fn woken(pid: i32, at_ns: [u64; 6]) -> Running {
    let [requested, awake, _, _, state, last] = at_ns;
    let since = |from: u64, to: u64| microseconds(to.saturating_sub(from));
    let phases = [
        ("wake", since(requested, awake)),
        ("state", since(awake, state)),
        ("leave", since(state, last)),
    ];
    let phases_us = phases.map(|(name, us)| (name.to_owned(), us)).into();
    Running { pid, restore_us: since(requested, last), phases_us, ..Running::default() }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
