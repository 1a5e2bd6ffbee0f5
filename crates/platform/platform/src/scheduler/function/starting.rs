//! Starting instances: where, from which image, and what happens without room.

use std::cmp::Reverse;
use std::sync::Arc;

use farfork_policy::admission::{Admission, AdmissionFacts};
use farfork_policy::placement::{NodeFacts, PlacementFacts};
use farfork_scheduler::{Advice, NewInstance, Occupancy};
use farfork_types::Tiering;
use tokio::time::Instant;

use super::{
    Function, Image, MOST_FAILED_CLONES, Message, NO_NODE, QueuedCall, RETRY, micros, millis,
};
use crate::api::{Outcome, Response, StartKind};
use crate::scheduler::code::NoCode;
use crate::scheduler::fleet::Owner;
use crate::scheduler::instance::Instance;
use crate::scheduler::nodes::{Claim, NodesError, Start};

impl Function {
    /// Starts up to `lacking` instances, as far as there is room.
    pub(super) async fn start(&mut self, lacking: usize) {
        match self.ensure_code().await {
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
            match advisor.decide(&self.about, &facts) {
                Some(node) => self.start_on(node, &facts),
                None => return self.make_room(&facts),
            }
        }
    }

    /// What an instance may take. Clones are expected to take as much as earlier clones.
    pub(super) fn claim(&self) -> Claim {
        let seen = self.clone_bytes.filter(|(tiering, _)| *tiering == self.tiering);
        let expected_bytes = seen.filter(|_| self.has_image()).map(|(_, bytes)| bytes);
        Claim { memory_mb: self.action.limits.memory_mb, expected_bytes }
    }

    /// Notes the measured memory of a clone under this tiering policy.
    pub(super) fn note_clone(&mut self, tiering: Option<Tiering>, bytes: u64) {
        let Some(tiering) = tiering else { return };
        let before = self.clone_bytes.filter(|(known, _)| *known == tiering);
        self.clone_bytes = Some((tiering, before.map_or(bytes, |(_, before)| before.max(bytes))));
    }

    /// Makes sure that the code is at hand if instances have to load it.
    async fn ensure_code(&mut self) -> Result<(), NoCode> {
        if self.has_image() || self.code.is_some() {
            return Ok(());
        }
        let (action, code) = self.shared.with_code(&self.action).await?;
        if action.updated_ms != self.action.updated_ms {
            // The code of this version is gone: its calls run the current version.
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
        // Reserves its memory on the node right now, before the task runs.
        let starting = self.shared.nodes.start(start);
        tokio::spawn(async move {
            let started = starting.await;
            let kind = match &started {
                _ if !has_image => StartKind::Cold,
                Ok(started) if started.was_attached => StartKind::Ghost,
                _ => StartKind::Clone,
            };
            // An instance that lost its room to another is started elsewhere or later.
            if !matches!(started, Err(NodesError::Full { .. })) {
                shared.metrics.starts.started(kind, started.is_ok());
            }
            let result = started.map(|started| {
                let id = started.id;
                let start_us = micros(started.took.whole);
                let [evicts, ends] = [outbox.clone(), outbox.clone()];
                let evict = move || drop(evicts.send(Message::Evict(id)));
                let new = NewInstance { id, node: &node, bytes: need_bytes, start_us };
                let slot = shared.fleet.add(new, Owner { function, evict: Box::new(evict) });
                let on_exit = move || drop(ends.send(Message::Ended(id)));
                Box::new(Instance::new(started, kind, slot, on_exit))
            });
            let _ = outbox.send(Message::Started { result, is_clone: has_image });
        });
    }

    /// Handles the result of a start.
    pub(super) fn started(&mut self, result: Result<Box<Instance>, NodesError>, is_clone: bool) {
        let error = match result {
            Ok(instance) => {
                self.failed_clones = 0;
                return self.rest(Some(instance));
            }
            // Another instance was faster.
            Err(NodesError::Full { .. }) => {
                self.retry_at = Some(Instant::now() + RETRY);
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(about = self.about, %error, "cannot start an instance");
        let waits_long = |waiting: &QueuedCall| waiting.since.elapsed() > NO_NODE;
        if matches!(error, NodesError::Lost { .. }) && !self.queue.front().is_some_and(waits_long) {
            // All starts on a lost node fail at once. It is not used until it answers.
            return;
        }
        // A lost node says nothing about the image.
        let is_images_fault = is_clone && matches!(error, NodesError::Start { .. });
        self.failed_clones += u32::from(is_images_fault);
        let is_lost = matches!(error, NodesError::Images { .. });
        if self.has_image() && (is_lost || self.failed_clones >= MOST_FAILED_CLONES) {
            // Perhaps files that it maps have changed.
            tracing::warn!(
                about = self.about,
                image = self.image_name,
                "giving up an image: its clones do not start"
            );
            self.do_without_image();
        }
        // A call is charged with the failure only if no other start may serve it.
        if self.queue.len() > self.starting
            && let Some(waiting) = self.queue.pop_front()
        {
            self.requeue(waiting, &error.to_string());
        }
    }

    /// No node has room: evicts others, waits, or gives up a call.
    fn make_room(&mut self, facts: &PlacementFacts) {
        self.retry_at = Some(Instant::now() + RETRY);
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
            match advisor.decide(&self.about, &facts) {
                // Room has become free meanwhile.
                Admission::Start | Admission::Wait => return,
                Admission::Evict(ids) => return self.shared.evict(node, &ids),
                Admission::Refuse => {}
            }
        }
        if let Some(waiting) = self.queue.pop_back() {
            self.give_up(waiting, "no node has room for another instance");
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
            // This function's own may not be counted yet.
            busy: busy.max(self.busy as u64) + node.starting.max(self.starting as u64),
            leaving_bytes,
            is_settling,
            queued: self.queue.len() as u64,
            waited_ms: self.queue.front().map_or(0, |waiting| millis(waiting.since.elapsed())),
        }
    }

    /// No node answers: gives up calls that have waited too long.
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

    /// Fails all calls because the code is invalid.
    fn answer_all(&mut self, why: &str) {
        let words = format!("The action failed to initialize: {why}");
        for waiting in std::mem::take(&mut self.queue) {
            let response = Response::failure(Outcome::DeveloperError, &words);
            self.shared.not_made(&self.counters, waiting, response);
        }
    }
}

/// Bytes that could become free on a node.
fn most_free(facts: &AdmissionFacts) -> u64 {
    let idle: u64 = facts.idle.iter().map(|idle| idle.bytes).sum();
    facts.memory.free_below(1000).saturating_add(idle + facts.leaving_bytes)
}
