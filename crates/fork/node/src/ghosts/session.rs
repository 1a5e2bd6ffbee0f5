//! What clients ask of ghosts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farfork_image::catalog::{Catalog, ImageName};
use farfork_pool::Pool;
use farfork_types::Cid;
use farfork_types::wire::{GhostCall, GhostPhase, GhostState, Reply, RestoreCall};

use super::{CreationTimes, GhostStage, WaitingGhost};
use crate::channel::Channel;
use crate::error::NodeError;
use crate::registry::RunningClone;
use crate::session::Node;
use crate::usage;

impl Node {
    /// Makes a ghost for the client behind `channel`.
    pub fn start_ghost(&self, channel: &Channel, call: &GhostCall) -> Result<(), NodeError> {
        if self.own_ids.is_some() {
            return Err(NodeError::GhostUnprivileged);
        }
        let (ghost, container, times) = self.ghosts.make(call)?;
        let begun = Instant::now();
        let mut phases_us = phases(times);
        // A ghost of an image is that of the image's user.
        let of_image = || Some(call.image.as_ref()?.name.split_once('/')?.0.to_owned());
        let user = call.user.clone().or_else(of_image);
        let stage = match &call.image {
            None => GhostStage::Empty(ghost),
            Some(image) => {
                let stage = self.attach_ghost(ghost, &container, user.as_deref(), image)?;
                phases_us.insert("attach".to_owned(), us(begun.elapsed()));
                stage
            }
        };
        let id = self.ghosts.keep(WaitingGhost { user, stage, container });
        let mut made = self.ghosts.look(&id, |waiting| self.describe_waiting(waiting))?;
        made.state.phases_us = phases_us;
        if describe(channel, &made).is_err() {
            // The client has exited without knowing of the ghost.
            return self.ghosts.stop(&id);
        }
        Ok(())
    }

    /// Lists the ghosts that wait, and those in which clones run.
    pub fn list_ghosts(&self, channel: &Channel) -> Result<(), NodeError> {
        let mut all = self.ghosts.look_at_all(|waiting| self.describe_waiting(waiting));
        let running = self.registry.living();
        all.extend(running.iter().filter_map(|clone| self.describe_running(clone)));
        all.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        all.iter().try_for_each(|ghost| describe(channel, ghost))?;
        channel.send(&Reply::Done, &[])
    }

    /// Ends one ghost or all of them, and what runs in them.
    pub fn stop_ghosts(&self, channel: &Channel, id: Option<&str>) -> Result<(), NodeError> {
        let running = |id: &str| {
            let is_it = |clone: &&std::sync::Arc<RunningClone>| {
                clone.ghost_id().is_some_and(|own| own == id)
            };
            self.registry.living().iter().find(is_it).cloned()
        };
        let ids = match id {
            Some(id) => vec![id.to_owned()],
            None => {
                let mut ids = self.ghosts.look_at_all(|waiting| waiting.container.id.clone());
                ids.extend(self.registry.living().iter().filter_map(|clone| clone.ghost_id()));
                ids
            }
        };
        for one in ids {
            match running(&one) {
                // The watcher of the registry deletes the container.
                Some(clone) => self.end_clone(&clone),
                // Of all of them, some may end by themselves meanwhile.
                None if id.is_none() => drop(self.ghosts.stop(&one)),
                None => self.ghosts.stop(&one)?,
            }
        }
        channel.send(&Reply::Done, &[])
    }

    /// Kills a clone and waits until the watcher has seen that.
    fn end_clone(&self, clone: &RunningClone) {
        let _ = clone.signal(libc::SIGKILL);
        if let Some(number) = self.registry.find(Some(clone.pid), clone.seen()) {
            self.registry.wait(number);
        }
    }

