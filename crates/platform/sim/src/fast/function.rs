//! What a function does with what reaches it, as its task in the platform does.

use farfork_platform::api::StartKind;
use farfork_scheduler::{
    AboutToRest, Due, History, ImageState, NoRoom, NotMade, RestEffect, StartOrder,
};
use farfork_types::Tiering;

use super::Watch;
use super::agenda::Event;
use super::machine::{LIMIT_US, Machine};
use super::task::{Message, Task};
use super::world::{Around, Instance};
use crate::profile::{BASE_US, CHECKPOINT_US};

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
        if let Some(usage) = self.world.ledger.usage(id) {
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
                let at_us = self.timer(self.now_us, CHECKPOINT_US);
                self.agenda.add(at_us, Event::Checkpointed(id));
            }
            Due::NoRoom(bytes) => {
                self.world.usage.want(bytes);
                self.rest(function, id);
            }
            Due::No => self.rest(function, id),
        }
    }

    /// A checkpoint has ended: the pool has room for the image, or not.
    pub fn checkpointed(&mut self, id: u64) {
        let Some(function) = self.world.instances.get(&id).map(|one| one.function) else { return };
        let image_bytes = self.functions[function as usize].behaviour.footprint.image_bytes;
        let name = &self.tasks[function as usize].image_name;
        let put = self.world.put_image(name, image_bytes);
        let put =
            put.map_err(|(asked_bytes, free_bytes)| NotMade::NoRoom { asked_bytes, free_bytes });
        self.changed();
        self.send(function, Message::Checkpointed(id, put));
    }

    fn use_image(&mut self, function: u32) {
        let task = &mut self.tasks[function as usize];
        task.state.image_is_there(true);
        self.world.usage.put(&task.image_name, task.state.saved_us());
    }

    fn not_made(&mut self, function: u32, why: NotMade) {
        let free_now_bytes = self.world.pool().free_below(1000);
        let after = self.state(function).image_not_made(why, free_now_bytes);
        if let Some(bytes) = after.wanted_bytes {
            self.world.usage.want(bytes);
        }
    }

    fn remove_image(&mut self, function: u32) {
        self.world.remove_image(&self.tasks[function as usize].image_name);
        self.changed();
    }

    /// Makes an instance idle, for a while.
    fn rest(&mut self, function: u32, id: u64) {
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let task = &mut self.tasks[function as usize];
        let about_to_rest = AboutToRest {
            calls: one.history.calls,
            reads_from_pool: one.tiering == Some(Tiering::Mow),
        };
        let load = self.world.ledger.load(one.node);
        let window = task.state.window(about_to_rest, load, false, &self.advice);
        if window.promotes {
            one.tiering = None;
        }
        self.world.ledger.end_work(id);
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
            let ledger = &mut self.world.ledger;
            let Some(id) = task.state.send(|id| ledger.begin_work(id)) else { return };
            self.send_call(id, call as usize);
        }
    }

    fn send_call(&mut self, id: u64, number: usize) {
        self.world.fleet.set_idle(self.now_us, id, None, None);
        self.world.ledger.thawed(id);
        let Some(duration_us) = self.calls.get(number).map(|open| open.call.duration_us) else {
            return;
        };
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        one.call = Some(number);
        let (function, load_us) = (one.function, one.load_us);
        if load_us.is_some() {
            let footprint = self.functions[function as usize].behaviour.footprint;
            self.world.weigh(id, footprint);
            self.changed();
        }
        match load_us {
            None => self.run_call(id, duration_us),
            Some(us) if us > LIMIT_US => {
                let at_us = self.timer(self.now_us, LIMIT_US);
                self.agenda.add(at_us, Event::CallEnded(id, false));
            }
            Some(us) => {
                let at_us = self.timer(self.now_us, us);
                self.agenda.add(at_us, Event::Loaded(id));
            }
        }
    }

    /// An instance has loaded its code, and runs its call.
    pub fn loaded(&mut self, id: u64) {
        let call = self.world.instances.get(&id).and_then(|one| one.call);
        if let Some(open) = call.and_then(|call| self.calls.get(call)) {
            self.run_call(id, open.call.duration_us);
        }
    }

    fn run_call(&mut self, id: u64, duration_us: u64) {
        let at_us = self.timer(self.now_us, duration_us.min(LIMIT_US));
        self.agenda.add(at_us, Event::CallEnded(id, duration_us <= LIMIT_US));
    }

    /// A run has ended: well, or at its time limit, with which its instance ends.
    pub fn call_ended(&mut self, id: u64, is_well: bool) {
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let (function, kind) = (one.function, one.kind);
        let Some(call) = one.call.take() else { return };
        let load_us = one.load_us.take();
        let (took_us, since) = (one.took_us, self.calls.get(call).copied());
        let duration_us = since.map_or(0, |open| open.call.duration_us);
        let run_us = self.timer(now_us, duration_us) - now_us;
        let loaded_us = load_us.map(|us| self.timer(now_us, us) - now_us);
        if is_well && let Some(one) = self.world.instances.get_mut(&id) {
            one.history.answered(run_us);
            one.kind = StartKind::Warm;
        } else {
            self.end(id);
        }
        let message = Message::CallEnded {
            call,
            instance: is_well.then_some(id),
            run_us: is_well.then_some(run_us),
            cold_us: loaded_us.filter(|us| *us <= LIMIT_US).map(|us| took_us + us),
        };
        self.send(function, message);
        self.finish(call, is_well.then_some(kind));
    }

    /// Starts the instances that are lacking, as far as there is room.
    fn start(&mut self, function: u32) {
        let now_us = self.now_us;
        for _ in 0..self.state(function).lacking(now_us) {
            let around = Around { world: &self.world, now_us };
            let task = &mut self.tasks[function as usize];
            match task.state.start(now_us, &around, &self.advice) {
                Ok(order) => self.start_on(function, &order),
                Err(no_room) => return self.make_room(no_room),
            }
        }
    }

    fn start_on(&mut self, function: u32, order: &StartOrder) {
        let behaviour = &self.functions[function as usize].behaviour;
        let (took_us, load_us, kind) = match order.is_clone {
            true => (behaviour.clone_us, None, StartKind::Clone),
            false => (BASE_US, Some(behaviour.cold_us.saturating_sub(BASE_US)), StartKind::Cold),
        };
        let footprint = behaviour.footprint;
        if order.is_clone {
            self.world.usage.start(self.now_us, &self.tasks[function as usize].image_name);
        }
        let Some(node) = self.world.ledger.node(&order.node) else { return };
        let one = Instance {
            function,
            node,
            kind,
            is_clone: order.is_clone,
            tiering: order.is_clone.then_some(order.tiering),
            history: History::default(),
            most_bytes: order.most_bytes,
            took_us,
            load_us,
            near_bytes: None,
            call: None,
        };
        let Some(id) = self.world.reserve(order, one) else {
            return self.send(function, Message::LostRoom);
        };
        if order.is_clone {
            self.world.weigh(id, footprint);
        }
        self.changed();
        let at_us = self.timer(self.now_us, took_us);
        self.agenda.add(at_us, Event::Started(id));
    }

    /// No node has room: evicts others, waits, or gives up calls.
    fn make_room(&mut self, no_room: NoRoom) {
        match no_room {
            NoRoom::Wait => {}
            NoRoom::Evict(_, ids) => self.evict(&ids),
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
                RestEffect::Freeze(id) => {
                    self.world.ledger.freeze(id);
                }
            }
        }
    }
}
