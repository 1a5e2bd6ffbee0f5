//! Starting an instance: a ghost becomes a clone, with connections and output.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork_node::NodeError;
use farfork_node::client::{Client, StartedClone};
use farfork_types::wire::{DEFAULT_TIMEOUT_S, GhostCall, InheritedFd, RestoreCall};
use farfork_types::{Cid, LocalShare, Tiering};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::net::unix::pipe::Receiver;

use super::ghosts::WantedImage;
use super::requests::{RequestClass, RequestError, connect};
use super::shared::{Ghost, Promoting, Reservation, until_counted};
use super::{Inner, blocking, ghosts, regions};
use crate::api::region;
use crate::scheduler::near_share::NearShare;
use crate::scheduler::nodes::{NodesError, Output, Start, StartTimes, Started};

/// The pipes of a clone's output.
struct OutputPipes {
    readers: [OwnedFd; 2],
    writers: [OwnedFd; 2],
}

impl OutputPipes {
    fn new() -> io::Result<OutputPipes> {
        let [(out, out_end), (err, err_end)] =
            [pipe_with(PipeFlags::CLOEXEC)?, pipe_with(PipeFlags::CLOEXEC)?];
        Ok(OutputPipes { readers: [out, err], writers: [out_end, err_end] })
    }
}

fn log_warnings(pid: i32, warnings: &[String]) {
    for without in warnings {
        tracing::warn!(pid, without, "a clone runs without something that it was to have");
    }
}

impl Inner {
    /// Starts an instance with reserved memory.
    pub async fn start(
        self: Arc<Inner>,
        start: Start,
        reservation: Reservation,
    ) -> Result<Started, NodesError> {
        let begun = Instant::now();
        let node = start.node.clone();
        let failed = |reason: String| NodesError::Start { node: node.clone(), reason };
        let (name, cid) = self.image_of(&start).await?;
        let region = self.region_of(&start).await?;
        let region_bytes = region.as_ref().map(|(_, bytes)| *bytes);
        let pipes = OutputPipes::new().map_err(|error| failed(farfork_sys::words::of(&error)))?;
        let [out, err] = pipes.readers.map(receiver);
        let output = || -> io::Result<[Output; 2]> { Ok([Box::new(out?), Box::new(err?)]) };
        let output = output().map_err(|error| failed(farfork_sys::words::of(&error)))?;
        let starting = self.ghosts.starting();
        let (tiering, memory_mb) = (start.tiering, start.claim.memory_mb);
        let wanted = WantedImage { name: name.clone(), cid, tiering, memory_mb };
        let (attached, waiting) = self.ghost_for(&start, &wanted);
        let call = Restore {
            pool: self.settings.pool.clone(),
            node: node.clone(),
            fresh: self.ghosts.call(&node, memory_mb),
            tiering: start.tiering,
            local_share: start.local_share,
            is_attached: attached,
            name,
            cid,
            output: pipes.writers,
            region: region.map(|(file, _)| file),
            has_place: start.image.is_none(),
        };
        let started = self.request(&node, move || call.run(waiting)).await;
        let Restored { clone, container, share } =
            started.map_err(|error| self.failed(&node, &error))?;
        drop(starting);
        let was_attached = attached && container.is_none();
        let container = container.unwrap_or_default();
        let (pid, tiering) = (clone.running.pid, clone.running.tiering);
        reservation.started(pid);
        log_warnings(pid, &clone.running.warnings);
        let share = share.map_or_else(NearShare::default, NearShare::started_with);
        if let Some(wanted) = start.local_share.filter(|_| was_attached) {
            self.give_share(&reservation, wanted, &share);
        }
        let connect = self.connector.to(pid);
        let connect = connect.map_err(|error| failed(farfork_sys::words::of(&error)))?;
        let restore = Duration::from_secs_f64(clone.running.restore_us.max(0.0) / 1e6);
        let took = StartTimes { whole: begun.elapsed(), container, restore };
        if start.image.is_some() {
            self.record_start(&node, wanted, restore, was_attached);
        }
        let id = reservation.id;
        let ledger = Arc::clone(&self.ledger);
        let paused = Arc::new(move || ledger.paused(id));
        let ended = Box::pin(end_of(clone, reservation));
        Ok(Started {
            id,
            took,
            was_attached,
            tiering,
            share,
            paused,
            region_bytes,
            connect,
            output,
            ended,
        })
    }

