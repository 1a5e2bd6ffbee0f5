//! One client's call, from its request to its last reply.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use farfork_image::compile::{external_numbers, replaceable_numbers};
use farfork_image::model::{Model, OpenFile};
use farfork_plan::protocol::PidMode;
use farfork_restore::{Event, Started, Template};
use farfork_sys::words;
use farfork_types::Cid;
use farfork_types::wire::{Call, CloneState, Reply, RestoreCall, Running};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};

use crate::addresses;
use crate::channel::{Channel, Received};
use crate::error::NodeError;
use crate::images::{Images, NodeImage};
use crate::registry::{Clone, Registry};
use crate::usage;
use crate::user::OwnIds;

/// Names of the phases whose ends a clone reports.
const PHASES: [&str; 6] = ["init", "container", "process", "memory", "state", "leave"];

/// What all sessions of an agent share.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The ids that all clones have, if it is not root's.
    pub own_ids: Option<OwnIds>,
    /// Images in use.
    pub images: Images,
    /// Its clones.
    pub registry: Registry,
    /// What clones are forked from.
    pub template: Mutex<Template>,
}

impl Node {
    /// Serves one connection.
    pub fn serve(&self, channel: &Channel) -> Result<(), NodeError> {
        let Received { document, fds, about } = match channel.receive::<Call>() {
            Ok(Some(call)) => call,
            Ok(None) => return Ok(()),
            Err(error) => return channel.send(&Reply::Failed { message: error.to_string() }, &[]),
        };
        let result = match document {
            Call::Restore(call) => self.restore(channel, &call, fds),
            Call::Seen { .. } => Err(NodeError::Language("nothing was started".to_owned())),
            Call::Wait { pid } => self.wait(channel, about, pid),
            Call::Kill { pid, signal } => self.kill(channel, about, pid, signal),
            Call::List => self.list(channel),
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
        let running = self.start(call, fds)?;
        let pid = running.pid;
        let told = channel.send_about(&Reply::Running(running), pid);
        let Ok(Some(Received { document: Call::Seen { pid: seen }, .. })) =
            told.and_then(|()| channel.receive())
        else {
            // Whoever asked has gone, and nobody else knows of the clone.
            self.registry.get(pid).inspect(|clone| end(clone, Signal::SIGKILL));
            return Ok(());
        };
        self.registry.seen(pid, seen);
        if call.detach {
            return channel.send(&Reply::Done, &[]);
        }
        self.attend(channel, pid)
    }

    fn start(&self, call: &RestoreCall, fds: Vec<OwnedFd>) -> Result<Running, NodeError> {
        let cid: Cid = call
            .cid
            .parse()
            .map_err(|_| NodeError::Language(format!("{} is no image id", call.cid)))?;
        let pool = self.images.pool(&call.pool)?;
        let (image, pin) = pool.attach(cid)?;
        self.check_rights(call, &image)?;
        let externals = externals(&image, call, fds)?;
        if !call.same_pid && image.attached.image.model.connections().next().is_some() {
            return Err(NodeError::Connections { name: call.name.clone() });
        }
        let mode = if call.same_pid { PidMode::Same } else { PidMode::New };
        let keeps_groups = self.own_ids.is_some();
        let request = image.attached.request(mode, externals.len(), keeps_groups);
        let lock = pin.lock().unwrap_or(image.attached.pool());
        let pool_fd = image.attached.pool().as_fd();
        let started = {
            let mut template = self.template.lock().unwrap_or_else(PoisonError::into_inner);
            let first = template.spawn(cid, &request, pool_fd, lock.as_fd(), &externals);
            if first.is_err() && template.has_ended() {
                *template = Template::start()?;
                template.spawn(cid, &request, pool_fd, lock.as_fd(), &externals)?
            } else {
                first?
            }
        };
        let read = &image.attached.image;
        let plan = pool.pool().bytes(read.plan_offset, read.plan_bytes)?;
        let mut warnings = Vec::new();
        let event = loop {
            match started.next(plan) {
                Ok(Event::Warned(warning)) => warnings.push(warning),
                other => break other,
            }
        };
        match event {
            Ok(Event::Running { pid, at_ns }) => {
                self.registry.add(pid, cid, call.name.clone(), started, pin);
                Ok(Running { warnings, ..running(pid, call.requested_ns, at_ns) })
            }
            Ok(Event::Exited(_) | Event::Warned(_)) => {
                reap(&started);
                Err(farfork_restore::RestoreError::Killed { cid }.into())
            }
            Err(error) => {
                let _ = kill(Pid::from_raw(started.init_pid()), Signal::SIGKILL);
                reap(&started);
                Err(error.into())
            }
        }
    }

    /// Refuses what an agent that is not root cannot do, before anything of the clone is made.
    fn check_rights(&self, call: &RestoreCall, image: &NodeImage) -> Result<(), NodeError> {
        let Some(own) = &self.own_ids else { return Ok(()) };
        if call.same_pid {
            return Err(NodeError::SamePidUnprivileged { name: call.name.clone() });
        }
        own.check(&call.name, &image.attached.image.model)
    }

    /// Tells the end of a clone to its caller, and ends the clone when the caller goes first.
    fn attend(&self, channel: &Channel, pid: i32) -> Result<(), NodeError> {
        let Some(clone) = self.registry.get(pid) else { return self.tell_end(channel, pid) };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| self.tell_end(channel, pid));
            while !waiter.is_finished() {
                if has_hung_up(channel) {
                    end(&clone, Signal::SIGKILL);
                    break;
                }
            }
        });
        Ok(())
    }

    fn tell_end(&self, channel: &Channel, pid: i32) -> Result<(), NodeError> {
        let wait_status = self.registry.wait(pid).ok_or(NodeError::NoClone { pid })?;
        channel.send(&Reply::Exited { wait_status }, &[])
    }

    fn wait(&self, channel: &Channel, about: Option<i32>, seen: i32) -> Result<(), NodeError> {
        let no_clone = NodeError::NoClone { pid: seen };
        let pid = self.registry.pid_of(about, seen).ok_or(no_clone)?;
        self.tell_end(channel, pid)
    }

    fn kill(
        &self,
        channel: &Channel,
        about: Option<i32>,
        seen: i32,
        signal: i32,
    ) -> Result<(), NodeError> {
        let living = self.registry.pid_of(about, seen).and_then(|pid| self.registry.get(pid));
        let clone = living.ok_or(NodeError::NoClone { pid: seen })?;
        let signal = Signal::try_from(signal)
            .map_err(|_| NodeError::Agent(format!("{signal} is no signal number")))?;
        end(&clone, signal);
        channel.send(&Reply::Done, &[])
    }

    fn list(&self, channel: &Channel) -> Result<(), NodeError> {
        for clone in self.registry.living() {
            channel.send_about(&Reply::Clone(self.describe(&clone)), clone.pid)?;
        }
        channel.send(&Reply::Done, &[])
    }

    fn describe(&self, clone: &Clone) -> CloneState {
        let usage = usage::of(clone.pid);
        CloneState {
            pid: clone.seen(),
            node: self.name.clone(),
            cid: clone.cid.to_string(),
            image: clone.name.clone(),
            tiering: "mow".to_owned(),
            local_bytes: usage.local_bytes,
            pool_bytes: usage.pool_bytes,
            vmas: usage.vmas,
            faults: usage.faults,
        }
    }
}

