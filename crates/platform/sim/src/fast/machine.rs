//! The machine: the agenda, the nodes, and the functions that have something to do.
//!
//! What happens at one moment is in a queue, as the platform's tasks are: first what timers have ended, in the
//! order in which they were set; then the functions that are called; then what follows from these.
//!
//! ```text
//!  function ─► call ─► connection ─► instance's server: weighs itself, sets its timer      a call, which is sent
//!  function ◄─ call ◄─ connection ◄─ its timer has ended                                   its answer
//! ```
//! Each of these is a task, and what others do meanwhile comes first.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::mem::take;

use farfork_platform::api::StartKind;
use farfork_platform::scheduler::MOST_CALLS;
use farfork_platform::simulated::agents::{Later, STOP_US};
use farfork_platform::simulated::processors::{Ended, Processors};
use farfork_policy::occupant::OccupantId;
use farfork_scheduler::{NodeId, Reclaim, relief};

use super::advice::Advisor;
use super::agenda::{Agenda, Event};
use super::calls::{Call, Calls, Open};
use super::links::Links;
use super::task::{Message, Task};
use super::world::World;
use super::{Finish, Function, Watch};
use crate::model::function_of;
use crate::run::{Record, TIMEOUT_MS};
use crate::settings::{Settings, processors};

/// Period of the check of nodes' memory, as in the platform.
const RELIEF_US: u64 = 250_000;
/// Period of the check of the pool, as in the platform.
const RECLAIM_US: u64 = 1_000_000;
/// The longest run of a call, and the longest time to load code.
pub const LIMIT_US: u64 = TIMEOUT_MS * 1000;

/// Tasks between a function and its instance's server, which are as many on the way back: that of the call, and that of the
/// connection.
pub const HOPS: u32 = 2;

/// Something that happens at this moment.
#[derive(Clone, Copy, Debug)]
enum Item {
    /// A function acts.
    Function(u32),
    /// An instance has started.
    Started(u64),
    /// An instance's checkpoint has ended.
    Checkpointed(u64),
    /// An instance's pages are local.
    Promoted(u64),
    /// Something happens after so many tasks, each of which acts after what is in the queue before it.
    After(u32, Step),
    /// An instance has ended, and its memory is free.
    Ended(u64),
    /// Something that the agents wait for.
    Agents(Later),
    /// Evicted ghosts have ended.
    GhostsLeft(NodeId, u64, u64),
    /// Work on a node may have had the processors for as long as it needs, if none has begun or ended since a change.
    Processors(u32, u64),
    /// The memory of nodes is looked at.
    Relief,
    /// The pool is looked at.
    Reclaim,
}

/// What a function and its instances have others do, whose tasks act later.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An instance that was ordered begins to start.
    Start(u64),
    /// An instance receives its call.
    Receive(u64),
    /// An instance that has loaded its code receives its call again.
    Loaded(u64),
    /// The function receives an instance's answer: whether the call went well.
    Answer(u64, bool),
    /// An instance's checkpoint begins, for which it has prepared.
    Checkpoint(u64),
    /// An instance's work goes on that has had the processors for as long as it needs.
    Rest(u64),
    /// An instance is frozen, unless it has work by now.
    Freeze(u64),
}

/// A running simulation.
pub struct Machine<'a, W> {
    pub now_us: u64,
    tick_us: u64,
    pub freeze_after_us: u64,
    pub advice: Advisor<'a>,
    pub functions: Vec<Function>,
    pub tasks: Vec<Task>,
    pub world: World,
    pub agenda: Agenda,
    pub calls: Calls,
    /// What is due at this moment.
    due: Vec<(u64, Item)>,
    /// What happens at this moment.
    queue: VecDeque<Item>,
    /// Functions that wait for room, in the order in which they began to.
    waiters: BTreeMap<u64, u32>,
    /// Processors of each node, if starts and calls share them.
    pub processors: Vec<Processors>,
    /// Bandwidth of the pool and of far memory.
    pub links: Links,
    /// Open calls of each owner.
    owners: Vec<usize>,
    reclaim: Reclaim,
    events: u64,
    watch: &'a mut W,
}

