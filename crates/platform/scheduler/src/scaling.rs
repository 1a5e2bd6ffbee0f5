//! Scale-out: the calls of one function that wait and run, and the instances that it lacks for them.
//!
//! ```text
//!  call ─► waits ──► runs ─► ended
//!            ▲ └─► given up: too many tries, or no room      not sent ─┐
//!            └─────────────────────────────────────────────────────────┘
//!  calls that wait, minus instances that start ─► instances to start ─► no room: evict, wait, refuse
//! ```
//! Invariant: each call leaves once: it ends, is given up, or is dropped because it may not begin.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

use farfork_policy::admission::{Admission, AdmissionFacts, Asker, is_patient};
use farfork_policy::node::NodeRef;
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::NodeFacts;

use crate::advice::Advice;
use crate::claim::Claim;
use crate::fleet::Occupancy;

/// How often a call is dispatched before it is given up.
const MOST_TRIES: u32 = 3;
/// How long a call waits for a node that answers.
const NO_NODE_US: u64 = 10_000_000;
/// Period of retries while no node has room.
const RETRY_US: u64 = 100_000;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queued {
    id: u64,
    /// How often it was dispatched without success.
    tries: u32,
    since_us: u64,
}

/// What happens where no node has room for an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// It waits until there is.
    Wait,
    /// These are evicted from a node.
    Evict(NodeRef, Vec<OccupantId>),
    /// A call is refused, as there will be no room for it.
    Refuse(Option<u64>),
    /// No node answers: these calls have waited too long for one.
    NoNode(Vec<u64>),
}

/// The calls of one function, and its instances that start.
#[derive(Clone, Debug, Default)]
pub struct Scaling {
    queue: VecDeque<Queued>,
    running: BTreeMap<u64, Queued>,
    /// Instances that are being checkpointed.
    checkpointing: usize,
    starting: usize,
    /// When to try again to start an instance.
    retry_us: Option<u64>,
}

impl Scaling {
    /// A call has come, which has waited since then.
    pub fn called(&mut self, id: u64, since_us: u64) {
        self.queue.push_back(Queued { id, tries: 0, since_us });
    }

    /// Number of calls that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Number of instances that are being started.
    pub fn starting(&self) -> usize {
        self.starting
    }

    /// Number of instances that serve a call or are being checkpointed.
    pub fn busy(&self) -> usize {
        self.running.len() + self.checkpointing
    }

    /// Whether no call runs or waits.
    pub fn is_quiet(&self) -> bool {
        self.busy() == 0 && self.queue.is_empty()
    }

    /// The call that has to be dispatched next.
    pub fn next(&self) -> Option<u64> {
        self.queue.front().map(|call| call.id)
    }

    /// The call for which the instance starts that was ordered last.
    pub fn starts_for(&self) -> Option<u64> {
        let call = self.queue.get(self.starting.checked_sub(1)?).or(self.queue.back());
        call.map(|call| call.id)
    }

    /// The next call may not begin any more, and leaves.
    pub fn drop_next(&mut self) {
        self.queue.pop_front();
    }

    /// The next call is sent to an instance.
    pub fn dispatch(&mut self) {
        if let Some(call) = self.queue.pop_front() {
            self.running.insert(call.id, call);
        }
    }

    /// A call that was dispatched has ended.
    pub fn ended(&mut self, id: u64) {
        self.running.remove(&id);
    }

    /// A call was not sent to its instance. It waits again, or is given up: then it is returned.
    pub fn not_sent(&mut self, id: u64) -> Option<u64> {
        self.running.remove(&id).and_then(|call| self.try_again(call))
    }

    fn try_again(&mut self, call: Queued) -> Option<u64> {
        let call = Queued { tries: call.tries + 1, ..call };
        if call.tries < MOST_TRIES {
            self.queue.push_front(call);
            return None;
        }
        Some(call.id)
    }

