//! What the agents of simulated nodes do: ghosts made in advance, pauses, promotion, and memory as the kernel would count it.
//!
//! ```text
//!  a start ─► takes a ghost, and others are ordered ─► queue ─► one at a time, when no instance starts
//!             or makes its container                               (at most 200 ms later) ─► made: it waits
//!
//!  busy instances may take more than is free ─► 3 ms later: which of them pause ─► again, whenever something has changed
//! ```
//! The [`Ledger`] decides how many wait; this is what the platform does with its orders on real nodes, without clock and
//! tasks: what is due later is [returned](Agents::take_later) to a driver, which reports it when it is due.

use std::collections::{BTreeMap, VecDeque};

use farfork_policy::Memory;
use farfork_policy::occupant::OccupantId;
use farfork_policy::settings::Growth;
use farfork_scheduler::{
    Advice, Claim, GhostOrder, GhostRef, ImageId, ImageSpec, Ledger, NodeId, PauseChange, USUAL_MB,
    Usage,
};

/// Making a container, in microseconds: what an empty ghost saves.
pub const MAKE_US: u64 = 30_000;
/// Stopping ghosts, in microseconds. Assumed.
pub const STOP_US: u64 = 5_000;
/// Memory of an empty ghost, with the kernel's.
pub const EMPTY_BYTES: u64 = 600 << 10;
/// How long making a ghost waits while instances start, as in the platform.
const PATIENCE_US: u64 = 200_000;
/// When the kernel has certainly counted a ghost's memory, as in the platform.
const COUNTED_US: u64 = 200_000;
/// Period of the search for missing and surplus ghosts, as in the platform.
const TEND_US: u64 = 1_000_000;

/// Period of measurements on a node on which busy instances may take more than is free, as in the platform.
const CLOSELY_US: u64 = 3_000;
/// Bytes that a promotion copies in a microsecond: as fast as the page copy of a checkpoint
/// (docs/results/fork-epyc.md, c-24M).
const PROMOTED_PER_US: u64 = 4_320;

/// Something that is due later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Later {
    /// Instances have been starting for so long that this ghost is made all the same.
    Turn(u64),
    /// This ghost is made.
    Made(u64),
    /// The memory of this ghost is counted.
    Counted(u64),
    /// The memory that this instance's promotion has taken is counted.
    Promoted(u64),
    /// Which instances of a node pause is decided.
    Growth(NodeId),
    /// Ghosts of a node with so many bytes have ended.
    Stopped(NodeId, u64),
    /// Missing ghosts are made, and surplus ones stopped.
    Tend,
}

/// In what an instance starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ghost {
    /// In a container that is made for it.
    New,
    /// In an empty ghost.
    Empty,
    /// In a ghost with its image attached.
    Attached,
}

/// An image, and what a ghost with it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostImage {
    /// The image.
    pub spec: ImageSpec,
    /// Near bytes of a ghost.
    pub ghost_bytes: u64,
}

/// A ghost that is ordered.
#[derive(Clone, Copy, Debug)]
struct Making {
    order: GhostOrder,
    node: NodeId,
    bytes: u64,
}

/// The agents of all nodes.
#[derive(Debug)]
pub struct Agents {
    /// What is on the nodes.
    pub ledger: Ledger,
    has_ghosts: bool,
    /// Whether busy instances may take more than is free, so that some pause.
    pub pauses_some: bool,
    /// Near bytes of each node: those of instances and ghosts.
    near_bytes: Vec<u64>,
    /// The nodes and bytes of the ghosts that wait.
    ghosts: BTreeMap<u64, (NodeId, u64)>,
    /// Bytes of all ghosts until they have ended.
    ghost_bytes: u64,
    queue: VecDeque<Making>,
    /// The ghost whose turn it is, and whether it is being made.
    turn: Option<(Making, bool)>,
    starting: usize,
    /// Whether it is about to be decided which instances of a node pause.
    looks: Vec<bool>,
    pauses: Vec<PauseChange>,
    later: Vec<(u64, Later)>,
}

impl Agents {
    /// Nodes with nothing on them. With ghosts, memory is what the kernel would measure.
    pub fn new(
        names: impl IntoIterator<Item = String>,
        node_memory_bytes: u64,
        growth: Growth,
        has_ghosts: bool,
    ) -> Agents {
        let ledger = Ledger::new(names, node_memory_bytes, growth, 0);
        Agents {
            near_bytes: vec![0; ledger.ids().count()],
            looks: vec![false; ledger.ids().count()],
            pauses: Vec::new(),
            ledger,
            has_ghosts,
            pauses_some: growth.overcommits(),
            ghosts: BTreeMap::new(),
            ghost_bytes: 0,
            queue: VecDeque::new(),
            turn: None,
            starting: 0,
            later: Vec::new(),
        }
    }