    /// Refuses an image that the ghost `id` does not take. Returns whether the clone waits there already;
    /// then its user was checked before.
    pub fn check_ghost(
        &self,
        id: &str,
        call: &RestoreCall,
        pool: &Pool,
        cid: Cid,
    ) -> Result<bool, NodeError> {
        if call.same_pid {
            return Err(NodeError::GhostSamePid);
        }
        let user = match self.ghosts.look(id, |waiting| match &waiting.stage {
            GhostStage::Empty(_) => Ok(Some(waiting.user.clone())),
            GhostStage::Attached(attached) => {
                Node::check_attached(attached, id, call).map(|()| None)
            }
        })?? {
            None => return Ok(true),
            Some(user) => user,
        };
        user.map_or(Ok(()), |user| self.check_user(id, &user, &call.name, pool, cid))?;
        Ok(false)
    }

    /// Refuses an image that is not `user`'s.
    pub fn check_user(
        &self,
        id: &str,
        user: &str,
        name: &str,
        pool: &Pool,
        cid: Cid,
    ) -> Result<(), NodeError> {
        // A name that the client gives is only believed if the catalog says the same.
        let names = Catalog::of(pool).names_of(cid);
        let names = names.map_err(|error| NodeError::Agent(error.to_string()))?;
        let asked = name.parse::<ImageName>().ok();
        let is_asked = |name: &ImageName| asked.as_ref().is_none_or(|asked| asked == name);
        if names.iter().any(|name| name.user() == user && is_asked(name)) {
            return Ok(());
        }
        let (id, user, name) = (id.to_owned(), user.to_owned(), name.to_owned());
        Err(NodeError::GhostOfOther { id, user, name })
    }

    fn describe_waiting(&self, waiting: &WaitingGhost) -> Description {
        let WaitingGhost { user, container, stage } = waiting;
        let state = GhostState {
            id: container.id.clone(),
            node: self.name.clone(),
            user: user.clone(),
            init_pid: container.init_pid,
            local_bytes: usage::of_family(container.init_pid).local_bytes,
            kernel_bytes: container.kernel_bytes(),
            ..GhostState::default()
        };
        match stage {
            GhostStage::Empty(_) => Description { state, clone_pid: None },
            GhostStage::Attached(attached) => {
                let state = GhostState {
                    state: GhostPhase::Attached,
                    cid: Some(attached.cid.to_string()),
                    image: Some(attached.name.clone()),
                    ..state
                };
                Description { state, clone_pid: Some(attached.pid) }
            }
        }
    }

    fn describe_running(&self, clone: &RunningClone) -> Option<Description> {
        let (id, init_pid, kernel_bytes) =
            clone.ghost(|ghost| (ghost.id.clone(), ghost.init_pid, ghost.kernel_bytes()))?;
        let state = GhostState {
            id,
            node: self.name.clone(),
            user: clone.name.split_once('/').map(|(user, _)| user.to_owned()),
            state: GhostPhase::Running,
            init_pid,
            pid: Some(clone.seen()),
            cid: Some(clone.cid.to_string()),
            image: Some(clone.name.clone()),
            local_bytes: usage::of_family(init_pid).local_bytes,
            kernel_bytes,
            ..GhostState::default()
        };
        Some(Description { state, clone_pid: Some(clone.pid) })
    }
}

/// The reply about a ghost.
struct Description {
    state: GhostState,
    /// Pid of its clone as seen here.
    clone_pid: Option<i32>,
}

/// Sends a description. The kernel translates the pids for a client in another PID namespace.
fn describe(channel: &Channel, description: &Description) -> Result<(), NodeError> {
    let Description { state, clone_pid } = description;
    channel.send_about(&Reply::Ghost(state.clone()), state.init_pid)?;
    match *clone_pid {
        Some(pid) => channel.send_about(&Reply::InGhost, pid),
        None => channel.send(&Reply::InGhost, &[]),
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

fn phases(times: CreationTimes) -> BTreeMap<String, f64> {
    let CreationTimes { bundle, container, init } = times;
    [("bundle", bundle), ("container", container), ("init", init)]
        .map(|(name, time)| (name.to_owned(), us(time)))
        .into()
}
