//! Starting instances: where, of what, and what happens if there is no room.

use std::cmp::Reverse;
use std::sync::Arc;

use farfork_policy::admission::{Admission, AdmissionFacts};
use farfork_policy::placement::{NodeFacts, PlacementFacts};
use farfork_types::Tiering;
use tokio::time::Instant;

use super::{
    Function, Image, LOOK_AGAIN, MOST_FAILED_CLONES, Message, NO_NODE, QueuedCall, micros, millis,
};
use crate::api::{Outcome, Response, StartKind};
use crate::scheduler::code::NoCode;
use crate::scheduler::fleet::{NewInstance, Occupancy};
use crate::scheduler::instance::Instance;
use crate::scheduler::nodes::{Claim, NodesError, Start};

impl Function {
    /// Starts as many instances as there is room for.
    pub(super) async fn start(&mut self, lacking: usize) {
        match self.have_code().await {
            Ok(()) => {}
            Err(NoCode::Lost(why)) => return self.give_up_all(&why),
            Err(NoCode::Wrong(why)) => return self.answer_all(&why),
        }
        for _ in 0..lacking {
            let claim = self.claim();
            let image = self.has_image().then_some(&*self.image_name);
            let nodes = self.shared.nodes.nodes(claim, image);
            let facts = PlacementFacts { need_bytes: claim.most_bytes(), nodes };
            let advisor = &self.shared.advisor;
            match advisor.decide(&*advisor.policies.placement, &self.about, &facts) {
                Some(node) => self.start_on(node, &facts),
                None => return self.make_room(&facts),
            }
        }
    }

    /// What an instance may take. Most take much less, and clones as much as clones did before.
    pub(super) fn claim(&self) -> Claim {
        let seen = self.clone_bytes.filter(|(tiering, _)| *tiering == self.tiering);
        let expected_bytes = seen.filter(|_| self.has_image()).map(|(_, bytes)| bytes);
        Claim { memory_mb: self.action.limits.memory_mb, expected_bytes }
    }

    /// Clones in this tier are expected to take as much as this one was seen to.
    pub(super) fn note_clone(&mut self, tiering: Option<Tiering>, bytes: u64) {
        let Some(tiering) = tiering else { return };
        let before = self.clone_bytes.filter(|(of, _)| *of == tiering);
        self.clone_bytes = Some((tiering, before.map_or(bytes, |(_, before)| before.max(bytes))));
    }

    /// Without an image each instance has to load the code.
    async fn have_code(&mut self) -> Result<(), NoCode> {
        if self.has_image() || self.code.is_some() {
            return Ok(());
        }
        let (action, code) = self.shared.with_code(&self.action).await?;
        if action.updated_ms != self.action.updated_ms {
            // The code of the version that these calls are of is no more.
            self.action = action;
            self.retire();
        }
        self.code = Some(code);
        Ok(())
    }

    fn start_on(&mut self, node: String, facts: &PlacementFacts) {
        self.starting += 1;
        let has_image = self.has_image();
        if let Image::There(slot) = &self.image {
            slot.start();
        }
        let found = facts.nodes.iter().find(|found| found.name == node);
        let tiering = if has_image { self.tiering_on(found) } else { Tiering::Mow };
        let start = Start {
            node,
            image: has_image.then(|| self.image_name.clone()),
            kind: self.action.exec.kind.clone(),
            claim: self.claim(),
            tiering,
        };
        let (shared, outbox) = (Arc::clone(&self.shared), self.outbox.clone());
        let (node, need_bytes) = (start.node.clone(), facts.need_bytes);
        let function = (self.action.namespace.clone(), self.action.name.clone());
        // From here on the node counts it.
        let starting = self.shared.nodes.start(start);
        tokio::spawn(async move {
            let started = starting.await;
            let kind = match &started {
                _ if !has_image => StartKind::Cold,
                Ok(started) if started.was_attached => StartKind::Ghost,
                _ => StartKind::Clone,
            };
            // One whose room somebody else has is started elsewhere, or later.
            if !matches!(started, Err(NodesError::Full { .. })) {
                shared.metrics.starts.started(kind, started.is_ok());
            }
            let result = started.map(|started| {
                let id = started.id;
                let start_us = micros(started.took.whole);
                let [evicts, ends] = [outbox.clone(), outbox.clone()];
                let evict = move || drop(evicts.send(Message::Evict(id)));
                let new = NewInstance { id, function, node: &node, bytes: need_bytes, start_us };
                let slot = shared.fleet.add(new, evict);
                let tell = move || drop(ends.send(Message::Ended(id)));
                Box::new(Instance::new(started, kind, slot, tell))
            });
            let _ = outbox.send(Message::Started { result, is_clone: has_image });
        });
    }