    /// The image of this name that an instance starts of. Without ghosts it is not looked at, and has no number.
    pub fn image(&mut self, name: &str) -> Option<ImageId> {
        self.has_ghosts.then(|| self.ledger.image(name))
    }

    /// Makes the first ghosts.
    pub fn begin(&mut self, now_us: u64, advice: &impl Advice) {
        if self.has_ghosts {
            for node in self.ledger.ids() {
                self.refill(node, USUAL_MB, now_us, advice);
            }
            self.later.push((TEND_US, Later::Tend));
        }
    }

    /// What is due, and in how many microseconds from now.
    pub fn take_later(&mut self) -> Vec<(u64, Later)> {
        std::mem::take(&mut self.later)
    }

    /// Instances that pause from now on, or go on.
    pub fn take_pauses(&mut self) -> Vec<PauseChange> {
        std::mem::take(&mut self.pauses)
    }

    /// Reserves memory for an instance to be started, as [`Ledger::reserve`].
    pub fn reserve(&mut self, node: NodeId, claim: Claim) -> Option<u64> {
        let id = self.ledger.reserve(node, claim);
        self.look(node);
        id
    }

    /// An instance is to work, as [`Ledger::begin_work`].
    pub fn begin_work(&mut self, id: u64) -> bool {
        let fits = self.ledger.begin_work(id);
        self.look_at(id);
        fits
    }

    /// An instance is idle.
    pub fn end_work(&mut self, id: u64) {
        self.ledger.end_work(id);
        self.look_at(id);
    }

    /// An instance is being checkpointed and does not pause, or not any more.
    pub fn checkpoint(&mut self, id: u64, is_made: bool) {
        self.ledger.prevent_pause(id, is_made);
        self.look_at(id);
    }

    /// An instance is to be promoted. Returns how long that takes, after which its pages are local; `None` without room.
    pub fn promote(&mut self, id: u64) -> Option<u64> {
        self.ledger.promote(id)?;
        self.look_at(id);
        let bytes = self.ledger.usage(id).map_or(0, |usage| usage.pool_bytes);
        Some(bytes.div_ceil(PROMOTED_PER_US).max(1))
    }

    /// An instance's pages are local: the memory set aside for them is not needed once they are counted.
    pub fn promoted(&mut self, id: u64) {
        self.later.push((COUNTED_US, Later::Promoted(id)));
    }

    fn look_at(&mut self, id: u64) {
        if self.pauses_some
            && let Some(node) = self.ledger.node_of(id)
        {
            self.look(node);
        }
    }

    /// Decides soon which instances of a node pause, if some may have to. Without a change of the node, the decision would
    /// be the same.
    fn look(&mut self, node: NodeId) {
        if self.ledger.is_crowded(node) && !std::mem::replace(&mut self.looks[node.index()], true) {
            self.later.push((CLOSELY_US, Later::Growth(node)));
        }
    }

    fn check_growth(&mut self, node: NodeId, now_us: u64, advice: &impl Advice) {
        let Some(facts) = self.ledger.growth_facts(node) else { return };
        let changes = |ids: &Vec<OccupantId>| {
            facts.workers.iter().any(|worker| worker.is_paused != ids.contains(&worker.id))
        };
        let ids = advice.decide_if(&self.ledger.name(node), &facts, changes);
        let changed = self.ledger.pause(node, &ids, now_us);
        if !changed.is_empty() {
            self.pauses.extend(changed);
            self.look(node);
        }
    }

    /// Near bytes of ghosts.
    pub fn ghost_bytes(&self) -> u64 {
        self.ghost_bytes
    }

    /// Something is due.
    pub fn happens(&mut self, later: Later, now_us: u64, pool: Memory, advice: &impl Advice) {
        match later {
            Later::Turn(id) => {
                if let Some((making, _)) =
                    self.turn.filter(|(one, is_begun)| one.order.id == id && !is_begun)
                {
                    self.make(making);
                    self.next();
                }
            }
            Later::Made(id) => self.made(id),
            Later::Counted(id) => {
                self.ledger.counted(id);
            }
            Later::Promoted(id) => {
                self.ledger.promoted(id);
                self.look_at(id);
            }
            Later::Growth(node) => {
                self.looks[node.index()] = false;
                self.check_growth(node, now_us, advice);
            }
            Later::Stopped(node, bytes) => self.stopped(node, bytes),
            Later::Tend => {
                self.later.push((TEND_US, Later::Tend));
                self.tend(now_us, pool, advice);
            }
        }
    }