fn end(clone: &Clone, signal: Signal) {
    if !clone.has_ended() {
        let _ = kill(Pid::from_raw(clone.pid), signal);
    }
}

fn reap(started: &Started) {
    let _ = waitpid(Pid::from_raw(started.init_pid()), None);
}

/// Whether the client has closed its end, looked at for a moment.
fn has_hung_up(channel: &Channel) -> bool {
    let mut polls = [PollFd::new(channel, PollFlags::RDHUP)];
    let moment = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut polls, Some(&moment)).is_ok_and(|_| polls[0].revents().intersects(hung_up))
}

/// The descriptors that the plan wants from outside, in its order: those that it cannot do
/// without, then those that the caller may give. Of these, one that is left out has a stand-in.
fn externals(
    image: &NodeImage,
    call: &RestoreCall,
    fds: Vec<OwnedFd>,
) -> Result<Vec<OwnedFd>, NodeError> {
    let numbers = [0, 1, 2].into_iter().chain(call.inherit.iter().copied());
    let mut supplied: BTreeMap<u32, OwnedFd> = numbers.zip(fds).collect();
    let model = &image.attached.image.model;
    let missing = |fd: u32| NodeError::MissingDescriptor {
        name: call.name.clone(),
        fd,
        description: description(model, fd),
    };
    let mut externals = Vec::new();
    for fd in external_numbers(model) {
        externals.push(supplied.remove(&fd).ok_or_else(|| missing(fd))?);
    }
    for fd in replaceable_numbers(model) {
        let given = supplied.remove(&fd);
        if given.is_none() {
            addresses::clear(model, fd);
        }
        externals.push(given.map_or_else(stand_in, Ok)?);
    }
    match supplied.into_keys().find(|fd| *fd > 2) {
        Some(fd) => Err(NodeError::NeedlessDescriptor { name: call.name.clone(), fd }),
        None => Ok(externals),
    }
}

/// What stands in a request for a descriptor that was left out.
fn stand_in() -> Result<OwnedFd, NodeError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    open("/", flags, Mode::empty()).map_err(|errno| {
        NodeError::Agent(format!("cannot open /: {}; look for limits", words::of(&errno.into())))
    })
}

/// What a descriptor from outside was.
fn description(model: &Model, fd: u32) -> String {
    let file = model.root().descriptors.iter().find(|descriptor| descriptor.fd == fd);
    match file.and_then(|descriptor| model.files.get(descriptor.file as usize)) {
        Some(OpenFile::External { description }) => description.clone(),
        _ => String::new(),
    }
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
