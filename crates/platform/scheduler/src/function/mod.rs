//! One version of one function: what happens next to its calls, its instances and its image.
//!
//! ```text
//!              ┌──────────────── a call waits ────────────────┐
//!  starting ──►idle ──► frozen after a while ─────► busy ─────┤ succeeded ──► idle
//!              │ window over, or evicted             │        └ failed ──► ended
//!              ▼                                     ▼ enough calls, no image yet
//!            ended                              checkpointing ──► idle
//! ```
//! Its driver reports what has happened, and then, in this order: sends calls to idle instances
//! ([`Function::send`]), starts what is [lacking](Function::lacking), and [tends](Function::tend) what
//! is idle. So an instance with a short window still serves a call that waits.

mod imaging;
mod shares;
mod tiers;

use std::fmt::Display;

use farfork_policy::Memory;
use farfork_policy::admission::Asker;
use farfork_policy::node::NodeRef;
use farfork_policy::placement::{NodeFacts, PlacementFacts};
use farfork_policy::tiering::Objective;
use farfork_types::Tiering;

use crate::advice::Advice;
use crate::claim::{Claim, Usage};
use crate::fleet::Occupancy;
use crate::node::NodeLoad;
use crate::resting::{RestEffect, Resting};
use crate::scaling::{NoRoom, Scaling};
use imaging::Imaging;
pub use imaging::{AfterNotMade, Due, History, ImageState, NotMade, NotStarted};
use shares::Shares;
pub use shares::{Declared, Sharing};
use tiers::{SeenMemory, Tiers};

/// Duration of a start without an image, until one was measured.
const GUESSED_COLD_US: u64 = 300_000;

/// What the nodes are asked for an instance that starts.
pub trait Surroundings {
    /// The nodes that answer, as facts for an instance with this claim, of the function's image or the base
    /// image.
    fn nodes(&self, claim: Claim, has_image: bool) -> Vec<NodeFacts>;
    /// The same without names, if that costs less.
    fn numbered(&self, claim: Claim, has_image: bool) -> Vec<NodeFacts> {
        self.nodes(claim, has_image)
    }
    /// The same, but only the node that a placement chooses if any; `None` if all have to be compared.
    fn likeliest(&self, _claim: Claim, _has_image: bool) -> Option<Vec<NodeFacts>> {
        None
    }
    /// Whether an equal function was answered at this moment that it has to wait, and nothing has changed since.
    fn has_to_wait(&self, _asker: &Asker) -> bool {
        false
    }
    /// A function was answered that it has to wait.
    fn waits(&self, _asker: Asker) {}
    /// What is on a node.
    fn occupancy(&self, node: &NodeRef) -> Occupancy;
    /// Bytes of that which could become free: of what is idle, and of what is leaving.
    fn could_free(&self, node: &NodeRef) -> u64 {
        self.occupancy(node).could_free()
    }
}

/// An instance to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartOrder {
    /// The node.
    pub node: NodeRef,
    /// Whether it is a clone of the function's image.
    pub is_clone: bool,
    /// What it may take.
    pub claim: Claim,
    /// Most bytes that it may take.
    pub most_bytes: u64,
    /// Its tiering policy.
    pub tiering: Tiering,
}

/// What follows from a start that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AfterNotStarted {
    /// Whether the image is given up, and is to be removed.
    pub drops_image: bool,
    /// A call that is given up.
    pub given_up: Option<u64>,
}

/// How long an instance stays idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// In milliseconds.
    pub ms: u64,
    /// Whether its pages are to be promoted, before it counts as idle.
    pub promotes: bool,
}

/// An instance that is about to be idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AboutToRest {
    /// Calls that it has answered.
    pub calls: u64,
    /// Whether it reads its function's pages from the pool.
    pub reads_from_pool: bool,
}

/// The state of a function.
#[derive(Clone, Debug)]
pub struct Function {
    about: String,
    memory_mb: u64,
    scaling: Scaling,
    resting: Resting,
    imaging: Imaging,
    tiers: Tiers,
    seen: SeenMemory,
    /// Duration of the last start without an image, including loading the code, in microseconds.
    cold_us: Option<u64>,
    /// If shares of near memory are decided.
    shares: Option<Box<Shares>>,
}

impl Function {
    /// A function that was not called yet; `about` is its name in journals.
    pub fn new(about: String, memory_mb: u64, objective: Objective) -> Function {
        Function {
            about,
            memory_mb,
            scaling: Scaling::default(),
            resting: Resting::default(),
            imaging: Imaging::default(),
            tiers: Tiers::new(objective),
            seen: SeenMemory::default(),
            cold_us: None,
            shares: None,
        }
    }

    /// Calls run another version from now on, with this limit and objective.
    pub fn change(&mut self, memory_mb: u64, objective: Objective) {
        (self.memory_mb, self.tiers.objective) = (memory_mb, objective);
        if let Some(shares) = &mut self.shares {
            shares.forget();
        }
    }