    /// An instance on a node holds something else than before.
    pub fn weighed(&mut self, id: u64, before_bytes: u64, usage: Usage) {
        self.ledger.measured(id, usage);
        if let Some(node) = self.ledger.node_of(id) {
            self.changed(node, before_bytes, usage.local_bytes);
        }
    }

    /// An instance has ended that held so much.
    pub fn ended(&mut self, id: u64, bytes: u64) {
        let node = self.ledger.node_of(id);
        self.ledger.end(id);
        if let Some(node) = node {
            self.changed(node, bytes, 0);
        }
    }

    /// Counts memory of a node as the kernel does. Without ghosts the ledger's own sums are the same.
    fn changed(&mut self, node: NodeId, before_bytes: u64, bytes: u64) {
        if self.has_ghosts {
            let near = &mut self.near_bytes[node.index()];
            *near = *near - before_bytes + bytes;
            self.ledger.record_measured(node, Some(*near));
        }
        self.look(node);
    }

    /// An instance starts: takes a ghost if one waits, and orders others.
    pub fn take(
        &mut self,
        node: NodeId,
        memory_mb: u64,
        image: Option<&ImageSpec>,
        now_us: u64,
        advice: &impl Advice,
    ) -> Ghost {
        if !self.has_ghosts {
            return Ghost::Empty;
        }
        self.starting += 1;
        if let Some(image) = image {
            let (taken, stale) = self.ledger.take_attached(node, image, now_us);
            self.stop(stale);
            if let Some(id) = taken {
                self.taken(id);
                return Ghost::Attached;
            }
        }
        let taken = self.ledger.take_empty(node, memory_mb, now_us);
        self.refill(node, memory_mb, now_us, advice);
        match taken {
            Some(id) => {
                self.taken(id);
                Ghost::Empty
            }
            None => Ghost::New,
        }
    }

    /// That start has ended. If the instance is a clone, with its image and how long the start took apart from making a
    /// container: then ghosts with the image may be ordered.
    pub fn started(
        &mut self,
        node: NodeId,
        clone: Option<(&GhostImage, u64, bool)>,
        (now_us, pool): (u64, Memory),
        advice: &impl Advice,
    ) {
        if !self.has_ghosts {
            return;
        }
        self.starting -= 1;
        if let Some((GhostImage { spec, ghost_bytes }, us, was_attached)) = clone {
            self.ledger.record_start(node, spec.image, us, was_attached);
            let orders = self.ledger.order_attached(node, spec, pool, now_us, advice);
            self.order(node, orders, *ghost_bytes);
        }
        if self.starting == 0
            && let Some((making, false)) = self.turn
        {
            self.make(making);
        }
        self.next();
    }

    /// Removes those of these ghosts that wait, and makes none there for a moment. Returns their bytes, and those that
    /// are free once they have [ended](Agents::stopped).
    pub fn withdraw(&mut self, node: NodeId, ids: &[OccupantId], now_us: u64) -> (u64, u64) {
        if !self.has_ghosts {
            return (0, 0);
        }
        let (withdrawn, bytes) = self.ledger.withdraw(node, ids, now_us);
        (
            bytes,
            withdrawn
                .iter()
                .filter_map(|ghost| self.ghosts.remove(&ghost.id))
                .map(|(_, bytes)| bytes)
                .sum(),
        )
    }

    /// Ghosts have ended.
    pub fn stopped(&mut self, node: NodeId, bytes: u64) {
        self.ghost_bytes -= bytes;
        self.changed(node, bytes, 0);
    }

    /// An image is removed: its ghosts end.
    pub fn forget_image(&mut self, image: Option<ImageId>) {
        if let Some(image) = image {
            let useless = self.ledger.forget_image(image);
            self.stop(useless);
        }
    }

    fn refill(&mut self, node: NodeId, memory_mb: u64, now_us: u64, advice: &impl Advice) {
        let orders = self.ledger.order_empty(node, memory_mb, now_us, advice);
        self.order(node, orders, EMPTY_BYTES);
        self.next();
    }

