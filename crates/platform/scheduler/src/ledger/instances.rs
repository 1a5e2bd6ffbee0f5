//! Instances: their reservations, work, pauses, freezes and promotions.

use farfork_policy::occupant::OccupantId;

use farfork_types::LocalShare;

use super::{Ledger, NodeId, Occupant};
use crate::claim::{Claim, Usage};
use crate::instance::Instance;

/// A change of an instance's pause, to be sent to its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseChange {
    /// The instance.
    pub id: u64,
    /// Its pid.
    pub pid: i32,
    /// Whether it is to be paused, or resumed.
    pub paused: bool,
}

/// A promotion that may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The instance's node.
    pub node: NodeId,
    /// Its pid.
    pub pid: i32,
}

impl Ledger {
    pub(super) fn instance(&self, id: u64) -> Option<&Instance> {
        match self.occupants.get(&id)? {
            Occupant::Instance(one) => Some(one),
            Occupant::Ghost(_) => None,
        }
    }

    /// Changes an instance, and the sums of its node with it.
    pub(super) fn change(&mut self, id: u64, change: impl FnOnce(&mut Instance)) {
        let Some(Occupant::Instance(one)) = self.occupants.get_mut(&id) else { return };
        let before = one.share();
        change(one);
        let (node, after) = (one.node, one.share());
        self.nodes[node].sums.remove(before);
        self.nodes[node].sums.add(after);
    }

    /// Reserves memory for an instance to be started, which counts as busy. Returns its number, with
    /// which [`Ledger::end`] has to be called once; `None` without room.
    pub fn reserve(&mut self, node: NodeId, claim: Claim) -> Option<u64> {
        let id = self.new_number();
        let fits = self.if_it_fits(
            node,
            |ledger| ledger.insert(id, Instance::starting(node.index(), claim)),
            |ledger| {
                ledger.end(id);
            },
        );
        fits.then_some(id)
    }

    fn insert(&mut self, id: u64, one: Instance) {
        let node = &mut self.nodes[one.node];
        node.sums.add(one.share());
        node.instances.insert(id);
        self.occupants.insert(id, Occupant::Instance(one));
    }

    /// Ends an instance, or a reservation that did not become one. Returns whether there was one.
    pub fn end(&mut self, id: u64) -> bool {
        let Some(one) = self.instance(id) else { return false };
        let (node, share) = (one.node, one.share());
        self.nodes[node].sums.remove(share);
        self.nodes[node].instances.remove(&id);
        self.occupants.remove(&id);
        true
    }

    /// Sets the pid of an instance, which has started.
    pub fn started(&mut self, id: u64, pid: i32) {
        self.change(id, |one| one.pid = Some(pid));
    }

    /// The node of an instance.
    pub fn node_of(&self, id: u64) -> Option<NodeId> {
        self.instance(id).and_then(|one| u32::try_from(one.node).ok()).map(NodeId)
    }

    /// Node and pid of an instance that has started and not ended.
    pub fn location(&self, id: u64) -> Option<(NodeId, i32)> {
        Some((self.node_of(id)?, self.instance(id)?.pid?))
    }

    /// Marks an instance busy. Returns false if there is no room for what it may take, or if it is
    /// frozen and no agent answers to thaw it.
    pub fn begin_work(&mut self, id: u64) -> bool {
        let (Some(one), Some(node)) = (self.instance(id), self.node_of(id)) else { return false };
        if one.is_frozen && !self.answers(node) {
            return false;
        }
        one.is_busy
            || self.if_it_fits(
                node,
                |ledger| ledger.change(id, |one| one.is_busy = true),
                |ledger| ledger.change(id, |one| one.is_busy = false),
            )
    }

    /// Marks an instance idle.
    pub fn end_work(&mut self, id: u64) {
        self.change(id, |one| one.is_busy = false);
    }

    /// Sets which instances of a node are paused. Returns the changes to send to the agent. A
    /// starting instance cannot be paused.
    pub fn pause(&mut self, node: NodeId, ids: &[OccupantId], now_us: u64) -> Vec<PauseChange> {
        let due = |(id, one): (u64, &Instance)| {
            let paused = ids.iter().any(|other| other.as_instance() == Some(id));
            let pid = one.pid.filter(|_| one.is_paused() != paused)?;
            Some(PauseChange { id, pid, paused })
        };
        let changes: Vec<PauseChange> = self.here(node).filter_map(due).collect();
        for PauseChange { id, paused, .. } in &changes {
            self.change(*id, |one| one.set_paused(*paused, now_us));
        }
        changes
    }