    /// Its calls, and its instances that start.
    pub fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// Its image.
    pub fn image(&self) -> ImageState {
        self.imaging.state()
    }

    /// Whether its next instance is a clone of its image.
    pub fn has_image(&self) -> bool {
        self.imaging.has_image()
    }

    /// The idle instances.
    pub fn idle(&self) -> impl Iterator<Item = u64> {
        self.resting.ids()
    }

    /// Most local memory that was seen of an instance, in bytes.
    pub fn local_bytes(&self) -> Option<u64> {
        self.seen.local_bytes
    }

    /// Microseconds that its image saves at each start.
    pub fn saved_us(&self) -> u64 {
        self.cold_us.unwrap_or(GUESSED_COLD_US)
    }

    /// What an instance that starts now may take.
    pub fn claim(&self) -> Claim {
        self.seen.claim(self.memory_mb, self.has_image(), self.tiers.tiering())
    }

    /// When the driver has to look again if nothing happens.
    pub fn due_us(&self) -> Option<u64> {
        self.resting.due_us().into_iter().chain(self.scaling.retry_us()).min()
    }

    /// A call has come, which has waited since then.
    pub fn called(&mut self, now_us: u64, id: u64, since_us: u64) {
        self.resting.called(now_us, self.scaling.is_quiet());
        self.scaling.called(id, since_us);
    }

    /// The call that is sent next.
    pub fn next(&self) -> Option<u64> {
        self.scaling.next()
    }

    /// The next call may not begin any more, and leaves.
    pub fn drop_next(&mut self) {
        self.scaling.drop_next();
    }

    /// Sends the next call to the most recently used instance that has room to work, which is returned.
    pub fn send(&mut self, has_room: impl FnMut(u64) -> bool) -> Option<u64> {
        let taken = self.resting.take(has_room)?;
        self.scaling.dispatch();
        Some(taken)
    }

    /// A call was not sent to its instance. Returns it if it is given up.
    pub fn not_sent(&mut self, id: u64) -> Option<u64> {
        self.scaling.not_sent(id)
    }

    /// A call has ended. With its duration inside its instance, if it was answered, and that of its
    /// instance's start, if that was without an image.
    pub fn call_ended(&mut self, now_us: u64, id: u64, run_us: Option<u64>, cold_us: Option<u64>) {
        self.scaling.ended(id);
        self.cold_us = cold_us.or(self.cold_us);
        self.resting.call_ended(now_us);
        if let Some(run_us) = run_us {
            self.tiers.answered(run_us);
            self.imaging.answered();
        }
    }

    /// Notes the memory of an instance: a clone under this tiering policy, or none.
    pub fn measured(&mut self, usage: Usage, tiering: Option<Tiering>) {
        self.seen.measured(usage, tiering);
    }

    /// Whether an instance that has just answered is to be checkpointed.
    pub fn is_due(&self, history: &History, pool: Memory, advice: &impl Advice) -> Due {
        self.imaging.is_due(history, pool, self.seen.image_bytes(), &self.about, advice)
    }

    /// An instance is being checkpointed.
    pub fn checkpoint(&mut self) {
        self.imaging.begin();
        self.seen.forget_clones();
        self.scaling.checkpointing(true);
    }

    /// The instance is not being checkpointed any more.
    pub fn checkpoint_ended(&mut self) {
        self.scaling.checkpointing(false);
    }

    /// There is an image: one was made, or an earlier run has left it.
    pub fn image_is_there(&mut self, was_made: bool) {
        match was_made {
            true => self.imaging.made(),
            false => self.imaging.there(),
        }
    }

    /// No image was made, with so many bytes free in the pool now.
    pub fn image_not_made(&mut self, why: NotMade, free_now_bytes: u64) -> AfterNotMade {
        let after = self.imaging.not_made(why, free_now_bytes);
        if let Some(bytes) = after.wanted_bytes {
            self.seen.needs(bytes);
        }
        after
    }

    /// Calls are made without the image, until there is another.
    pub fn do_without_image(&mut self) {
        self.imaging.do_without();
    }

    /// How many instances are to be started now.
    pub fn lacking(&mut self, now_us: u64) -> usize {
        let is_image_made = self.imaging.state() == ImageState::InTheMaking;
        self.scaling.lacking(now_us, is_image_made)
    }

    /// There may be room for an instance now.
    pub fn room(&mut self) {
        self.scaling.room();
    }

    /// Starts an instance. Where no node has room, something else happens, and no more are to be started now.
    pub fn start(
        &mut self,
        now_us: u64,
        around: &impl Surroundings,
        advice: &impl Advice,
    ) -> Result<StartOrder, NoRoom> {
        let (claim, has_image) = (self.claim(), self.has_image());
        let need_bytes = claim.most_bytes();
        let is_recorded = advice.is_recorded();
        let likeliest = if is_recorded { None } else { around.likeliest(claim, has_image) };
        let is_one = likeliest.is_some();
        let nodes = likeliest.unwrap_or_else(|| match is_recorded {
            true => around.nodes(claim, has_image),
            false => around.numbered(claim, has_image),
        });
        let facts = PlacementFacts { need_bytes, nodes };
        match advice.decide(&self.about, &facts) {
            Some(node) => Ok(self.start_on(node, &facts, advice)),
            None if is_one => Err(self.no_room_anywhere(now_us, claim, around, advice)),
            None => Err(self.no_room(now_us, facts, around, advice)),
        }
    }