    fn order(&mut self, node: NodeId, orders: Vec<GhostOrder>, bytes: u64) {
        self.queue.extend(orders.into_iter().map(|order| Making { order, node, bytes }));
    }

    /// Begins to make the next ghost, unless one is being made.
    fn next(&mut self) {
        while self.turn.is_none() {
            let Some(making) = self.queue.pop_front() else { return };
            if self.starting > 0 {
                self.later.push((PATIENCE_US, Later::Turn(making.order.id)));
                self.turn = Some((making, false));
            } else {
                self.make(making);
            }
        }
    }

    /// Makes a ghost whose turn it is, if it still has room.
    fn make(&mut self, making: Making) {
        let GhostOrder { id, bytes } = making.order;
        let has_room = bytes.is_none_or(|bytes| self.ledger.set_aside(id, bytes));
        self.turn = has_room.then_some((making, true));
        match has_room {
            true => self.later.push((MAKE_US, Later::Made(id))),
            false => drop(self.ledger.made(id, None)),
        }
    }

    fn made(&mut self, id: u64) {
        let Some((Making { order, node, bytes }, _)) = self.turn.take() else { return };
        if order.bytes.is_some() {
            self.later.push((COUNTED_US, Later::Counted(id)));
        }
        self.ghosts.insert(id, (node, bytes));
        self.ghost_bytes += bytes;
        self.changed(node, 0, bytes);
        if self.ledger.made(id, Some(bytes)) {
            self.stop([GhostRef { node, id }]);
        }
        self.next();
    }

    fn tend(&mut self, now_us: u64, pool: Memory, advice: &impl Advice) {
        let surplus = self.ledger.surplus(pool, now_us, advice);
        self.stop(surplus);
        for node in self.ledger.ids() {
            if self.ledger.waiting_empty(node, USUAL_MB) == 0 {
                self.refill(node, USUAL_MB, now_us, advice);
            }
        }
    }

    /// A ghost has become an instance, whose memory is counted from now on.
    fn taken(&mut self, id: u64) {
        if let Some((node, bytes)) = self.ghosts.remove(&id) {
            self.stopped(node, bytes);
        }
    }

