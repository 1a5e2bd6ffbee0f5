//! Starting instances: where, from which image, and what happens without room.

use std::sync::Arc;

use farfork_policy::placement::{NodeFacts, PlacementFacts};
use farfork_scheduler::{Advice, NewInstance, NoRoom};
use farfork_types::Tiering;

use super::{Function, Image, MOST_FAILED_CLONES, Message, micros};
use crate::api::{Outcome, Response, StartKind};
use crate::scheduler::code::NoCode;
use crate::scheduler::fleet::Owner;
use crate::scheduler::instance::Instance;
use crate::scheduler::nodes::{Claim, NodesError, Start};
use crate::scheduler::turns::Turn;

impl Function {
    /// Starts up to `lacking` instances, as far as there is room.
    pub(super) async fn start(&mut self, lacking: usize) {
        match self.ensure_code().await {
            Ok(()) => {}
            Err(NoCode::Lost(why)) => return self.give_up_all(&why),
            Err(NoCode::Wrong(why)) => return self.answer_all(&why),
        }
        for started in 0..lacking {
            let turn = match self.has_image() {
                true => None,
                false => match self.turn(lacking - started) {
                    Some(turn) => Some(turn),
                    None => return,
                },
            };
            let claim = self.claim();
            let image = self.has_image().then_some(&*self.image_name);
            let nodes = self.shared.nodes.nodes(claim, image);
            let facts = PlacementFacts { need_bytes: claim.most_bytes(), nodes };
            let advisor = &self.shared.advisor;
            match advisor.decide(&self.about, &facts) {
                Some(node) => self.start_on(node, &facts, turn),
                None => return self.make_room(facts),
            }
        }
    }

    /// A turn for a start without an image. If there is none, as many as are lacking are asked for.
    fn turn(&mut self, lacking: usize) -> Option<Turn> {
        let mut turn = self.turns.pop();
        while turn.is_none() && self.turns_asked < lacking {
            let outbox = self.outbox.clone();
            let receive = move |turn| drop(outbox.send(Message::Turn(turn)));
            turn = self.shared.turns.ask(&self.action.namespace, receive);
            self.turns_asked += usize::from(turn.is_none());
        }
        turn
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

    fn start_on(&mut self, node: String, facts: &PlacementFacts, turn: Option<Turn>) {
        self.scaling.start();
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
                Box::new(Instance::new(started, kind, (slot, turn), on_exit))
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
            Err(NodesError::Full { .. }) => return self.scaling.lost_room(self.clock.now_us()),
            Err(error) => error,
        };
        tracing::warn!(about = self.about, %error, "cannot start an instance");
        let is_node_lost = matches!(error, NodesError::Lost { .. });
        if !self.scaling.counts(self.clock.now_us(), is_node_lost) {
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
        let given_up = self.scaling.charge();
        self.give_up(given_up, &error.to_string());
    }

    /// No node has room: evicts others, waits, or gives up calls.
    fn make_room(&mut self, facts: PlacementFacts) {
        let PlacementFacts { need_bytes, nodes } = facts;
        let shared = Arc::clone(&self.shared);
        let seen = |node: NodeFacts| {
            let occupancy = shared.occupancy(&node.name);
            (node, occupancy)
        };
        let (now_us, nodes) = (self.clock.now_us(), nodes.into_iter().map(seen));
        match self.scaling.no_room(now_us, need_bytes, nodes, &self.about, &*shared.advisor) {
            NoRoom::Wait => {}
            NoRoom::Evict(node, ids) => shared.evict(&node, &ids),
            NoRoom::Refuse(call) => self.give_up(call, "no node has room for another instance"),
            NoRoom::NoNode(calls) => self.give_up(calls, "no node answers"),
        }
    }

    fn give_up_all(&mut self, why: &str) {
        let calls = self.scaling.give_up_all();
        self.give_up(calls, why);
    }

    /// Fails all calls because the code is invalid.
    fn answer_all(&mut self, why: &str) {
        let words = format!("The action failed to initialize: {why}");
        for id in self.scaling.give_up_all() {
            if let Some(waiting) = self.waiting.remove(&id) {
                let response = Response::failure(Outcome::DeveloperError, &words);
                self.shared.not_made(&self.counters, waiting, response);
            }
        }
    }
}