    fn start_on(
        &mut self,
        node: NodeRef,
        facts: &PlacementFacts,
        advice: &impl Advice,
    ) -> StartOrder {
        self.scaling.start();
        let is_clone = self.has_image();
        let found = facts.nodes.iter().find(|found| found.node == node).map(NodeLoad::from);
        let tiering = match is_clone {
            true => self.tiers.of_start(found, &self.about, advice),
            false => Tiering::Mow,
        };
        let (claim, most_bytes) = (self.claim(), facts.need_bytes);
        StartOrder { node, is_clone, claim, most_bytes, tiering }
    }

    /// The same as [`Function::no_room`], where decisions are not written down: functions that are woken together
    /// mostly get the same answer.
    fn no_room_anywhere(
        &mut self,
        now_us: u64,
        claim: Claim,
        around: &impl Surroundings,
        advice: &impl Advice,
    ) -> NoRoom {
        let asker = self.scaling.asker(now_us, claim);
        if around.has_to_wait(&asker) {
            self.scaling.still_no_room(now_us);
            return NoRoom::Wait;
        }
        let (need_bytes, nodes) = (claim.most_bytes(), around.numbered(claim, self.has_image()));
        let answer = self.no_room(now_us, PlacementFacts { need_bytes, nodes }, around, advice);
        if answer == NoRoom::Wait {
            around.waits(asker);
        }
        answer
    }

    fn no_room(
        &mut self,
        now_us: u64,
        facts: PlacementFacts,
        around: &impl Surroundings,
        advice: &impl Advice,
    ) -> NoRoom {
        let PlacementFacts { need_bytes, nodes } = facts;
        let seen = |node: NodeFacts| {
            let could_free = around.could_free(&node.node);
            (node, could_free)
        };
        let nodes = nodes.into_iter().map(seen);
        let occupancy = |node: &NodeRef| around.occupancy(node);
        self.scaling.no_room(now_us, need_bytes, nodes, occupancy, &self.about, advice)
    }

    /// An instance has started.
    pub fn started(&mut self) {
        self.scaling.start_ended();
        self.imaging.started();
    }

    /// A start has lost its room to another.
    pub fn lost_room(&mut self, now_us: u64) {
        self.scaling.start_ended();
        self.scaling.lost_room(now_us);
    }

    /// An instance did not start.
    pub fn not_started(&mut self, now_us: u64, why: NotStarted, is_clone: bool) -> AfterNotStarted {
        self.scaling.start_ended();
        if !self.scaling.counts(now_us, why == NotStarted::NodeLost) {
            return AfterNotStarted::default();
        }
        let drops_image = self.imaging.not_started(why, is_clone);
        if drops_image {
            self.do_without_image();
        }
        AfterNotStarted { drops_image, given_up: self.scaling.charge() }
    }

    /// All calls that wait are given up, and returned.
    pub fn give_up_all(&mut self) -> Vec<u64> {
        self.scaling.give_up_all()
    }

    /// Decides how long an instance on a node with this load stays idle. Without a load, the node does not
    /// answer. One that is to end soon is not promoted.
    pub fn window(
        &mut self,
        instance: AboutToRest,
        node: Option<NodeLoad>,
        ends_soon: bool,
        advice: &impl Advice,
    ) -> Window {
        let memory = node.map(|node| node.memory).unwrap_or_default();
        let ms = self.resting.window_ms(memory, self.has_image(), &self.about, advice);
        let AboutToRest { calls, reads_from_pool } = instance;
        let promotes = node.filter(|_| ms > 0 && !ends_soon).is_some_and(|node| {
            self.tiers.promotes(node, calls, reads_from_pool, &self.about, advice)
        });
        Window { ms, promotes }
    }

    /// Makes an instance idle for a window, and freezes it after a while. Returns its share of the
    /// function's calls in the last hour.
    pub fn rest(&mut self, now_us: u64, id: u64, window: Window, freeze_after_us: u64) -> u64 {
        self.resting.rest(now_us, id, window.ms, freeze_after_us)
    }

    /// Forgets an idle instance that has ended or is to end. Returns whether it was idle.
    pub fn forget(&mut self, id: u64) -> bool {
        self.resting.forget(id)
    }

    /// The instances whose windows are over, or all of them, and then those to be frozen.
    pub fn tend(&mut self, now_us: u64, all_end: bool) -> Vec<RestEffect> {
        self.resting.tend(now_us, all_end && self.scaling.waiting() == 0)
    }

    /// Its name in journals.
    pub fn about(&self) -> &impl Display {
        &self.about
    }
}
