//! What a function does with what reaches it, as its task in the platform does.

use farfork_platform::api::StartKind;
use farfork_platform::simulated::agents::{Ghost, GhostImage, MAKE_US};
use farfork_platform::simulated::processors::NO_LIMIT;
use farfork_scheduler::{
    AboutToRest, Due, History, ImageSpec, ImageState, NoRoom, NotMade, RestEffect, Sharing,
    StartOrder,
};
use farfork_types::{Cid, LocalShare, Tiering};

use super::Watch;
use super::agenda::{Event, Link};
use super::calls::Call;
use super::machine::{HOPS, LIMIT_US, Machine, Step};
use super::pauses::OnProcessors;
use super::task::{Message, Task};
use super::world::{Around, Instance};
use crate::profile::BASE_US;
use crate::shares::Held;

impl<W: Watch> Machine<'_, W> {
    fn task(&mut self, function: u32) -> &mut Task {
        &mut self.tasks[function as usize]
    }

    fn state(&mut self, function: u32) -> &mut farfork_scheduler::Function {
        &mut self.task(function).state
    }

    /// Has a function handle all that has reached it: messages first, as they may make instances idle for the
    /// next call.
    pub fn poll(&mut self, function: u32) {
        self.wait_for_room(function, false);
        loop {
            let now_us = self.now_us;
            let task = self.task(function);
            // A notification counts only if nothing else is to be done.
            let has_room = std::mem::take(&mut task.has_room);
            if let Some(message) = task.inbox.pop_front() {
                self.handle(function, message);
            } else if let Some(call) = task.commands.pop_front() {
                task.state.called(now_us, call as u64, now_us);
                let payload_bytes = self.calls.get(call).map(|open| open.call.payload_bytes);
                self.state(function).called_with(now_us, payload_bytes.unwrap_or(0));
            } else if task.state.due_us().is_some_and(|at| at <= now_us) {
            } else if has_room && task.state.scaling().retry_us().is_some() {
                task.state.room();
            } else {
                break;
            }
            self.dispatch(function);
            self.start(function);
            self.tend(function);
        }
        self.task(function).acted = self.agenda.place();
        let waits = self.state(function).scaling().retry_us().is_some();
        self.wait_for_room(function, waits);
        self.set_wake(function);
    }

    /// A timer has ended. Returns when it was set, if something is due by now.
    pub fn woken(&mut self, function: u32) -> Option<u64> {
        let now_us = self.now_us;
        let is_due = self.state(function).due_us().is_some_and(|at| at <= now_us);
        if !is_due {
            self.set_wake(function);
        }
        is_due.then(|| self.task(function).acted)
    }

    /// Sleeps until something is due.
    fn set_wake(&mut self, function: u32) {
        let Some(due_us) = self.state(function).due_us() else { return };
        let (at_us, now_us) = (self.timer(due_us, 0), self.now_us);
        let task = self.task(function);
        // A wake that is too early does nothing, and is cheaper than one for each change.
        if task.wake_us.is_none_or(|before| before <= now_us || at_us < before) {
            task.wake_us = Some(at_us);
            self.agenda.add(at_us, Event::Wake(function));
        }
    }

    fn handle(&mut self, function: u32, message: Message) {
        let now_us = self.now_us;
        match message {
            Message::Evict(id) => {
                if self.state(function).forget(id) {
                    self.end(id);
                }
            }
            Message::Reclaim => {
                if self.state(function).has_image() {
                    self.state(function).do_without_image();
                    self.remove_image(function);
                }
            }
            Message::Started(id) => {
                self.state(function).started();
                self.rest(function, id);
            }
            Message::LostRoom => self.state(function).lost_room(now_us),
            Message::CallEnded { call, instance, run_us, cold_us } => {
                self.state(function).call_ended(now_us, call as u64, run_us, cold_us);
                if let Some(id) = instance {
                    self.answered(function, id);
                }
            }
            Message::Checkpointed(id, result) => {
                self.state(function).checkpoint_ended();
                match result {
                    Ok(()) => self.use_image(function),
                    Err(why) => self.not_made(function, why),
                }
                self.rest(function, id);
            }
        }
    }

    /// An instance has answered a call: it is checkpointed or rests.
    fn answered(&mut self, function: u32, id: u64) {
        let pool = self.world.pool();
        let Some(one) = self.world.instances.get(&id) else { return };
        let task = &mut self.tasks[function as usize];
        if let Some(usage) = self.world.agents.ledger.usage(id) {
            task.state.measured(usage, one.tiering);
        }
        // Most functions have an image, or are making one.
        let due = match task.state.image() {
            ImageState::None { .. } => task.state.is_due(&one.history, pool, &self.advice),
            _ => Due::No,
        };
        match due {
            Due::Now => {
                task.state.checkpoint();
                // It prepares first: a request, and its answer.
                self.after(2 * HOPS, Step::Checkpoint(id));
            }
            Due::NoRoom(bytes) => {
                self.world.usage.want(bytes);
                self.rest(function, id);
            }
            Due::No => self.rest(function, id),
        }
    }

    /// An instance's checkpoint begins.
    pub fn begin_checkpoint(&mut self, id: u64) {
        let Some(function) = self.world.instances.get(&id).map(|one| one.function) else { return };
        let behaviour = &self.functions[function as usize].behaviour;
        let (us, bytes) = (behaviour.checkpoint_us, behaviour.footprint.image_bytes);
        self.world.agents.checkpoint(id, true);
        self.wait_for_agents();
        self.transfer(Link::Pool, bytes, us, Event::Checkpointed(id));
    }

    /// A checkpoint has ended: the pool has room for the image, or not.
    pub fn checkpointed(&mut self, id: u64) {
        let Some(function) = self.world.instances.get(&id).map(|one| one.function) else { return };
        let image_bytes = self.functions[function as usize].behaviour.footprint.image_bytes;
        self.world.agents.checkpoint(id, false);
        self.wait_for_agents();
        let put = self.world.put_image(function, image_bytes);
        let put =
            put.map_err(|(asked_bytes, free_bytes)| NotMade::NoRoom { asked_bytes, free_bytes });
        self.changed();
        self.send(function, Message::Checkpointed(id, put));
    }

    fn use_image(&mut self, function: u32) {
        let task = &mut self.tasks[function as usize];
        task.state.image_is_there(true);
        self.world.usage.put(function, task.state.saved_us());
    }

    fn not_made(&mut self, function: u32, why: NotMade) {
        let free_now_bytes = self.world.pool().free_below(1000);
        let after = self.state(function).image_not_made(why, free_now_bytes);
        if let Some(bytes) = after.wanted_bytes {
            self.world.usage.want(bytes);
        }
    }

    fn remove_image(&mut self, function: u32) {
        let image = self.tasks[function as usize].image.take();
        self.world.remove_image(function, image);
        self.wait_for_agents();
        self.changed();
    }

    /// Makes an instance idle, for a while.
    fn rest(&mut self, function: u32, id: u64) {
        let Some(one) = self.world.instances.get(&id) else { return };
        let task = &mut self.tasks[function as usize];
        let about_to_rest = AboutToRest {
            calls: one.history.calls,
            reads_from_pool: one.tiering == Some(Tiering::Mow),
        };
        let load = self.world.agents.ledger.load(one.node);
        let window = task.state.window(about_to_rest, load, false, &self.advice);
        if window.promotes {
            self.promote(id);
        }
        self.world.agents.end_work(id);
        self.wait_for_agents();
        let task = &mut self.tasks[function as usize];
        let calls = task.state.rest(self.now_us, id, window, self.freeze_after_us);
        let bytes = task.state.local_bytes();
        if self.world.fleet.set_idle(self.now_us, id, Some(calls), bytes) {
            self.room();
        }
    }

    /// Sends calls to idle instances.
    fn dispatch(&mut self, function: u32) {
        loop {
            let task = &mut self.tasks[function as usize];
            let Some(call) = task.state.next() else { return };
            let agents = &mut self.world.agents;
            let sent = task.state.send(|id| agents.begin_work(id));
            self.wait_for_agents();
            let Some(id) = sent else { return };
            self.send_call(id, call as usize);
        }
    }

    fn send_call(&mut self, id: u64, number: usize) {
        self.world.fleet.set_idle(self.now_us, id, None, None);
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        one.call = Some(number);
        self.after(HOPS, Step::Receive(id));
    }

    /// An instance has received its call, before which it was thawed. Without its code it loads that first.
    pub fn receive(&mut self, id: u64) {
        self.world.agents.ledger.thawed(id);
        let Some(one) = self.world.instances.get(&id) else { return };
        let (Some(number), load_us) = (one.call, one.load_us) else { return };
        match load_us {
            Some(_) => self.weigh(id),
            None => self.change_share(id),
        }
        match load_us {
            None => self.run_call(id, number),
            Some(us) if us > LIMIT_US => self.work(id, LIMIT_US, Event::CallEnded(id, false)),
            Some(us) => self.load(id, us),
        }
    }

    /// An instance begins to load its code.
    fn load(&mut self, id: u64, us: u64) {
        let Some(function) = self.world.instances.get(&id).map(|one| one.function) else { return };
        if self.processors.is_empty() {
            return self.work(id, us, Event::Loaded(id));
        }
        let busy_us = self.functions[function as usize].behaviour.load_busy_us(us);
        let (rest_us, since_us) = (us - busy_us, self.now_us);
        self.share_processors(id, OnProcessors { busy_us, rest_us, since_us }, Event::Loaded(id));
    }

    /// An instance has loaded its code, and runs its call.
    pub fn loaded(&mut self, id: u64) {
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        one.loaded_us = one.work.map(|work| now_us - work.began_us);
        if let Some(call) = one.call {
            self.run_call(id, call);
        }
    }

    /// An instance's memory is known.
    pub fn weigh(&mut self, id: u64) {
        let Some(one) = self.world.instances.get(&id) else { return };
        let behaviour = &self.functions[one.function as usize].behaviour;
        let held = behaviour.held(one.is_clone, one.share);
        self.world.weigh(id, held);
        self.wait_for_agents();
        self.changed();
    }

    fn run_call(&mut self, id: u64, number: usize) {
        let Some(open) = self.calls.get_mut(number) else { return };
        let behaviour = &self.functions[open.call.function as usize].behaviour;
        let share = self.world.instances.get(&id).and_then(|one| one.share);
        if let Some(share) = share {
            let Call { duration_us, payload_bytes, .. } = open.call;
            open.run_us = behaviour.shares.run_us(duration_us, payload_bytes, share);
        }
        let run_us = open.run_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let (Held { pool_bytes, far_bytes, .. }, now_us) = (one.held, self.now_us);
        one.run_since_us = Some(now_us);
        let link = if far_bytes > 0 { (Link::Far, far_bytes) } else { (Link::Pool, pool_bytes) };
        if !self.transfer_of_run(link.0, link.1, run_us, id) {
            self.go_on(id, run_us);
        }
    }

    /// An instance runs its call for so long, without others on a link.
    pub fn go_on(&mut self, id: u64, run_us: u64) {
        // Its time limit counts what it has moved over a link.
        let since_us = self.world.instances.get(&id).and_then(|one| one.run_since_us);
        let left_us = LIMIT_US - since_us.map_or(0, |us| self.now_us - us).min(LIMIT_US);
        match self.processors.is_empty() {
            true => self.work(id, run_us.min(left_us), Event::CallEnded(id, run_us <= left_us)),
            false => {
                let since_us = since_us.unwrap_or(self.now_us);
                let all = OnProcessors { busy_us: run_us, rest_us: 0, since_us };
                self.share_processors(id, all, Event::CallEnded(id, true));
            }
        }
    }

    /// A run has ended: well, or at its time limit, with which its instance ends.
    pub fn call_ended(&mut self, id: u64, is_well: bool) {
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let (function, kind) = (one.function, one.kind);
        let Some(call) = one.call.take() else { return };
        one.load_us = None;
        let loaded_us = one.loaded_us.take();
        let (took_us, open) = (one.took_us, self.calls.get(call).copied());
        let (share, near_bytes) = (one.share, one.held.near_bytes);
        one.work = None;
        let run_us = one.run_since_us.take().map_or(0, |since_us| now_us - since_us);
        if self.links.are_limited()
            && let Some(open) = self.calls.get_mut(call)
        {
            open.run_us = run_us;
        }
        if is_well && let Some(one) = self.world.instances.get_mut(&id) {
            one.history.answered(run_us);
            one.kind = StartKind::Warm;
            if let (Some(share), Some(open)) = (share, open) {
                let payload_bytes = open.call.payload_bytes;
                self.state(function).ran(now_us, payload_bytes, share, run_us, near_bytes);
            }
        } else {
            self.end(id);
        }
        let message = Message::CallEnded {
            call,
            instance: is_well.then_some(id),
            run_us: is_well.then_some(run_us),
            cold_us: loaded_us.map(|us| took_us + us),
        };
        self.send(function, message);
        self.finish(call, is_well.then_some(kind));
    }

    /// Starts the instances that are lacking, as far as there is room.
    fn start(&mut self, function: u32) {
        let now_us = self.now_us;
        for _ in 0..self.state(function).lacking(now_us) {
            let task = &mut self.tasks[function as usize];
            let around = Around { world: &self.world, now_us, image: task.image };
            match task.state.start(now_us, &around, &self.advice) {
                Ok(order) => self.start_on(function, &order),
                Err(no_room) => return self.make_room(no_room),
            }
        }
    }

    fn start_on(&mut self, function: u32, order: &StartOrder) {
        if order.is_clone {
            self.world.usage.start(self.now_us, &function);
        }
        let node = self.world.agents.ledger.numbered(order.node.number());
        let Some(node) = node else { return };
        let behaviour = &self.functions[function as usize].behaviour;
        let load_us = (!order.is_clone).then(|| behaviour.cold_us.saturating_sub(BASE_US));
        let one = Instance {
            function,
            node,
            kind: if order.is_clone { StartKind::Clone } else { StartKind::Cold },
            is_clone: order.is_clone,
            tiering: order.is_clone.then_some(order.tiering),
            history: History::default(),
            most_bytes: order.most_bytes,
            restore_us: 0,
            took_us: 0,
            load_us,
            share: None,
            payload_bytes: 0,
            held: Held::default(),
            call: None,
            loaded_us: None,
            start_since_us: None,
            run_since_us: None,
            work: None,
            is_paused: false,
            is_local: false,
        };
        let (share, payload_bytes) = self.share(function).unzip();
        let one = Instance { share, payload_bytes: payload_bytes.unwrap_or(0), ..one };
        let Some(id) = self.world.reserve(order, one) else {
            return self.send(function, Message::LostRoom);
        };
        if order.is_clone {
            self.weigh(id);
        }
        self.take_ghost(id, order);
        self.changed();
        self.after(0, Step::Start(id));
    }

    /// An instance begins to start.
    pub fn begin_start(&mut self, id: u64) {
        let Some(one) = self.world.instances.get(&id) else { return };
        let copies = one.kind == StartKind::Clone;
        let (bytes, took_us) = (if copies { one.held.near_bytes } else { 0 }, one.took_us);
        if !self.processors.is_empty()
            && let Some(one) = self.world.instances.get_mut(&id)
        {
            one.start_since_us = Some(self.now_us);
        }
        self.transfer_of_start(Link::Pool, bytes, took_us, id);
    }

    /// An instance's start goes on for so long, without others on a link.
    pub fn go_on_starting(&mut self, id: u64, us: u64) {
        let Some(one) = self.world.instances.get(&id) else { return };
        if self.processors.is_empty() {
            return self.agenda.add(self.timer(self.now_us, us), Event::Started(id));
        }
        // Making a container needs none.
        let behaviour = &self.functions[one.function as usize].behaviour;
        let busy_us = behaviour.start_busy_us(one.kind, one.restore_us).min(us);
        let part = OnProcessors { busy_us, rest_us: us - busy_us, since_us: NO_LIMIT };
        self.share_processors(id, part, Event::Started(id));
    }

    /// An instance starts in a ghost, or in a container that is made for it.
    fn take_ghost(&mut self, id: u64, order: &StartOrder) {
        let Some(one) = self.world.instances.get(&id) else { return };
        let (function, tiering) = (one.function, one.tiering);
        let image = self.image(function, tiering);
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let ghost = self.world.agents.take(
            one.node,
            order.claim.memory_mb,
            image.as_ref(),
            self.now_us,
            &self.advice,
        );
        let behaviour = &self.functions[one.function as usize].behaviour;
        if ghost == Ghost::Attached {
            one.kind = StartKind::Ghost;
        }
        one.restore_us = match one.kind {
            StartKind::Ghost => behaviour.ghost_us,
            StartKind::Clone => behaviour.clone_us,
            _ => BASE_US,
        };
        one.took_us = one.restore_us + if ghost == Ghost::New { MAKE_US } else { 0 };
        self.wait_for_agents();
    }

    /// The image of a clone with this tiering policy, if ghosts may have it.
    fn image(&mut self, function: u32, tiering: Option<Tiering>) -> Option<ImageSpec> {
        let (task, tiering) = (&mut self.tasks[function as usize], tiering?);
        if task.image.is_none() {
            task.image = self.world.agents.image(&task.image_name);
        }
        let memory_mb = task.state.claim().memory_mb;
        Some(ImageSpec { image: task.image?, cid: Cid::NIL, tiering, memory_mb })
    }

    /// A start has ended well.
    pub fn started(&mut self, id: u64) {
        self.start_took(id);
        let Some(function) = self.world.started(id) else { return };
        let at = (self.now_us, self.world.pool());
        let ghost_bytes = self.functions[function as usize].behaviour.footprint.clone_bytes;
        let tiering = self.world.instances.get(&id).and_then(|one| one.tiering);
        let spec = self.image(function, tiering);
        let Some(one) = self.world.instances.get(&id) else { return };
        let image = spec.map(|spec| GhostImage { spec, ghost_bytes });
        let was_attached = one.kind == StartKind::Ghost;
        let clone = image.as_ref().map(|image| (image, one.restore_us, was_attached));
        self.world.agents.started(one.node, clone, at, &self.advice);
        self.wait_for_agents();
        self.send(function, Message::Started(id));
    }

    /// A start that shares processors takes as long as it has taken.
    fn start_took(&mut self, id: u64) {
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let Some(since_us) = one.start_since_us.take() else { return };
        one.work = None;
        let make_us = one.took_us - one.restore_us;
        one.took_us = now_us - since_us;
        one.restore_us = one.took_us.saturating_sub(make_us);
    }

    /// The share of near memory of the instance that was ordered last, and the arguments that it is for.
    fn share(&mut self, function: u32) -> Option<(LocalShare, u64)> {
        let task = &mut self.tasks[function as usize];
        let call = task.state.scaling().starts_for()?;
        let payload_bytes = self.calls.get(call as usize)?.call.payload_bytes;
        let share = task.state.share(self.now_us, payload_bytes, &self.advice)?;
        Some((share, payload_bytes))
    }

    /// Changes the share of an instance that is about to serve a call, if another one is better by now. A clone's can
    /// only grow: its pages do not go back into the pool.
    fn change_share(&mut self, id: u64) {
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let Some(share) = one.share else { return };
        let state = &mut self.tasks[one.function as usize].state;
        let (payload_bytes, can_shrink) = (one.payload_bytes, !one.is_clone);
        let of = Sharing { payload_bytes, share, can_shrink };
        if let Some(better) = state.share_change(self.now_us, of, &self.advice) {
            one.share = Some(better);
            self.weigh(id);
        }
    }

    /// No node has room: evicts others, waits, or gives up calls.
    fn make_room(&mut self, no_room: NoRoom) {
        match no_room {
            NoRoom::Wait => {}
            NoRoom::Evict(node, ids) => {
                if let Some(node) = self.world.agents.ledger.numbered(node.number()) {
                    self.evict(node, &ids);
                }
            }
            NoRoom::Refuse(call) => {
                if let Some(call) = call {
                    self.finish(call as usize, None);
                }
            }
            NoRoom::NoNode(calls) => {
                calls.into_iter().for_each(|call| self.finish(call as usize, None));
            }
        }
    }

    /// Ends idle instances whose windows are over, and freezes those that are due.
    fn tend(&mut self, function: u32) {
        let now_us = self.now_us;
        for effect in self.state(function).tend(now_us, false) {
            match effect {
                RestEffect::End(id) => self.end(id),
                RestEffect::Freeze(id) => self.after(0, Step::Freeze(id)),
            }
        }
    }
}