impl<'a, W: Watch> Machine<'a, W> {
    pub fn new(
        functions: Vec<Function>,
        settings: &Settings,
        tick_us: u64,
        journal: Option<&'a mut dyn Write>,
        watch: &'a mut W,
    ) -> Machine<'a, W> {
        let owners = functions.iter().map(|one| one.owner as usize + 1).max().unwrap_or(0);
        let has_shares = settings.policies.share.is_some();
        let processors = processors(functions.iter().map(|one| &one.behaviour), settings);
        let of_node = |count| vec![Processors::new(count); settings.nodes as usize];
        Machine {
            now_us: 0,
            tick_us,
            freeze_after_us: settings.policies.freeze.after_ms.saturating_mul(1000),
            advice: Advisor::new(settings.policies, journal),
            tasks: functions.iter().enumerate().map(|one| Task::new(one, has_shares)).collect(),
            functions,
            world: World::new(settings),
            agenda: Agenda::default(),
            calls: Calls::default(),
            due: Vec::new(),
            queue: VecDeque::new(),
            waiters: BTreeMap::new(),
            processors: processors.map_or_else(Vec::new, of_node),
            links: Links::new(settings.pool_bandwidth, settings.far_bandwidth),
            owners: vec![0; owners],
            reclaim: Reclaim::default(),
            events: 0,
            watch,
        }
    }

    /// Serves the calls.
    pub fn run(mut self, calls: impl Iterator<Item = Call>) -> io::Result<Finish> {
        let mut calls = calls.peekable();
        self.world.agents.begin(0, &self.advice);
        self.wait_for_agents();
        self.agenda.add(RELIEF_US, Event::Relief);
        self.agenda.add(RECLAIM_US, Event::Reclaim);
        let mut arrived = Vec::new();
        loop {
            let arrival_us = calls.peek().map(|call| self.on_grid(call.arrival_us));
            if arrival_us.is_none() && self.calls.len() == 0 {
                break;
            }
            let Some(due_us) = self.agenda.due_us().into_iter().chain(arrival_us).min() else {
                break;
            };
            self.now_us = due_us;
            self.advice.now_us.set(due_us);
            while calls.peek().is_some_and(|call| self.on_grid(call.arrival_us) == due_us) {
                arrived.extend(calls.next().and_then(|call| self.arrive(call)));
            }
            self.moment();
            arrived.drain(..).for_each(|function| self.wake(function));
            self.settle();
        }
        self.advice.end()?;
        Ok(Finish { end_us: self.now_us, events: self.events })
    }

    /// Queues what is due now, in the order in which its timers were set.
    fn moment(&mut self) {
        while self.agenda.due_us() == Some(self.now_us) {
            let Some((place, event)) = self.agenda.take() else { break };
            self.events += 1;
            let due = match event {
                Event::Started(id) => Some((place, Item::Started(id))),
                Event::Loaded(id) if self.is_over(id, event) => {
                    Some((place, Item::After(2 * HOPS, Step::Loaded(id))))
                }
                Event::CallEnded(id, is_well) if self.is_over(id, event) => {
                    Some((place, Item::After(HOPS, Step::Answer(id, is_well))))
                }
                // It was paused meanwhile.
                Event::Loaded(_) | Event::CallEnded(..) => None,
                Event::Promoted(id) => Some((place, Item::Promoted(id))),
                Event::Checkpointed(id) => Some((place, Item::Checkpointed(id))),
                Event::Link(link, change) => {
                    self.link_is_due(link, change);
                    None
                }
                Event::Agents(later) => Some((place, Item::Agents(later))),
                Event::GhostsLeft(node, number, bytes) => {
                    Some((place, Item::GhostsLeft(node, number, bytes)))
                }
                Event::Relief => Some((place, Item::Relief)),
                Event::Reclaim => Some((place, Item::Reclaim)),
                Event::Processors(node, change) => Some((place, Item::Processors(node, change))),
                // Functions know when their instances end.
                Event::Expired(_) => None,
                // A function sets its timer each time that it acts.
                Event::Wake(function) => self.woken(function).map(|place| {
                    self.tasks[function as usize].is_ready = true;
                    (place, Item::Function(function))
                }),
            };
            self.due.extend(due);
        }
        self.due.sort_by_key(|(place, _)| *place);
        self.queue.extend(self.due.drain(..).map(|(_, item)| item));
    }

    /// Work on a node may have had the processors for as long as it needs. Those that have it act after what is in the queue.
    fn processors_are_due(&mut self, node: u32, change: u64) {
        let Some(node_processors) = self.processors.get_mut(node as usize) else { return };
        if !node_processors.is_current(change) {
            return;
        }
        for Ended { instance, is_well, .. } in node_processors.ended(self.now_us, LIMIT_US) {
            let work = self.world.instances.get(&instance).and_then(|one| one.work);
            let Some(work) = work else { continue };
            let item = match work.event {
                _ if !is_well => {
                    self.has_run(instance);
                    Item::After(HOPS, Step::Answer(instance, false))
                }
                _ if work.rest_us > 0 => Item::After(0, Step::Rest(instance)),
                Event::Started(_) => Item::Started(instance),
                Event::Loaded(_) => Item::After(2 * HOPS, Step::Loaded(instance)),
                _ => {
                    self.has_run(instance);
                    Item::After(HOPS, Step::Answer(instance, true))
                }
            };
            self.queue.push_back(item);
        }
        self.wait_for_processors(node);
    }

    /// An instance has run its call, for as long as that has taken with others on its processors.
    fn has_run(&mut self, instance: u64) {
        let one = self.world.instances.get(&instance);
        let Some((call, began_us)) = one.and_then(|one| Some((one.call?, one.run_since_us?)))
        else {
            return;
        };
        if let Some(open) = self.calls.get_mut(call) {
            open.run_us = self.now_us - began_us;
        }
    }

    /// Looks at a node's processors again when the next work has had enough of them.
    pub fn wait_for_processors(&mut self, node: u32) {
        let due = self.processors.get(node as usize).and_then(|one| one.due(LIMIT_US));
        let Some((at_us, change)) = due else { return };
        let at_us = self.on_grid(at_us);
        // What is over already has no timer.
        match at_us > self.now_us {
            true => self.agenda.add(at_us, Event::Processors(node, change)),
            false => self.queue.push_back(Item::Processors(node, change)),
        }
    }

    /// Does all that is in the queue.
    fn settle(&mut self) {
        while let Some(item) = self.queue.pop_front() {
            match item {
                Item::Function(function) => {
                    self.tasks[function as usize].is_ready = false;
                    self.poll(function);
                }
                Item::Started(id) => self.started(id),
                Item::Checkpointed(id) => self.checkpointed(id),
                Item::Promoted(id) => self.promoted(id),
                // Without others the order is the same.
                Item::After(hops, step) if hops == 0 || self.queue.is_empty() => self.step(step),
                Item::After(hops, step) => self.after(hops - 1, step),
                Item::Ended(id) => {
                    self.world.ended(id);
                    self.wait_for_agents();
                    self.changed();
                }
                Item::Agents(later) => {
                    let pool = self.world.pool();
                    self.world.agents.happens(later, self.now_us, pool, &self.advice);
                    self.wait_for_agents();
                    for change in self.world.agents.take_pauses() {
                        self.pause(change);
                    }
                    self.changed();
                }
                Item::GhostsLeft(node, number, bytes) => {
                    self.world.agents.stopped(node, bytes);
                    self.wait_for_agents();
                    self.world.fleet.ghosts_left(self.now_us, node.number(), number);
                    self.changed();
                    self.room();
                }
                Item::Processors(node, change) => self.processors_are_due(node, change),
                Item::Relief => {
                    self.agenda.add(self.now_us + RELIEF_US, Event::Relief);
                    self.relieve();
                }
                Item::Reclaim => {
                    self.agenda.add(self.now_us + RECLAIM_US, Event::Reclaim);
                    self.reclaim();
                }
            }
        }
    }

    /// Has something happen at this moment, after so many tasks beside the one that does it.
    pub fn after(&mut self, hops: u32, step: Step) {
        self.queue.push_back(Item::After(hops, step));
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start(id) => self.begin_start(id),
            Step::Receive(id) => self.receive(id),
            Step::Loaded(id) => self.loaded(id),
            Step::Answer(id, is_well) => self.call_ended(id, is_well),
            Step::Rest(id) => self.rest_of_work(id),
            Step::Checkpoint(id) => self.begin_checkpoint(id),
            Step::Freeze(id) => {
                self.world.agents.ledger.freeze(id);
            }
        }
    }

    /// A time on the grid of the clock.
    fn on_grid(&self, us: u64) -> u64 {
        us.next_multiple_of(self.tick_us)
    }

    /// When a timer ends that begins at a time.
    pub fn timer(&self, from_us: u64, us: u64) -> u64 {
        self.on_grid(from_us.saturating_add(us).min(u64::MAX / 2))
    }

    /// How much longer a timer takes than asked for.
    fn slack_us(&self, us: u64) -> u64 {
        self.on_grid(us) - us
    }

    /// A call arrives. Returns its function, unless the call is refused.
    fn arrive(&mut self, call: Call) -> Option<u32> {
        self.events += 1;
        let function = call.function;
        let owner = self.functions[function as usize].owner as usize;
        let number = self.calls.add(Open::new(call, self.now_us));
        self.owners[owner] += 1;
        if self.owners[owner] > MOST_CALLS {
            self.finish(number, None);
            return None;
        }
        self.tasks[function as usize].commands.push_back(number);
        Some(function)
    }

    /// A call has ended, with the way in which it got its instance if it succeeded.
    pub fn finish(&mut self, number: usize, start: Option<StartKind>) {
        let Some(Open { call, since_us, run_us }) = self.calls.end(number) else { return };
        let Function { owner, behaviour } = &self.functions[call.function as usize];
        self.owners[*owner as usize] -= 1;
        let waited_us = self.now_us - since_us;
        let of_start = start.map_or(0, |start| behaviour.slack_us(start, |us| self.slack_us(us)));
        // Where processors are shared, no timer is one of a start or a run alone.
        let slack_us =
            if self.processors.is_empty() { self.slack_us(run_us) + of_start } else { 0 };
        let latency_us = match start {
            // A call may have waited less than a start takes: the start had begun for another one.
            Some(_) => waited_us.saturating_sub(slack_us).max(run_us),
            None => waited_us,
        };
        let Call { request, arrival_us, duration_us, .. } = call;
        self.watch.ended(Record { request, arrival_us, latency_us, duration_us, run_us, start });
    }

    /// Has a function act that has something to do.
    pub fn wake(&mut self, function: u32) {
        let task = &mut self.tasks[function as usize];
        if !std::mem::replace(&mut task.is_ready, true) {
            self.queue.push_back(Item::Function(function));
        }
    }

    /// Sends a message to a function.
    pub fn send(&mut self, function: u32, message: Message) {
        self.tasks[function as usize].inbox.push_back(message);
        self.wake(function);
    }

    fn send_to_owner(&mut self, id: u64, message: Message) {
        if let Some(function) = self.world.instances.get(&id).map(|one| one.function) {
            self.send(function, message);
        }
    }

    /// A function waits for room from now on, or not.
    pub fn wait_for_room(&mut self, function: u32, waits: bool) {
        let task = &mut self.tasks[function as usize];
        if std::mem::replace(&mut task.waits, waits) && !waits {
            self.waiters.remove(&task.acted);
        }
        if waits {
            self.waiters.insert(task.acted, function);
        }
    }

    /// There may be room: an instance has ended or become idle.
    pub fn room(&mut self) {
        for function in take(&mut self.waiters).into_values() {
            let task = &mut self.tasks[function as usize];
            (task.waits, task.has_room) = (false, true);
            self.wake(function);
        }
    }

    /// The nodes hold something else.
    pub fn changed(&mut self) {
        self.watch.changed(self.now_us, self.world.held());
    }

    /// Ends an instance. Its memory is free when its task has ended, which is before others can act.
    pub fn end(&mut self, id: u64) {
        self.world.fleet.end(self.now_us, id);
        self.queue.push_back(Item::Ended(id));
        self.room();
    }

    /// Has what the agents wait for happen when it is due.
    pub fn wait_for_agents(&mut self) {
        for (us, later) in self.world.agents.take_later() {
            let at_us = self.timer(self.now_us, us);
            self.agenda.add(at_us, Event::Agents(later));
        }
    }

    /// Asks functions to end these instances if they are still idle, and ends these ghosts of a node.
    pub fn evict(&mut self, node: NodeId, ids: &[OccupantId]) {
        for id in self.world.fleet.evict(self.now_us, ids) {
            self.send_to_owner(id, Message::Evict(id));
        }
        let (bytes, held) = self.world.agents.withdraw(node, ids, self.now_us);
        if bytes > 0 {
            let number = self.world.fleet.ghosts_leaving(node.number(), bytes);
            let at_us = self.timer(self.now_us, STOP_US);
            self.agenda.add(at_us, Event::GhostsLeft(node, number, held));
        }
    }

    fn relieve(&mut self) {
        for node in self.world.agents.ledger.ids() {
            let (world, now_us) = (&self.world, self.now_us);
            let memory = world.agents.ledger.memory(node);
            let name = world.agents.ledger.name(node);
            let ids = relief(memory, || world.occupancy(now_us, node), &name, &self.advice);
            if !ids.is_empty() {
                self.evict(node, &ids);
            }
        }
    }

    fn reclaim(&mut self) {
        let (pool, wanted_bytes) = (self.world.pool(), self.world.usage.take_wanted());
        if !self.reclaim.is_due(pool, wanted_bytes, &self.advice) {
            return;
        }
        let name = |function: u32| self.tasks[function as usize].image_name.clone();
        let images = self.world.image_facts(self.now_us, name);
        for name in self.reclaim.chosen(pool, wanted_bytes, images, &self.advice) {
            if let Some(function) = function_of(&name) {
                self.send(function as u32, Message::Reclaim);
            }
        }
    }
}