    /// All calls that wait are given up, and returned.
    pub fn give_up_all(&mut self) -> Vec<u64> {
        self.queue.drain(..).map(|call| call.id).collect()
    }

    /// An instance is being checkpointed, or not any more.
    pub fn checkpointing(&mut self, is_so: bool) {
        self.checkpointing = if is_so { self.checkpointing + 1 } else { self.checkpointing - 1 };
    }

    /// How many instances are to be started now. While an image is made, waiting for a clone is quicker
    /// than a cold start.
    pub fn lacking(&mut self, now_us: u64, is_image_made: bool) -> usize {
        if self.retry_us.is_some_and(|at| at > now_us) && !self.queue.is_empty() {
            return 0;
        }
        self.retry_us = None;
        let lacking = self.queue.len().saturating_sub(self.starting);
        if is_image_made { 0 } else { lacking }
    }

    /// When to try again to start an instance.
    pub fn retry_us(&self) -> Option<u64> {
        self.retry_us
    }

    /// There may be room now.
    pub fn room(&mut self) {
        self.retry_us = None;
    }

    /// An instance is being started.
    pub fn start(&mut self) {
        self.starting += 1;
    }

    /// A start has ended, one way or the other.
    pub fn start_ended(&mut self) {
        self.starting -= 1;
    }

    /// A start has lost its room to another.
    pub fn lost_room(&mut self, now_us: u64) {
        self.retry_us = Some(now_us + RETRY_US);
    }

    /// Whether a failed start counts. All starts on a lost node fail at once, and it is not used until it
    /// answers: so they count if calls have waited long.
    pub fn counts(&self, now_us: u64, is_node_lost: bool) -> bool {
        !is_node_lost || self.queue.front().is_some_and(|call| waits_long(call, now_us))
    }

    /// Charges a call with a failed start, if no other start may serve it. Returns it if it is given up.
    pub fn charge(&mut self) -> Option<u64> {
        if self.queue.len() <= self.starting {
            return None;
        }
        self.queue.pop_front().and_then(|call| self.try_again(call))
    }

