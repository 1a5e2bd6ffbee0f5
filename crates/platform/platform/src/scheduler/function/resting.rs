//! Idle instances: how long they stay, and when they are frozen.

use farfork_scheduler::{AboutToRest, RestEffect};

use super::Function;
use crate::scheduler::instance::Instance;

impl Function {
    /// Makes an instance idle, for a while.
    pub(super) fn rest(&mut self, instance: Option<Box<Instance>>) {
        let Some(instance) = instance.filter(|instance| !instance.has_ended()) else { return };
        let node = self.shared.nodes.load(&instance.slot.node);
        let about_to_rest = AboutToRest {
            calls: instance.history.calls,
            reads_from_pool: instance.reads_from_pool(),
        };
        let advisor = &*self.shared.advisor;
        let window = self.state.window(about_to_rest, node, self.is_gone, advisor);
        if window.promotes {
            // While it counts as busy, room for what it may take is set aside.
            self.promote(&instance);
        }
        self.shared.nodes.end_work(instance.id);
        let (now_us, id) = (self.clock.now_us(), instance.id);
        let freeze_after_us = super::micros(self.shared.advisor.freeze_after());
        let calls = self.state.rest(now_us, id, window, freeze_after_us);
        instance.slot.set_idle(Some(calls), self.state.local_bytes());
        self.idle.insert(id, instance);
    }

    /// Ends an instance if it is idle.
    pub(super) fn end_idle(&mut self, id: u64) {
        self.state.forget(id);
        self.idle.remove(&id);
    }

    pub(super) fn forget_ended(&mut self) {
        let has_ended = |id: &u64| self.idle.get(id).is_none_or(|instance| instance.has_ended());
        let ended: Vec<u64> = self.state.idle().filter(has_ended).collect();
        ended.into_iter().for_each(|id| self.end_idle(id));
    }

    /// Ends idle instances whose window is over, and freezes those that are due.
    pub(super) fn tend_idle(&mut self) {
        for effect in self.state.tend(self.clock.now_us(), self.is_gone) {
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
