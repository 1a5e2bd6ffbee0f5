//! One session: a client's call, from its request to its last reply.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfork_pages::Access;
use farfork_restore::Template;
use farfork_sys::words;
use farfork_types::LocalShare;
use farfork_types::wire::{Call, CloneState, Promotion, Reply, RestoreCall};
use rustix::event::{PollFd, PollFlags, poll};

use crate::channel::{Channel, Received};
use crate::elastic;
use crate::error::NodeError;
use crate::ghosts::Ghosts;
use crate::headroom::MemoryHeadroom;
use crate::images::Images;
use crate::missing;
use crate::preforked::PreforkedInits;
use crate::profile::Sampler;
use crate::promote;
use crate::registry::{CloneEnd, CloneNumber, Registry, RunningClone};
use crate::usage;
use crate::user::OwnIds;
use farfork_sys::sync::locked;

/// What all sessions of an agent share.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The ids that all clones have, if it is not root's.
    pub own_ids: Option<OwnIds>,
    /// Memory that may still be charged to clones without a container of their own.
    pub headroom: MemoryHeadroom,
    /// Images in use.
    pub images: Images,
    /// Its clones.
    pub registry: Registry,
    /// What clones are forked from.
    pub template: Arc<Mutex<Template>>,
    /// What has the next clone's init ready.
    pub preforked: Option<PreforkedInits>,
    /// What looks at watched clones.
    pub sampler: Sampler,
    /// One of so many clones of an image is profiled without a request; 0 for none.
    pub profile_every: u32,
    /// After this time the accessed bits of an image are reset, when a clone is profiled without a request.
    pub reset_accessed: Option<Duration>,
    /// Containers that wait for clones.
    pub ghosts: Ghosts,
}

impl Node {
    /// Serves one connection.
    pub fn serve(&self, channel: &Channel) -> Result<(), NodeError> {
        let Received { document, fds, about } = match channel.receive::<Call>() {
            Ok(Some(call)) => call,
            Ok(None) => return Ok(()),
            Err(error) => return channel.send(&Reply::Failed { message: error.to_string() }, &[]),
        };
        // A far process counts each half second, which would keep an agent for ever.
        if !matches!(document, Call::Count) {
            self.registry.touch();
        }
        let result = match document {
            Call::Restore(call) => self.restore(channel, &call, fds),
            Call::Verify(call) => self.verify(channel, &call),
            Call::Seen { .. } => Err(NodeError::Protocol("no clone was started".to_owned())),
            Call::Wait { pid } => self.wait(channel, about, pid),
            Call::Kill { pid, signal } => self.kill(channel, about, pid, signal),
            Call::Pause { pid, paused } => self.pause(channel, about, pid, paused),
            Call::List => self.list(channel),
            Call::Count => self.count(channel),
            Call::Promote { pid, pages } => self.promote(channel, about, pid, &pages),
            Call::SetShare { pid, local } => self.set_share(channel, about, pid, local),
            Call::ReadRate { pool } => self.read_rate(channel, &pool),
            Call::GhostStart(call) => self.start_ghost(channel, &call),
            Call::GhostList => self.list_ghosts(channel),
            Call::GhostStop { id } => self.stop_ghosts(channel, id.as_deref()),
        };
        match result {
            Err(error) => channel.send(&Reply::Failed { message: error.to_string() }, &[]),
            Ok(()) => Ok(()),
        }
    }

    fn restore(
        &self,
        channel: &Channel,
        call: &RestoreCall,
        fds: Vec<OwnedFd>,
    ) -> Result<(), NodeError> {
        let begun_unix_us = missing::now_unix_us();
        let started = self.start(channel, call, fds);
        let started = started.map_err(|error| missing::explained(error, call, begun_unix_us));
        if let Some(preforked) = &self.preforked {
            preforked.used();
        }
        let (number, running) = started?;
        let pid = running.pid;
        let sent = channel.send_about(&Reply::Running(running), pid);
        let Ok(Some(Received { document: Call::Seen { pid: seen }, .. })) =
            sent.and_then(|()| channel.receive())
        else {
            // The caller has exited, and no other process knows of the clone.
            self.registry.get(number).map(|clone| clone.signal(libc::SIGKILL));
            return Ok(());
        };
        self.registry.seen(number, seen);
        let sent = channel.send(&Reply::Done, &[]);
        if call.detach {
            return sent;
        }
        self.attend(channel, number)
    }

