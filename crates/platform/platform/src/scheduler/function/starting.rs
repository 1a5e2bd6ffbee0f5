//! Starting instances: where, from which image, and what happens without room.

use std::sync::Arc;

use farfork_policy::node::NodeRef;
use farfork_policy::placement::NodeFacts;
use farfork_scheduler::{NewInstance, NoRoom, NotStarted, Occupancy, StartOrder, Surroundings};
use farfork_types::LocalShare;

use super::{Function, Message, micros, tiering};
use crate::api::{Outcome, Response, StartKind, region};
use crate::confine;
use crate::scheduler::code::NoCode;
use crate::scheduler::fleet::Owner;
use crate::scheduler::instance::Instance;
use crate::scheduler::near_share::NearShare;
use crate::scheduler::nodes::{Claim, NodesError, RegionGrant, Start};
use crate::scheduler::shared::Shared;
use crate::scheduler::turns::Turn;

/// The nodes as a function sees them.
struct Around {
    shared: Arc<Shared>,
    image_name: String,
}

impl Surroundings for Around {
    fn nodes(&self, claim: Claim, has_image: bool) -> Vec<NodeFacts> {
        self.shared.nodes.nodes(claim, has_image.then_some(&*self.image_name))
    }

    fn occupancy(&self, node: &NodeRef) -> Occupancy {
        self.shared.occupancy(node.name())
    }

    fn could_free(&self, node: &NodeRef) -> u64 {
        self.shared.could_free(node.name())
    }
}