    /// Records how long the start of a clone took, and has others made in the place of its ghost.
    fn record_start(
        self: &Arc<Inner>,
        node: &str,
        wanted: WantedImage,
        restore: Duration,
        was_attached: bool,
    ) {
        if let Some((mut locked, node)) = self.ledger.lock_for(node) {
            let us = u64::try_from(restore.as_micros()).unwrap_or(u64::MAX);
            if let Some(image) = locked.ledger.known_image(&wanted.name) {
                locked.ledger.record_start(node, image, us, was_attached);
            }
        }
        // In a task, so that the waiting call is not delayed.
        let (inner, node) = (Arc::clone(self), node.to_owned());
        tokio::spawn(async move { inner.refill_attached(&node, &wanted) });
    }

    /// Gives a clone its first share in the background: calls do not wait for it.
    fn give_share(
        self: &Arc<Inner>,
        reservation: &Reservation,
        wanted: LocalShare,
        share: &NearShare,
    ) {
        let Some(room) = self.ledger.promote_to(reservation.id, None, wanted) else {
            let id = reservation.id;
            return tracing::warn!(id, %wanted, "no room for a clone's share of near memory");
        };
        let (inner, change) = (Arc::clone(self), share.begin(wanted));
        tokio::spawn(async move {
            match inner.set_share(room, wanted).await {
                Ok(true) => change.met(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%wanted, %error, "a clone lacks its share"),
            }
        });
    }

    /// Has a share of a running clone near, for which there is room. Returns whether it is met.
    pub async fn set_share(
        self: Arc<Inner>,
        room: Promoting,
        wanted: LocalShare,
    ) -> Result<bool, NodesError> {
        let (node, pid) = (room.node.clone(), room.pid);
        let name = node.clone();
        let set = move || connect(&name, RequestClass::Promote)?.set_share(pid, wanted);
        let set = self.request(&node, set).await;
        until_counted(room);
        let set = set.map_err(|error| NodesError::Share { reason: error.to_string() })?;
        let (near, total) = (set.near_bytes, set.total_bytes);
        tracing::debug!(node, pid, %wanted, near, total, met = set.met, "changed a share");
        Ok(set.met)
    }

    /// Takes a waiting ghost, and starts making others in its place. Returns whether it has the
    /// image attached, and its id.
    fn ghost_for(self: &Arc<Inner>, start: &Start, wanted: &WantedImage) -> (bool, Option<String>) {
        // For the base image, empty ghosts are used.
        if start.image.is_some() {
            let (taken, stale) = self.take_attached(&start.node, wanted);
            if !stale.is_empty() {
                let inner = Arc::clone(self);
                tokio::spawn(async move { inner.stop(stale).await });
            }
            if taken.is_some() {
                return (true, taken);
            }
        }
        let memory_mb = start.claim.memory_mb;
        let waiting = self.ledger.lock_for(&start.node).and_then(|(mut locked, node)| {
            let now_us = locked.now_us;
            let taken = locked.ledger.take_empty(node, memory_mb, now_us)?;
            locked.taken(taken)
        });
        self.refill(&start.node, memory_mb);
        (false, waiting)
    }

    /// Takes a ghost with an image. Also returns ghosts to be stopped because the image has changed.
    fn take_attached(&self, node: &str, wanted: &WantedImage) -> (Option<String>, Vec<Ghost>) {
        let Some((mut locked, node)) = self.ledger.lock_for(node) else {
            return (None, Vec::new());
        };
        let now_us = locked.now_us;
        let image = locked.ledger.image(&wanted.name);
        let (taken, stale) = locked.ledger.take_attached(node, &wanted.spec(image), now_us);
        (taken.and_then(|id| locked.taken(id)), locked.left(stale))
    }

    /// The error of a failed start. A node whose agent is gone is not used until it answers. After
    /// a timeout it stays in use: the regular checks find out whether it answers.
    fn failed(&self, node: &str, error: &RequestError) -> NodesError {
        let (node, reason) = (node.to_owned(), error.to_string());
        match error {
            RequestError::Agent(gone @ (NodeError::Socket { .. } | NodeError::Connection(_))) => {
                self.lost(&node, gone);
                NodesError::Lost { node, reason }
            }
            RequestError::Lost => NodesError::Lost { node, reason },
            _ => NodesError::Start { node, reason },
        }
    }

    /// The file of the region that an instance gets, and its bytes.
    async fn region_of(&self, start: &Start) -> Result<Option<(OwnedFd, u64)>, NodesError> {
        let Some(grant) = start.region.clone() else { return Ok(None) };
        let pool = self.images.pool();
        let opened = blocking(move || regions::open(&pool, &grant)).await;
        let over = || NodesError::Images { reason: "the platform is shutting down".to_owned() };
        opened.ok_or_else(over)?.map(Some)
    }

    /// The image that an instance is a clone of.
    async fn image_of(&self, start: &Start) -> Result<(String, Cid), NodesError> {
        // The base image serves all kinds: its server executes another program where necessary.
        let name = start.image.as_ref().unwrap_or(&self.base);
        match self.images.find(name).await? {
            Some(cid) => Ok((name.clone(), cid)),
            None => {
                Err(NodesError::Images { reason: format!("image {name} does not exist any more") })
            }
        }
    }
}