    /// Undoes a change that could not be sent to the agent.
    pub fn undo_pause(&mut self, id: u64, paused: bool, now_us: u64) {
        self.change(id, |one| one.set_paused(!paused, now_us));
    }

    /// How long an instance was paused in all, in microseconds.
    pub fn paused_us(&self, id: u64, now_us: u64) -> u64 {
        self.instance(id).map_or(0, |one| one.paused_us(now_us))
    }

    /// Prevents pauses of an instance, or allows them again.
    pub fn prevent_pause(&mut self, id: u64, goes_on: bool) {
        self.change(id, |one| one.goes_on = goes_on);
    }

    /// Marks an idle instance frozen; returns its node and pid. `None` if it is busy, paused or has
    /// ended.
    pub fn freeze(&mut self, id: u64) -> Option<(NodeId, i32)> {
        let one = self.instance(id)?;
        if one.is_busy || one.is_paused() {
            return None;
        }
        self.change(id, |one| one.is_frozen = true);
        self.location(id)
    }

    /// Marks an instance as thawed.
    pub fn thawed(&mut self, id: u64) {
        // Most calls find it awake.
        if !self.instance(id).is_some_and(|one| one.is_frozen) {
            return;
        }
        self.change(id, |one| one.is_frozen = false);
    }

    /// Reserves memory to promote an instance, until [`Ledger::promoted`]: as much as it was last seen to
    /// map from the pool. `None` if there is no room, or the instance was not measured yet or has ended.
    pub fn promote(&mut self, id: u64) -> Option<Promotion> {
        let bytes = self.instance(id)?.usage?.pool_bytes;
        self.take(id, |one| &mut one.promoted_bytes, bytes)
    }

    /// Reserves memory to change the share of near memory of an instance that may not have been measured yet, and had
    /// the share `from`, until [`Ledger::share_changed`]: what the share adds of what it may take. A smaller share needs
    /// no room. `None` also as long as an earlier promotion or change is not counted.
    pub fn promote_to(
        &mut self,
        id: u64,
        from: Option<LocalShare>,
        to: LocalShare,
    ) -> Option<Promotion> {
        let one = self.instance(id).filter(|one| one.promoted_bytes + one.share_bytes == 0)?;
        let of_all = |share: LocalShare| share.of(one.most_bytes());
        match of_all(to).saturating_sub(from.map_or(0, of_all)) {
            0 => Some(Promotion { node: self.node_of(id)?, pid: one.pid? }),
            bytes => self.take(id, |one| &mut one.share_bytes, bytes),
        }
    }

    /// Reserves memory that is about to become an instance's own.
    fn take(
        &mut self,
        id: u64,
        reserved: fn(&mut Instance) -> &mut u64,
        bytes: u64,
    ) -> Option<Promotion> {
        let mut one = self.instance(id)?.clone();
        let (node, pid, before) = (self.node_of(id)?, one.pid?, *reserved(&mut one));
        let fits = self.if_it_fits(
            node,
            |ledger| ledger.change(id, |one| *reserved(one) = bytes),
            |ledger| ledger.change(id, |one| *reserved(one) = before),
        );
        fits.then_some(Promotion { node, pid })
    }

    /// A promotion has ended, and what it took was counted.
    pub fn promoted(&mut self, id: u64) {
        self.change(id, |one| one.promoted_bytes = 0);
    }

    /// A change of a share has ended, and what it took was counted.
    pub fn share_changed(&mut self, id: u64) {
        self.change(id, |one| one.share_bytes = 0);
    }

    /// Records the memory of one instance.
    pub fn measured(&mut self, id: u64, usage: Usage) {
        self.change(id, |one| one.usage = Some(usage));
    }

    /// The last measured memory of an instance.
    pub fn usage(&self, id: u64) -> Option<Usage> {
        self.instance(id)?.usage
    }
}