impl Function {
    /// Starts up to `lacking` instances, as far as there is room.
    pub(super) async fn start(&mut self, lacking: usize) {
        match self.ensure_code().await {
            Ok(()) => {}
            Err(NoCode::Lost(why)) => return self.give_up_all(&why),
            Err(NoCode::Wrong(why)) => return self.answer_all(&why),
        }
        if let Err(why) = self.ensure_region().await {
            return self.give_up_all(&why);
        }
        let around =
            Around { shared: Arc::clone(&self.shared), image_name: self.image_name.clone() };
        for started in 0..lacking {
            let turn = match self.state.has_image() {
                true => None,
                false => match self.turn(lacking - started) {
                    Some(turn) => Some(turn),
                    None => return,
                },
            };
            let now_us = self.clock.now_us();
            match self.state.start(now_us, &around, &*around.shared.advisor) {
                Ok(order) => {
                    let share = self.share_of(&order);
                    self.start_on(order, share, turn);
                }
                Err(no_room) => return self.make_room(no_room),
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

    /// Makes sure that the code is at hand if instances have to load it.
    async fn ensure_code(&mut self) -> Result<(), NoCode> {
        if self.state.has_image() || self.code.is_some() {
            return Ok(());
        }
        let (action, code) = self.shared.with_code(&self.action).await?;
        if action.updated_ms != self.action.updated_ms {
            // The code of this version is gone: its calls run the current version.
            self.state.change(action.limits.memory_mb, tiering::objective(&action.annotations));
            self.action = action;
            self.decide_shares();
            self.retire();
        }
        self.code = Some(code);
        Ok(())
    }

    /// Makes sure that it is known which region instances get. It does not change within a version.
    async fn ensure_region(&mut self) -> Result<(), String> {
        let Some(name) = region::of(&self.action.annotations) else {
            self.region = None;
            return Ok(());
        };
        if self.region.as_ref().is_none_or(|region| region.name != name) {
            let namespace = self.action.namespace.clone();
            let number = self.shared.ask_store(move |store| store.number(&namespace)).await;
            let user = confine::user(number.map_err(|error| error.to_string())?);
            let namespace = self.action.namespace.to_string();
            self.region = Some(RegionGrant { namespace, name, user });
        }
        Ok(())
    }

    fn start_on(
        &mut self,
        order: StartOrder,
        share: Option<(LocalShare, u64)>,
        turn: Option<Turn>,
    ) {
        let (share, started_for_bytes) = share.unzip();
        let StartOrder { node, is_clone, claim, most_bytes, tiering } = order;
        if let Some(slot) = &self.image_slot {
            slot.start();
        }
        let start = Start {
            node: node.name().to_owned(),
            image: is_clone.then(|| self.image_name.clone()),
            kind: self.action.exec.kind.clone(),
            claim,
            tiering,
            local_share: share.filter(|_| is_clone),
            region: self.region.clone(),
        };
        let (shared, outbox) = (Arc::clone(&self.shared), self.outbox.clone());
        let node = start.node.clone();
        let function = (self.action.namespace.clone(), self.action.name.clone());
        // Reserves its memory on the node right now, before the task runs.
        let starting = self.shared.nodes.start(start);
        tokio::spawn(async move {
            let started = starting.await;
            let kind = match &started {
                _ if !is_clone => StartKind::Cold,
                Ok(started) if started.was_attached => StartKind::Ghost,
                _ => StartKind::Clone,
            };
            // An instance that lost its room to another is started elsewhere or later.
            if !matches!(started, Err(NodesError::Full { .. })) {
                shared.metrics.starts.started(kind, started.is_ok());
            }
            let result = started.map(|mut started| {
                let id = started.id;
                let start_us = micros(started.took.whole);
                let [evicts, ends] = [outbox.clone(), outbox.clone()];
                let evict = move || drop(evicts.send(Message::Evict(id)));
                let node = shared.fleet.number(&node);
                let new = NewInstance { id, node, bytes: most_bytes, start_us };
                let slot = shared.fleet.add(new, Owner { function, evict: Box::new(evict) });
                let on_exit = move || drop(ends.send(Message::Ended(id)));
                if let Some(all) = share.filter(|_| !is_clone) {
                    started.share = NearShare::started_with(all);
                }
                let mut instance = Instance::new(started, kind, (slot, turn), on_exit);
                instance.started_for_bytes = started_for_bytes.unwrap_or(0);
                Box::new(instance)
            });
            let _ = outbox.send(Message::Started { result, is_clone });
        });
    }

    /// Handles the result of a start.
    pub(super) fn started(&mut self, result: Result<Box<Instance>, NodesError>, is_clone: bool) {
        let error = match result {
            Ok(instance) => {
                self.state.started();
                return self.rest(Some(instance));
            }
            // Another instance was faster.
            Err(NodesError::Full { .. }) => return self.state.lost_room(self.clock.now_us()),
            Err(error) => error,
        };
        tracing::warn!(about = self.about, %error, "cannot start an instance");
        let why = match &error {
            NodesError::Start { .. } => NotStarted::Start,
            NodesError::Lost { .. } => NotStarted::NodeLost,
            NodesError::Images { .. } => NotStarted::Images,
            _ => NotStarted::Other,
        };
        let after = self.state.not_started(self.clock.now_us(), why, is_clone);
        if after.drops_image {
            tracing::warn!(
                about = self.about,
                image = self.image_name,
                "giving up an image: its clones do not start"
            );
            self.remove_image();
        }
        match error {
            // For its owner to mend.
            NodesError::Region { .. } => self.answer(after.given_up, &error.to_string()),
            error => self.give_up(after.given_up, &error.to_string()),
        }
    }

    /// No node has room: evicts others, waits, or gives up calls.
    fn make_room(&mut self, no_room: NoRoom) {
        match no_room {
            NoRoom::Wait => {}
            NoRoom::Evict(node, ids) => self.shared.evict(node.name(), &ids),
            NoRoom::Refuse(call) => self.give_up(call, "no node has room for another instance"),
            NoRoom::NoNode(calls) => self.give_up(calls, "no node answers"),
        }
    }

    fn give_up_all(&mut self, why: &str) {
        let calls = self.state.give_up_all();
        self.give_up(calls, why);
    }

    /// Fails all calls because the code is invalid.
    fn answer_all(&mut self, why: &str) {
        let calls = self.state.give_up_all();
        self.answer(calls, why);
    }

    /// Fails calls for a reason that the function's owner can mend.
    fn answer(&mut self, calls: impl IntoIterator<Item = u64>, why: &str) {
        let words = format!("The action failed to initialize: {why}");
        for id in calls {
            if let Some(waiting) = self.waiting.remove(&id) {
                let response = Response::failure(Outcome::DeveloperError, &words);
                self.shared.not_made(&self.counters, waiting, response);
            }
        }
    }
}