    fn stop(&mut self, ghosts: impl IntoIterator<Item = GhostRef>) {
        for ghost in ghosts {
            if let Some((node, bytes)) = self.ghosts.remove(&ghost.id) {
                self.later.push((STOP_US, Later::Stopped(node, bytes)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use farfork_policy::growth::OneByOne;
    use farfork_policy::{Policies, Question, Settings};
    use farfork_types::{Cid, Tiering};

    use super::*;

    struct Defaults(Policies);

    impl Advice for Defaults {
        fn decide_if<F: Question>(
            &self,
            _: &dyn Display,
            facts: &F,
            _: impl FnOnce(&F::Choice) -> bool,
        ) -> F::Choice {
            F::policy(&self.0).decide(facts).choice
        }
    }

    /// Does what is due until a time, which includes all that follows.
    fn pass(agents: &mut Agents, due: &mut Vec<(u64, Later)>, from_us: u64, to_us: u64) {
        let advice = Defaults(Settings::default().into());
        due.extend(agents.take_later().into_iter().map(|(us, later)| (from_us + us, later)));
        while let Some(first) = due.iter().enumerate().min_by_key(|(_, one)| one.0).map(|one| one.0)
            && due[first].0 <= to_us
        {
            let (at_us, later) = due.remove(first);
            agents.happens(later, at_us, Memory { used_bytes: 0, budget_bytes: 1 << 40 }, &advice);
            due.extend(agents.take_later().into_iter().map(|(us, later)| (at_us + us, later)));
        }
    }

    #[test]
    fn ghosts_are_made_one_at_a_time_and_taken_once() {
        let advice = Defaults(Settings::default().into());
        let growth = Settings::default().growth;
        let mut agents = Agents::new(["a".to_owned()], 1 << 30, growth, true);
        let (node, mut due) = (agents.ledger.node("a").unwrap(), Vec::new());
        agents.begin(0, &advice);
        pass(&mut agents, &mut due, 0, MAKE_US - 1);
        assert_eq!((agents.ledger.waiting_empty(node, USUAL_MB), agents.ghost_bytes()), (0, 0));
        pass(&mut agents, &mut due, MAKE_US - 1, MAKE_US);
        assert_eq!(
            (agents.ledger.waiting_empty(node, USUAL_MB), agents.ghost_bytes()),
            (1, EMPTY_BYTES)
        );
        let spec = ImageSpec {
            image: agents.ledger.image("f:1"),
            cid: Cid::NIL,
            tiering: Tiering::Mow,
            memory_mb: USUAL_MB,
        };
        let image = GhostImage { spec, ghost_bytes: 3 << 20 };
        let pool = Memory { used_bytes: 0, budget_bytes: 1 << 40 };
        let mut kinds = Vec::new();
        // As many starts as make a ghost with the image worth its memory.
        for start in 1..200u64 {
            let at_us = start * 1_000_000;
            pass(&mut agents, &mut due, at_us, at_us);
            let ghost = agents.take(node, USUAL_MB, Some(&image.spec), at_us, &advice);
            let us = if ghost == Ghost::Attached { 1_000 } else { 3_000 };
            agents.started(
                node,
                Some((&image, us, ghost == Ghost::Attached)),
                (at_us, pool),
                &advice,
            );
            kinds.push(ghost);
            pass(&mut agents, &mut due, at_us, at_us);
        }
        assert_eq!(kinds[0], Ghost::Empty);
        assert_eq!(kinds.last(), Some(&Ghost::Attached));
        assert!(!kinds.contains(&Ghost::New), "a second is enough to make another: {kinds:?}");
        // Four at one moment: one has the image, and there are not enough empty ones for the others.
        let at_us = 201_000_000;
        pass(&mut agents, &mut due, at_us, at_us);
        let four = [(); 4].map(|()| agents.take(node, USUAL_MB, Some(&image.spec), at_us, &advice));
        assert_eq!((four[0], four[3]), (Ghost::Attached, Ghost::New), "{four:?}");
        agents.forget_image(Some(image.spec.image));
        pass(&mut agents, &mut due, at_us, at_us + 2_000_000);
        let empty = agents.ledger.waiting_empty(node, USUAL_MB);
        assert_eq!(agents.ghost_bytes(), empty * EMPTY_BYTES);
    }

    #[test]
    fn instances_pause_where_they_may_take_more_than_is_free() {
        let growth = Growth::OneByOne(OneByOne { slack_bytes: 10 << 20 });
        let settings = Settings { growth, ..Settings::default() };
        let advice = Defaults(settings.into());
        let mut agents = Agents::new(["a".to_owned()], 1000 << 20, growth, false);
        let node = agents.ledger.node("a").unwrap();
        let claim = Claim { memory_mb: 600, expected_bytes: Some(10 << 20) };
        let ids = [(); 3].map(|()| agents.reserve(node, claim).unwrap());
        for id in ids {
            agents.ledger.started(id, 1);
            agents.weighed(id, 0, Usage { local_bytes: 250 << 20, pool_bytes: 0 });
        }
        let check = |agents: &mut Agents, at_us| {
            let later = agents.take_later();
            assert_eq!(
                later,
                [(CLOSELY_US, Later::Growth(node))],
                "once, however much has changed"
            );
            agents.happens(later[0].1, at_us, Memory::default(), &advice);
            let pauses = agents.take_pauses();
            pauses.into_iter().map(|change| (change.id, change.paused)).collect::<Vec<_>>()
        };
        // 250 MB are free, and each may take 350.
        assert_eq!(check(&mut agents, 0), [(ids[1], true), (ids[2], true)]);
        assert_eq!(check(&mut agents, 5), [], "nothing has changed");
        assert_eq!(agents.take_later(), [], "so it is not asked again");
        agents.ended(ids[0], 250 << 20);
        assert_eq!(check(&mut agents, 10), [(ids[1], false), (ids[2], false)]);
        assert_eq!(agents.ledger.paused_us(ids[1], 20), 10);
    }

    #[test]
    fn a_ghost_waits_for_starts_but_not_for_long() {
        let advice = Defaults(Settings::default().into());
        let growth = Settings::default().growth;
        let mut agents = Agents::new(["a".to_owned()], 1 << 30, growth, true);
        let (node, mut due) = (agents.ledger.node("a").unwrap(), Vec::new());
        assert_eq!(agents.take(node, USUAL_MB, None, 0, &advice), Ghost::New);
        pass(&mut agents, &mut due, 0, PATIENCE_US + MAKE_US - 1);
        assert_eq!(agents.ledger.waiting_empty(node, USUAL_MB), 0);
        pass(&mut agents, &mut due, 0, PATIENCE_US + MAKE_US);
        assert_eq!(agents.ledger.waiting_empty(node, USUAL_MB), 1);
    }
}