    /// Decides what happens where none of these nodes has room for an instance that may take so many
    /// bytes. With each node, the bytes on it that could become free; what is on it is looked at only if it is asked.
    pub fn no_room(
        &mut self,
        now_us: u64,
        most_bytes: u64,
        nodes: impl IntoIterator<Item = (NodeFacts, u64)>,
        occupancy: impl Fn(&NodeRef) -> Occupancy,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> NoRoom {
        self.retry_us = Some(now_us + RETRY_US);
        let most_free = |node: &NodeFacts, could_free: u64| {
            node.memory.free_below(1000).saturating_add(could_free)
        };
        let ranked = |(node, could_free): (NodeFacts, u64)| (most_free(&node, could_free), node);
        let mut nodes: Vec<(u64, NodeFacts)> = nodes.into_iter().map(ranked).collect();
        nodes.sort_by_key(|(most_free, _)| Reverse(*most_free));
        if nodes.is_empty() {
            return NoRoom::NoNode(self.late(now_us));
        }
        for (_, node) in nodes {
            let facts = self.admission_facts(now_us, most_bytes, &node, occupancy(&node.node));
            match advice.decide(about, &facts) {
                // Room has become free meanwhile.
                Admission::Start | Admission::Wait => return NoRoom::Wait,
                Admission::Evict(ids) => return NoRoom::Evict(node.node, ids),
                Admission::Refuse => {}
            }
        }
        NoRoom::Refuse(self.queue.pop_back().map(|call| call.id))
    }

    /// What an answer to this function depends on, beside the nodes.
    pub fn asker(&self, now_us: u64, claim: Claim) -> Asker {
        Asker {
            first_bytes: claim.first_bytes(),
            most_bytes: claim.most_bytes(),
            queued: self.queue.len() as u64,
            has_busy: self.busy() + self.starting > 0,
            is_patient: is_patient(self.waited_ms(now_us)),
        }
    }

    /// There is no room, as an equal function was answered at this moment.
    pub fn still_no_room(&mut self, now_us: u64) {
        self.retry_us = Some(now_us + RETRY_US);
    }

    /// How long the first call has waited.
    fn waited_ms(&self, now_us: u64) -> u64 {
        self.queue.front().map_or(0, |call| now_us.saturating_sub(call.since_us)) / 1000
    }

    fn admission_facts(
        &self,
        now_us: u64,
        most_bytes: u64,
        node: &NodeFacts,
        seen: Occupancy,
    ) -> AdmissionFacts {
        AdmissionFacts {
            need_bytes: node.need_bytes.unwrap_or(most_bytes),
            most_bytes,
            memory: node.memory,
            idle: seen.idle,
            // This function's own may not be counted yet.
            busy: seen.busy.max(self.busy() as u64) + node.starting.max(self.starting as u64),
            leaving_bytes: seen.leaving_bytes,
            is_settling: seen.is_settling,
            queued: self.queue.len() as u64,
            waited_ms: self.waited_ms(now_us),
        }
    }

    /// Gives up the calls that have waited too long for a node.
    fn late(&mut self, now_us: u64) -> Vec<u64> {
        let late = self.queue.iter().take_while(|call| waits_long(call, now_us)).count();
        self.queue.drain(..late).map(|call| call.id).collect()
    }
}

fn waits_long(call: &Queued, now_us: u64) -> bool {
    now_us.saturating_sub(call.since_us) > NO_NODE_US
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::ByDefault;
    use farfork_policy::Memory;
    use farfork_policy::admission::Idle;
    use proptest::prelude::*;

    /// A function with these calls, which wait since their number in milliseconds.
    fn called<const N: usize>(ids: [u64; N]) -> Scaling {
        let mut scaling = Scaling::default();
        ids.into_iter().for_each(|id| scaling.called(id, id * 1000));
        scaling
    }

    #[test]
    fn as_many_start_as_wait_minus_those_that_start() {
        let mut scaling = called([1, 2, 3]);
        assert_eq!(scaling.lacking(0, false), 3);
        assert_eq!(scaling.lacking(0, true), 0, "a clone will be quicker");
        scaling.start();
        assert_eq!((scaling.lacking(0, false), scaling.starting()), (2, 1));
        scaling.dispatch();
        assert_eq!((scaling.lacking(0, false), scaling.busy(), scaling.next()), (1, 1, Some(2)));
        scaling.lost_room(0);
        assert_eq!((scaling.retry_us(), scaling.lacking(RETRY_US - 1, false)), (Some(RETRY_US), 0));
        assert_eq!(scaling.lacking(RETRY_US, false), 1);
        scaling.lost_room(0);
        scaling.room();
        assert_eq!(scaling.lacking(0, false), 1, "something has ended");
    }

    #[test]
    fn a_call_that_is_not_sent_is_tried_three_times() {
        let mut scaling = called([1, 2]);
        for expected in [None, None, Some(1)] {
            assert_eq!(scaling.next(), Some(1), "before others");
            scaling.dispatch();
            assert_eq!(scaling.not_sent(1), expected);
        }
        assert_eq!((scaling.next(), scaling.is_quiet()), (Some(2), false));
        scaling.dispatch();
        scaling.ended(2);
        assert!(scaling.is_quiet());
    }

    #[test]
    fn a_failed_start_is_charged_to_a_call_that_no_other_start_serves() {
        let mut scaling = called([1, 2]);
        scaling.start();
        assert_eq!([scaling.charge(), scaling.charge(), scaling.charge()], [None, None, Some(1)]);
        let charged = [scaling.charge(), scaling.charge(), scaling.charge()];
        assert_eq!((charged, scaling.waiting()), ([None; 3], 1), "the other start serves it");
        assert!(scaling.counts(0, false) && !scaling.counts(2000 + NO_NODE_US, true));
        assert!(scaling.counts(2001 + NO_NODE_US, true));
    }

    fn node(name: &str, used_bytes: u64) -> NodeFacts {
        let memory = Memory { used_bytes, budget_bytes: 1000 };
        NodeFacts { node: name.into(), memory, ..NodeFacts::default() }
    }

    fn idle(bytes: u64) -> Occupancy {
        let id = OccupantId::instance(7);
        let idle = vec![Idle { id, bytes, saves_us: 1, uses_per_hour: 1 }];
        Occupancy { idle, ..Occupancy::default() }
    }

    #[test]
    fn without_room_the_node_where_most_can_be_freed_is_asked_first() {
        let advice = ByDefault::new();
        let decided = |scaling: &mut Scaling, nodes: Vec<(NodeFacts, Occupancy)>| {
            let on = |name: &NodeRef| {
                nodes.iter().find(|(node, _)| node.node == *name).unwrap().1.clone()
            };
            let could_free = nodes.iter().map(|(node, seen)| (node.clone(), seen.could_free()));
            scaling.no_room(0, 100, could_free, on, &"f", &advice)
        };
        let mut scaling = called([1, 2]);
        // The first one would wait for its busy instance.
        let busy = Occupancy { busy: 1, ..idle(50) };
        let both = vec![(node("a", 990), busy), (node("b", 990), idle(140))];
        let expected = NoRoom::Evict("b".into(), vec![OccupantId::instance(7)]);
        assert_eq!(decided(&mut scaling, both), expected);
        assert_eq!(scaling.retry_us(), Some(RETRY_US));
        let small = || vec![(node("a", 990), idle(50))];
        assert_eq!(decided(&mut scaling, small()), NoRoom::Refuse(Some(2)), "the last one");
        scaling.dispatch();
        scaling.called(3, 0);
        assert_eq!(decided(&mut scaling, small()), NoRoom::Wait, "an instance is busy");
        assert_eq!(decided(&mut scaling, vec![(node("a", 0), idle(0))]), NoRoom::Wait, "there is");
    }

    #[test]
    fn where_no_node_answers_calls_wait_for_a_while() {
        let (mut scaling, advice) = (called([1, 2, 3]), ByDefault::new());
        let mut decided = |now_us| scaling.no_room(now_us, 100, [], |_| panic!(), &"f", &advice);
        assert_eq!(decided(1000 + NO_NODE_US), NoRoom::NoNode(vec![]));
        assert_eq!(decided(2001 + NO_NODE_US), NoRoom::NoNode(vec![1, 2]));
        assert_eq!(scaling.give_up_all(), [3]);
    }

    proptest! {
        #[test]
        fn each_call_leaves_once(steps in proptest::collection::vec(0u8..9, 1..200)) {
            let (mut scaling, mut made) = (Scaling::default(), 0);
            let (mut sent, mut left) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    0..3 => {
                        made += 1;
                        scaling.called(made, 0);
                    }
                    3 | 4 => {
                        sent.extend(scaling.next());
                        scaling.dispatch();
                    }
                    5 => if let Some(id) = sent.pop() {
                        left.push(id);
                        scaling.ended(id);
                    }
                    6 => if let Some(id) = sent.pop() {
                        left.extend(scaling.not_sent(id));
                    }
                    7 => left.extend(scaling.charge()),
                    _ => {
                        left.extend(scaling.next());
                        scaling.drop_next();
                    }
                }
                prop_assert_eq!(scaling.busy(), sent.len());
                prop_assert_eq!(scaling.waiting() + sent.len() + left.len(), made as usize);
            }
            left.extend(sent);
            left.extend(scaling.give_up_all());
            left.sort_unstable();
            prop_assert_eq!(left, (1..=made).collect::<Vec<u64>>());
        }
    }
}