fn receiver(fd: OwnedFd) -> io::Result<Receiver> {
    Receiver::from_owned_fd(fd)
}

/// The parameters of a clone's start.
struct Restore {
    pool: std::path::PathBuf,
    node: String,
    /// The request for a ghost if none waits.
    fresh: GhostCall,
    tiering: Tiering,
    local_share: Option<LocalShare>,
    /// Whether the waiting ghost has its image attached: it has mapped it already, and starts without a share.
    is_attached: bool,
    name: String,
    cid: Cid,
    output: [OwnedFd; 2],
    /// The region of its function.
    region: Option<OwnedFd>,
    /// Whether the image has a place for a region, whatever the function.
    has_place: bool,
}

/// A clone that was started.
struct Restored {
    clone: StartedClone,
    /// How long making a ghost took, if one was made.
    container: Option<Duration>,
    /// The share of near memory with which it was started.
    share: Option<LocalShare>,
}

impl Restore {
    /// Starts the clone in the waiting ghost, or in a new one if that fails or none waits.
    fn run(&self, waiting: Option<String>) -> Result<Restored, NodeError> {
        if let Some(ghost) = waiting {
            let share = self.local_share.filter(|_| !self.is_attached);
            match self.in_ghost(ghost, share) {
                Err(error) => {
                    tracing::warn!(node = self.node, reason = %error, "cannot start a clone in a waiting ghost; making another")
                }
                Ok(clone) => return Ok(Restored { clone, container: None, share }),
            }
        }
        let (container, started) = self.in_new_ghost(self.local_share)?;
        let (clone, share) = match started {
            // It may be the share that does not fit.
            Err(error) if self.local_share.is_some() => {
                tracing::warn!(node = self.node, reason = %error, "cannot start a clone with its share of near memory; starting it without");
                (self.in_new_ghost(None)?.1?, None)
            }
            started => (started?, self.local_share),
        };
        Ok(Restored { clone, container: Some(container), share })
    }

    fn in_new_ghost(
        &self,
        share: Option<LocalShare>,
    ) -> Result<(Duration, Result<StartedClone, NodeError>), NodeError> {
        let begun = Instant::now();
        let ghost = ghosts::make(&self.node, self.fresh.clone())?.id;
        Ok((begun.elapsed(), self.in_ghost(ghost, share)))
    }

    fn in_ghost(
        &self,
        ghost: String,
        local_share: Option<LocalShare>,
    ) -> Result<StartedClone, NodeError> {
        let nothing = File::open("/dev/null").map_err(NodeError::Connection)?;
        let [out, err] = &self.output;
        let mut fds = vec![nothing.as_fd(), out.as_fd(), err.as_fd()];
        let mut inherit = Vec::new();
        if self.has_place || self.region.is_some() {
            inherit.push(InheritedFd { process: None, fd: region::DESCRIPTOR });
            fds.push(self.region.as_ref().map_or(nothing.as_fd(), AsFd::as_fd));
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let call = RestoreCall {
            pool: self.pool.clone(),
            cid: self.cid.to_string(),
            name: self.name.clone(),
            detach: false,
            same_pid: false,
            inherit,
            requested_ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            ghost: Some(ghost),
            tiering: self.tiering,
            local_share,
            profile: false,
            timeout_s: DEFAULT_TIMEOUT_S,
        };
        let agent = connect(&self.node, RequestClass::Start)?;
        agent.restore(call, &fds)
    }
}

/// Waits for the exit of a clone. Dropping this ends the clone, as its agent sees the connection
/// close.
async fn end_of(clone: StartedClone, reservation: Reservation) -> Option<String> {
    let ended = exit_status(&clone.client).await;
    drop(reservation);
    Some(match ended {
        Ok((_, Some(reason))) => reason,
        Ok((status, None)) => describe(ExitStatus::from_raw(status)),
        Err(error) => farfork_sys::words::of(&error),
    })
}

/// Receives a clone's exit status from the agent, and the reason if known.
async fn exit_status(client: &Client) -> io::Result<(i32, Option<String>)> {
    // This duplicate is only polled for readability; `client` reads the message.
    let socket = UnixStream::from(client.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UnixStream::from_std(socket)?;
    loop {
        socket.readable().await?;
        let result = socket.try_io(Interest::READABLE, || match client.ended() {
            Err(NodeError::Connection(error)) => Err(error),
            other => other.map_err(|error| io::Error::other(error.to_string())),
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with status {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => "it has ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_described() {
        assert_eq!(describe(ExitStatus::from_raw(9)), "it was killed by signal 9");
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "it exited with status 3");
    }
}