    /// Reports the end of a clone to its caller, and kills the clone when the caller exits first.
    fn attend(&self, channel: &Channel, number: CloneNumber) -> Result<(), NodeError> {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| self.report_end(channel, number));
            while !waiter.is_finished() {
                if has_hung_up(channel) {
                    // One that has just ended takes no signal.
                    self.registry.get(number).map(|clone| clone.signal(libc::SIGKILL));
                    break;
                }
            }
        });
        Ok(())
    }

    /// Waits for the end of a clone and reports it.
    fn report_end(&self, channel: &Channel, number: CloneNumber) -> Result<(), NodeError> {
        let Some(end) = self.registry.wait(number) else { return Ok(()) };
        let CloneEnd { wait_status, reason, missing } = end;
        channel.send(&Reply::Exited { wait_status, reason, missing }, &[])
    }

    fn wait(&self, channel: &Channel, about: Option<i32>, seen: i32) -> Result<(), NodeError> {
        let no_clone = NodeError::NoClone { pid: seen };
        let number = self.registry.find(about, seen).ok_or(no_clone)?;
        self.report_end(channel, number)
    }

    /// The living clone that a call is `about`, or that its client sees as `seen`.
    fn clone_of(&self, about: Option<i32>, seen: i32) -> Result<Arc<RunningClone>, NodeError> {
        let found = self.registry.find(about, seen).and_then(|number| self.registry.get(number));
        found.ok_or(NodeError::NoClone { pid: seen })
    }

    fn kill(
        &self,
        channel: &Channel,
        about: Option<i32>,
        seen: i32,
        signal: i32,
    ) -> Result<(), NodeError> {
        let clone = self.clone_of(about, seen)?;
        match clone.signal(signal).map_err(|error| (error.raw_os_error(), error)) {
            // It has ended, and is listed only until its image is unpinned.
            Ok(()) | Err((Some(libc::ESRCH), _)) => channel.send(&Reply::Done, &[]),
            Err((Some(libc::EINVAL), _)) => {
                Err(NodeError::Agent(format!("invalid signal number {signal}")))
            }
            Err((_, error)) => Err(NodeError::Agent(format!(
                "cannot send signal {signal} to clone {seen}: {}",
                words::of(&error)
            ))),
        }
    }

    fn pause(
        &self,
        channel: &Channel,
        about: Option<i32>,
        seen: i32,
        paused: bool,
    ) -> Result<(), NodeError> {
        let clone = self.clone_of(about, seen)?;
        let done = if paused { clone.pause() } else { clone.resume() };
        done.map_err(|error| {
            let doing = if paused { "pause" } else { "resume" };
            NodeError::Agent(format!("cannot {doing} clone {seen}: {}", words::of(&error)))
        })?;
        channel.send(&Reply::Done, &[])
    }

    fn promote(
        &self,
        channel: &Channel,
        about: Option<i32>,
        seen: i32,
        wanted: &Promotion,
    ) -> Result<(), NodeError> {
        let clone = self.clone_of(about, seen)?;
        let (pool, image) = (&clone.pool, &clone.image);
        // Records first what the clone has touched itself.
        if let Some(profile) = &clone.profile {
            profile.finish();
        }
        let access = Access::from(pool.pool().access(clone.cid)?);
        let pages = promote::wanted(&image.attached.image.model, access, wanted)?;
        let promoted = promote::promote(clone.pid, image, &pages, &clone.promoted_bytes)
            .map_err(|source| NodeError::Promotion { pid: seen, source })?;
        channel.send(&Reply::Promoted(promoted), &[])
    }

    fn set_share(
        &self,
        channel: &Channel,
        about: Option<i32>,
        seen: i32,
        local: LocalShare,
    ) -> Result<(), NodeError> {
        let clone = self.clone_of(about, seen)?;
        let access = Access::from(clone.pool.pool().access(clone.cid)?);
        let set = elastic::set_share(&clone, &access, local)?;
        channel.send(&Reply::ShareSet(set), &[])
    }

    fn read_rate(&self, channel: &Channel, pool: &Path) -> Result<(), NodeError> {
        let bytes_per_s = self.images.pool(pool)?.pool().read_rate()?;
        channel.send(&Reply::ReadRate { bytes_per_s }, &[])
    }

    fn list(&self, channel: &Channel) -> Result<(), NodeError> {
        for clone in self.registry.living() {
            channel.send_about(&Reply::Clone(self.describe(&clone)), clone.pid)?;
        }
        channel.send(&Reply::Done, &[])
    }

    /// Without a look at their memory: this is asked again and again.
    fn count(&self, channel: &Channel) -> Result<(), NodeError> {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for clone in self.registry.living() {
            *counts.entry(clone.cid.to_string()).or_default() += 1;
        }
        for (cid, count) in counts {
            channel.send(&Reply::Clones { cid, count }, &[])?;
        }
        channel.send(&Reply::Done, &[])
    }

    fn describe(&self, clone: &RunningClone) -> CloneState {
        let usage = usage::of_family(clone.pid);
        let placement = usage::placement_of_family(clone.pid);
        CloneState {
            pid: clone.seen(),
            node: self.name.clone(),
            cid: clone.cid.to_string(),
            image: clone.name.clone(),
            tiering: clone.tiering.to_string(),
            is_profiled: clone.profile.as_ref().is_some_and(|profile| profile.goes_on()),
            local_bytes: usage.local_bytes,
            near_bytes: placement.near_bytes,
            far_bytes: placement.far_bytes,
            local_permille: *locked(&clone.local_share),
            promoted_bytes: clone.promoted_bytes.load(Ordering::Relaxed),
            pool_bytes: usage.pool_bytes,
            vmas: usage.vmas,
            faults: usage.faults,
        }
    }
}

/// Whether the client closes its end within a second.
fn has_hung_up(channel: &Channel) -> bool {
    let mut polls = [PollFd::new(channel, PollFlags::RDHUP)];
    let moment = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut polls, Some(&moment)).is_ok_and(|_| polls[0].revents().intersects(hung_up))
}
