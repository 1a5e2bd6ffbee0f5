//! Idle instances: how long they stay, and when they are frozen.

use farfork_policy::placement::NodeFacts;
use farfork_scheduler::RestEffect;

use super::Function;
use crate::scheduler::instance::Instance;

impl Function {
    /// Makes an instance idle, for a while.
    pub(super) fn rest(&mut self, instance: Option<Box<Instance>>) {
        let Some(instance) = instance.filter(|instance| !instance.has_ended()) else { return };
        let node = self.node(&instance.slot.node);
        let memory = node.as_ref().map(|node| node.memory).unwrap_or_default();
        let advisor = &*self.shared.advisor;
        let window_ms = self.resting.window_ms(memory, self.has_image(), &self.about, advisor);
        let freeze_after = advisor.freeze_after();
        if let Some(node) = node.filter(|_| window_ms > 0 && !self.is_gone) {
            // While it counts as busy, room for what it may take is set aside.
            self.promote(&instance, &node);
        }
        self.shared.nodes.end_work(instance.id);
        let (now_us, id) = (self.clock.now_us(), instance.id);
        let calls = self.resting.rest(now_us, id, window_ms, super::micros(freeze_after));
        instance.slot.set_idle(Some(calls), self.local_bytes);
        self.idle.insert(id, instance);
    }

    /// The current facts of a node, if it answers.
    fn node(&self, name: &str) -> Option<NodeFacts> {
        let nodes = self.shared.nodes.nodes(self.claim(), None);
        nodes.into_iter().find(|found| found.name == name)
    }

    /// Ends an instance if it is idle.
    pub(super) fn end_idle(&mut self, id: u64) {
        self.resting.forget(id);
        self.idle.remove(&id);
    }

    pub(super) fn forget_ended(&mut self) {
        let has_ended = |id: &u64| self.idle.get(id).is_none_or(|instance| instance.has_ended());
        let ended: Vec<u64> = self.resting.ids().filter(has_ended).collect();
        ended.into_iter().for_each(|id| self.end_idle(id));
    }

    /// Ends idle instances whose window is over, and freezes those that are due.
    pub(super) fn tend_idle(&mut self) {
        let all_end = self.is_gone && self.queue.is_empty();
        for effect in self.resting.tend(self.clock.now_us(), all_end) {
            match effect {
                RestEffect::End(id) => drop(self.idle.remove(&id)),
                RestEffect::Freeze(id) => {
                    if let Some(instance) = self.idle.get_mut(&id) {
                        instance.freeze(&*self.shared.nodes);
                    }
                }
            }
        }
    }
}
