//! Trying an image: a clone is started in namespaces of its own, and ends where it would leave for its
//! parent's code.
//!
//! ```text
//!  thread of its own ─ new network ─► template ─► init ─► clone ─► all ops but those withheld ─► ends
//! ```
//! The trial has a template of its own, in the network namespace that the thread has made. Its clone is not
//! in the registry, and its pin is dropped at its end.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use farfork_image::compile::{externals, replaceables};
use farfork_image::model::{Model, OpenFile, Socket, SocketRole};
use farfork_image::trial::Outline;
use farfork_plan::protocol::{PidMode, Request};
use farfork_pool::BorrowedImage;
use farfork_restore::{Event, RestoreError, Started, Template};
use farfork_sys::network_lock::{self, Connection};
use farfork_sys::trial_network;
use farfork_types::Cid;
use farfork_types::wire::{Reply, SkippedOp, Verified, VerifyCall};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::NodeError;
use crate::externals::stand_in;
use crate::handover::Handover;
use crate::headroom;
use crate::images::NodeImage;
use crate::rings::Rings;
use crate::session::Node;
use crate::start::await_message;

/// Exit status of a process of the restorer that has failed.
const EXIT_REPORTED: i32 = 121;

impl Node {
    /// Tries an image for the caller behind `channel`.
    pub fn verify(&self, channel: &Channel, call: &VerifyCall) -> Result<(), NodeError> {
        let begun = Instant::now();
        let no_id = |_| NodeError::Protocol(format!("invalid image id {}", call.cid));
        let cid: Cid = call.cid.parse().map_err(no_id)?;
        let pool = self.images.pool(&call.pool)?;
        let (image, pin) = pool.attach(cid)?;
        let read = &image.attached.image;
        if let Some(own) = &self.own_ids {
            own.check(&call.cid, &read.model)?;
        }
        let plan = &read.plan;
        let outline = Outline::from_plan(plan);
        let bytes = outline.copied_bytes;
        if !self.headroom.has(bytes) || !headroom::machine_has(bytes) {
            return Err(NodeError::NoRoomForTrial { cid, bytes });
        }
        let stand_ins = StandIns::make(&read.model)?;
        let trial = Trial { call, cid, image: &image, pin: &pin, plan };
        let keeps_groups = self.own_ids.is_some();
        let outcome = thread::scope(|scope| {
            let tried = scope.spawn(|| trial.run(channel, &stand_ins.given, keeps_groups));
            tried.join().unwrap_or_else(|_| Err(failed(io::ErrorKind::Other.into())))
        });
        image.was_only_tried();
        if outcome.is_err() {
            // The caller removes the image.
            pool.forget(cid);
        }
        outcome?;
        let skipped = outline.skipped.into_iter();
        let skipped = skipped.map(|own| SkippedOp { op: own.op, why: own.why.to_owned() });
        let us = begun.elapsed().as_micros() as u64;
        let verified = Verified { ran: outline.ran, skipped: skipped.collect(), us };
        channel.send(&Reply::Verified(verified), &[])
    }
}

/// What the trial of one image needs.
struct Trial<'t> {
    call: &'t VerifyCall,
    cid: Cid,
    image: &'t NodeImage,
    pin: &'t BorrowedImage,
    plan: &'t [u8],
}

impl Trial<'_> {
    /// Runs in a thread of its own, whose network it leaves for good.
    fn run(
        &self,
        channel: &Channel,
        given: &[OwnedFd],
        keeps_groups: bool,
    ) -> Result<(), NodeError> {
        let no_network = |errno: Errno| NodeError::TrialNetwork { source: errno.into() };
        trial_network::enter().map_err(no_network)?;
        let connections = connections(&self.image.attached.image.model);
        if !connections.is_empty() {
            // Their peers are not in this network, which would answer their packets with a reset.
            network_lock::lock(None, LOCK, &connections).map_err(no_network)?;
        }
        let mut template = Template::start()?;
        let request = self.image.attached.request(PidMode::New, given.len(), keeps_groups);
        let request = Request { is_trial: 1, ..request };
        let (image, pin) = (self.image, self.pin);
        let handover = Handover { image, pin, overlay: None, request, externals: given };
        let started = handover.send(|request, fds| Ok(template.spawn(self.cid, request, fds)?))?;
        let outcome = self.outcome(channel, &started);
        started.end();
        outcome
    }

    /// Waits until the clone has ended: by itself, when all is done.
    fn outcome(&self, channel: &Channel, started: &Started) -> Result<(), NodeError> {
        let patience = Duration::from_secs(self.call.timeout_s);
        let deadline = Instant::now().checked_add(patience);
        let mut is_made = false;
        loop {
            if !await_message(started, channel, deadline)? {
                return Err(NodeError::TrialTooSlow { cid: self.cid, seconds: patience.as_secs() });
            }
            match started.next(self.plan)? {
                Event::Running { .. } => is_made = true,
                Event::Warned(_) | Event::Waits { .. } => {}
                Event::Exited(_) if !is_made => return Err(started.killed().into()),
                Event::Exited(status) if could_not_go_on(status) => {
                    return Err(NodeError::TrialFilters { cid: self.cid });
                }
                // Filters may forbid it to end in any other way than by a signal.
                Event::Exited(_) => return Ok(()),
            }
        }
    }
}

/// Name of the table of nf_tables in the network of a trial.
const LOCK: &str = "farfork-trial";

/// Those that go on, as packets name them.
fn connections(model: &Model) -> Vec<Connection> {
    let sockets = model.files.iter().filter_map(|file| match file {
        OpenFile::Socket(socket) => Some(&**socket),
        _ => None,
    });
    let connection = |socket: &Socket| match &socket.role {
        SocketRole::Established(own) => Connection::between(socket.name.as_ref()?, &own.peer),
        _ => None,
    };
    sockets.filter_map(connection).collect()
}

fn could_not_go_on(status: i32) -> bool {
    let ended = WaitStatus::from_raw(Pid::from_raw(1), status);
    matches!(ended, Ok(WaitStatus::Exited(_, EXIT_REPORTED)))
}

/// What the clone is given in the place of descriptors from outside: ends of connections, which can be
/// watched and send signals.
struct StandIns {
    given: Vec<OwnedFd>,
    _others: Vec<OwnedFd>,
    _rings: Rings,
}

impl StandIns {
    fn make(model: &Model) -> Result<StandIns, NodeError> {
        let (mut given, mut others) = (Vec::new(), Vec::new());
        for _ in externals(model) {
            let (kind, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
            let made = socketpair(AddressFamily::Unix, kind, None, flags);
            let (own, other) = made.map_err(|errno| failed(errno.into()))?;
            given.push(own);
            others.push(other);
        }
        // The clone makes optional ones itself.
        for _ in replaceables(model) {
            given.push(stand_in()?);
        }
        let _rings = Rings::make(model, &mut given)?;
        Ok(StandIns { given, _others: others, _rings })
    }
}

fn failed(source: io::Error) -> NodeError {
    RestoreError::Restorer { doing: "run the trial", source }.into()
}
