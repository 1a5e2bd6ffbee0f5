//! Starting a clone: from the call to its first instruction, or to words why not.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use farfork_plan::protocol::{PidMode, Request};
use farfork_restore::{Event, Hands, Started, Template};
use farfork_sys::words;
use farfork_types::wire::{RestoreCall, Running};
use farfork_types::{Cid, Tiering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::channel::Channel;
use crate::error::NodeError;
use crate::externals;
use crate::ghosts::{Container, Waiting};
use crate::images::{NodeImage, Pin};
use crate::profile::{Profile, Watched};
use crate::registry::{Number, Origin};
use crate::session::Node;

/// Names of the phases whose ends a clone reports.
const PHASES: [&str; 6] = ["init", "container", "process", "memory", "state", "leave"];
/// How long a caller waits for what is left of a clone that could not be started.
const CLEARING: Duration = Duration::from_secs(5);

/// What a clone said before its first instruction.
struct Arrived {
    pid: i32,
    at_ns: [u64; 6],
    warnings: Vec<String>,
}

impl Node {
    /// Starts one clone for the caller behind `channel`.
    pub fn start(
        &self,
        channel: &Channel,
        call: &RestoreCall,
        fds: Vec<OwnedFd>,
    ) -> Result<(Number, Running), NodeError> {
        let cid: Cid = call
            .cid
            .parse()
            .map_err(|_| NodeError::Language(format!("{} is no image id", call.cid)))?;
        let pool = self.images.pool(&call.pool)?;
        let (image, pin) = pool.attach(cid)?;
        self.check_rights(call, &image)?;
        let externals = externals::gather(&image.attached.image.model, call, fds)?;
        if !call.same_pid && image.attached.image.model.connections().next().is_some() {
            return Err(NodeError::Connections { name: call.name.clone() });
        }
        if let Some(id) = &call.ghost {
            self.check_ghost(id, call, pool.pool(), cid)?;
        }
        let is_watched = self.is_watched(call, &image)?;
        let epochs = is_watched.then(|| pool.pool().epochs(cid)).transpose()?;
        let (started, container) = self.spawn(call, (&image, is_watched), &pin, &externals)?;
        drop(externals);
        let read = &image.attached.image;
        let plan = pool.pool().bytes(read.plan_offset, read.plan_bytes)?;
        let followed = arrived(channel, call, &started, plan).and_then(|arrived| {
            let followed = self.registry.follow(arrived.pid, &started);
            let words = |error| format!("cannot watch the clone: {}", words::of(&error));
            Ok((arrived, followed.map_err(words).map_err(NodeError::Agent)?))
        });
        let (arrived, followed) = match followed {
            Ok(both) => both,
            Err(error) => {
                let shortage = container.as_ref().and_then(Container::shortage);
                clear(started, pin, container);
                return Err(shortage.map_or(error, NodeError::Agent));
            }
        };
        let Arrived { pid, at_ns, warnings } = arrived;
        let watched = |epochs| {
            let watched = Watched::open(pid, &image.attached.image.model).ok()?;
            let profile = Arc::new(Profile::new(watched, Arc::clone(&pool), cid, epochs));
            self.sampler.add(&profile);
            Some(profile)
        };
        let profile = epochs.and_then(watched);
        let (name, tiering) = (call.name.clone(), call.tiering);
        let origin = Origin { pid, cid, name, tiering, profile };
        let number = self.registry.add(followed, origin, started, (pin, container));
        Ok((number, Running { warnings, ..running(pid, call.requested_ns, at_ns) }))
    }

    /// Whether a clone is to tell which pages it touches: its caller wants it, or it is its turn. The
    /// policies that supply pages one by one have no use for watching.
    fn is_watched(&self, call: &RestoreCall, image: &NodeImage) -> Result<bool, NodeError> {
        let can_be = call.tiering == Tiering::Mow;
        if call.profile && !can_be {
            return Err(NodeError::ProfileTiering { tiering: call.tiering });
        }
        let is_its_turn = || self.profile_every != 0 && image.is_next_of(self.profile_every);
        Ok(call.profile || can_be && is_its_turn())
    }

    /// Refuses what an agent that is not root cannot do, before anything of the clone is made.
    fn check_rights(&self, call: &RestoreCall, image: &NodeImage) -> Result<(), NodeError> {
        let Some(own) = &self.own_ids else { return Ok(()) };
        if call.same_pid {
            return Err(NodeError::SamePidUnprivileged { name: call.name.clone() });
        }
        own.check(&call.name, &image.attached.image.model)
    }

    /// Has a ghost become the init, which nobody else can have after that, or the template fork one.
    fn spawn(
        &self,
        call: &RestoreCall,
        (image, is_watched): (&NodeImage, bool),
        pin: &Pin,
        externals: &[OwnedFd],
    ) -> Result<(Started, Option<Container>), NodeError> {
        let mode = if call.same_pid { PidMode::Same } else { PidMode::New };
        let keeps_groups = self.own_ids.is_some();
        let overlay = if is_watched { image.watch()? } else { image.overlay(call.tiering)? };
        let request = Request {
            overlay_bytes: overlay.as_ref().map_or(0, |overlay| overlay.bytes),
            ..image.attached.request(mode, externals.len(), keeps_groups)
        };
        let cid = image.attached.image.extents.cid;
        let pool = image.attached.pool();
        let hands = Hands {
            pool: pool.as_fd(),
            pin: pin.lock().unwrap_or(pool).as_fd(),
            overlay: overlay.as_ref().map(|overlay| overlay.as_fd()),
            externals,
        };
        if let Some(id) = &call.ghost {
            let Waiting { ghost, container, .. } = self.ghosts.take(id, &call.name)?;
            return Ok((ghost.spawn(cid, &request, &hands)?, Some(container)));
        }
        Ok((self.fork(cid, &request, &hands)?, None))
    }

    /// Has the template fork an init, or another template if somebody has killed it.
    fn fork(&self, cid: Cid, request: &Request, hands: &Hands<'_>) -> Result<Started, NodeError> {
        let mut template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
        let first = template.spawn(cid, request, hands);
        if first.is_err() && template.has_ended() {
            *template = Template::start()?;
            return Ok(template.spawn(cid, request, hands)?);
        }
        Ok(first?)
    }
}

/// Waits until a clone runs, as long as its caller waits and for the time that the caller gives it.
fn arrived(
    channel: &Channel,
    call: &RestoreCall,
    started: &Started,
    plan: &[u8],
) -> Result<Arrived, NodeError> {
    let patience = Duration::from_secs(call.timeout_s);
    let deadline = Instant::now().checked_add(patience);
    let mut warnings = Vec::new();
    loop {
        if !speaks(started, channel, deadline)? {
            return Err(started.too_slow(patience).into());
        }
        match started.next(plan)? {
            Event::Warned(warning) => warnings.push(warning),
            Event::Running { pid, at_ns } => return Ok(Arrived { pid, at_ns, warnings }),
            Event::Exited(_) => return Err(started.killed().into()),
        }
    }
}

/// Whether a clone on its way has something to say before the deadline; an error if its caller goes
/// first.
fn speaks(
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

/// Ends what there is of a clone. A process that cannot be killed for now, as it is at work in the
/// kernel, keeps its image but not the caller waiting.
fn clear(started: Started, pin: Pin, container: Option<Container>) {
    let (done, cleared) = mpsc::channel();
    thread::spawn(move || {
        started.end();
        drop(pin);
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
    Running { pid, restore_us: microseconds(total), phases_us, warnings: Vec::new() }
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
