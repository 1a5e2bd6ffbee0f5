//! Idle instances: how long they stay, and when they are frozen.

use std::time::Duration;

use farfork_policy::keep_alive::IdleFacts;
use farfork_policy::placement::NodeFacts;
use farfork_scheduler::Advice;
use tokio::time::Instant;

use super::Function;
use crate::scheduler::instance::Instance;

/// An idle instance.
pub(super) struct Idle {
    pub instance: Box<Instance>,
    /// When to freeze it, if it is not frozen.
    freeze_at: Option<Instant>,
    /// When to end it.
    until: Instant,
}

impl Idle {
    /// When the next of these is due.
    pub fn due(&self) -> Instant {
        self.freeze_at.map_or(self.until, |at| at.min(self.until))
    }
}

impl Function {
    /// Makes an instance idle, for a while.
    pub(super) fn rest(&mut self, instance: Option<Box<Instance>>) {
        let Some(instance) = instance.filter(|instance| !instance.has_ended()) else { return };
        let node = self.node(&instance.slot.node);
        let facts = IdleFacts {
            memory: node.as_ref().map(|node| node.memory).unwrap_or_default(),
            has_image: self.has_image(),
            gaps: self.gaps.gaps(),
        };
        let advisor = &self.shared.advisor;
        let window_ms = advisor.decide(&self.about, &facts);
        let freeze_after = advisor.freeze_after();
        if let Some(node) = node.filter(|_| window_ms > 0 && !self.is_gone) {
            // While it counts as busy, room for what it may take is set aside.
            self.promote(&instance, &node);
        }
        self.shared.nodes.end_work(instance.id);
        let now = Instant::now();
        let (freeze_at, until) = (Some(now + freeze_after), now + Duration::from_millis(window_ms));
        let calls = self.calls_per_hour() / (self.idle.len() as u64 + 1);
        instance.slot.set_idle(Some(calls), self.local_bytes);
        self.idle.push(Idle { instance, freeze_at, until });
    }

    /// The current facts of a node, if it answers.
    fn node(&self, name: &str) -> Option<NodeFacts> {
        let nodes = self.shared.nodes.nodes(self.claim(), None);
        nodes.into_iter().find(|found| found.name == name)
    }

    pub(super) fn forget_ended(&mut self) {
        self.idle.retain(|idle| !idle.instance.has_ended());
    }

    /// Ends idle instances whose window is over, and freezes those that are due.
    pub(super) fn tend_idle(&mut self) {
        let now = Instant::now();
        let is_gone = self.is_gone && self.queue.is_empty();
        self.idle.retain(|idle| !is_gone && idle.until > now);
        for idle in &mut self.idle {
            if idle.freeze_at.is_some_and(|at| at <= now) {
                idle.freeze_at = None;
                idle.instance.freeze(&*self.shared.nodes);
            }
        }
    }
}