    /// An instance is there, or is not.
    pub(super) fn started(&mut self, result: Result<Box<Instance>, NodesError>, is_clone: bool) {
        let error = match result {
            Ok(instance) => {
                self.failed_clones = 0;
                return self.rest(Some(instance));
            }
            // Somebody else was faster.
            Err(NodesError::Full { .. }) => {
                self.look_again = Some(Instant::now() + LOOK_AGAIN);
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(about = self.about, %error, "an instance does not start");
        let waits_long = |waiting: &QueuedCall| waiting.since.elapsed() > NO_NODE;
        if matches!(error, NodesError::Lost { .. }) && !self.queue.front().is_some_and(waits_long) {
            // All starts fail that it has, at once; it is not used until it answers.
            return;
        }
        // A node that is gone tells nothing of the image.
        let is_its = is_clone && matches!(error, NodesError::Start { .. });
        self.failed_clones += u32::from(is_its);
        let is_lost = matches!(error, NodesError::Images { .. });
        if self.has_image() && (is_lost || self.failed_clones >= MOST_FAILED_CLONES) {
            // Files that it needs may be others now.
            tracing::warn!(about = self.about, image = self.image_name, "an image is given up");
            self.do_without_image();
        }
        // One that others have served meanwhile is none of its affair.
        if self.queue.len() > self.starting
            && let Some(waiting) = self.queue.pop_front()
        {
            self.again(waiting, &error.to_string());
        }
    }

    /// Nowhere is room for an instance: has others end, waits, or gives a call up.
    fn make_room(&mut self, facts: &PlacementFacts) {
        self.look_again = Some(Instant::now() + LOOK_AGAIN);
        let mut nodes: Vec<(AdmissionFacts, &str)> = facts
            .nodes
            .iter()
            .map(|node| (self.admission_facts(node, facts.need_bytes), &*node.name))
            .collect();
        nodes.sort_by_key(|(facts, _)| Reverse(most_free(facts)));
        if nodes.is_empty() {
            return self.give_up_late();
        }
        let advisor = &self.shared.advisor;
        for (facts, node) in nodes {
            match advisor.decide(&*advisor.policies.admission, &self.about, &facts) {
                // There is by now.
                Admission::Start | Admission::Wait => return,
                Admission::Evict(ids) => return self.shared.evict(node, &ids),
                Admission::Refuse => {}
            }
        }
        if let Some(waiting) = self.queue.pop_back() {
            self.give_up(waiting, "there is no room for another instance of it");
        }
    }

    fn admission_facts(&self, node: &NodeFacts, most_bytes: u64) -> AdmissionFacts {
        let Occupancy { idle, busy, leaving_bytes, is_settling } =
            self.shared.occupancy(&node.name);
        AdmissionFacts {
            need_bytes: node.need_bytes.unwrap_or(most_bytes),
            most_bytes,
            memory: node.memory,
            idle,
            // Its own may not be counted yet.
            busy: busy.max(self.busy as u64) + node.starting.max(self.starting as u64),
            leaving_bytes,
            is_settling,
            queued: self.queue.len() as u64,
            waited_ms: self.queue.front().map_or(0, |waiting| millis(waiting.since.elapsed())),
        }
    }

    /// No node answers: one may come back.
    fn give_up_late(&mut self) {
        while self.queue.front().is_some_and(|waiting| waiting.since.elapsed() > NO_NODE) {
            if let Some(waiting) = self.queue.pop_front() {
                self.give_up(waiting, "no node answers");
            }
        }
    }

    fn give_up_all(&mut self, why: &str) {
        for waiting in std::mem::take(&mut self.queue) {
            self.give_up(waiting, why);
        }
    }

    /// Its owner has sent no code.
    fn answer_all(&mut self, why: &str) {
        let words = format!("The action failed to initialize: {why}");
        for waiting in std::mem::take(&mut self.queue) {
            let response = Response::failure(Outcome::DeveloperError, &words);
            self.shared.not_made(&self.counted, waiting, response);
        }
    }
}

/// What could be free of a node.
fn most_free(facts: &AdmissionFacts) -> u64 {
    let idle: u64 = facts.idle.iter().map(|idle| idle.bytes).sum();
    facts.memory.free_below(1000).saturating_add(idle + facts.leaving_bytes)
}
