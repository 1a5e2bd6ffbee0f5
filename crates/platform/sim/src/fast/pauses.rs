//! Work of instances, which stands still while they are paused.

use farfork_scheduler::PauseChange;

use super::Watch;
use super::agenda::{Event, Link};
use super::machine::{LIMIT_US, Machine};
use super::world::Work;

/// A part of work for which an instance needs a processor of its node.
#[derive(Clone, Copy, Debug)]
pub struct OnProcessors {
    /// How long it needs one, if it were alone.
    pub busy_us: u64,
    /// How long the rest takes.
    pub rest_us: u64,
    /// When its time limit began to count; [`NO_LIMIT`] if it has none.
    ///
    /// [`NO_LIMIT`]: farfork_platform::simulated::processors::NO_LIMIT
    pub since_us: u64,
}

impl<W: Watch> Machine<'_, W> {
    /// An instance begins work that takes so long, at the end of which something happens.
    pub fn work(&mut self, id: u64, us: u64, event: Event) {
        let (now_us, due_us) = (self.now_us, self.timer(self.now_us, us));
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let left_us = one.is_paused.then_some(us);
        one.work = Some(Work { event, began_us: now_us, due_us, left_us, rest_us: 0 });
        if left_us.is_none() {
            self.agenda.add(due_us, event);
        }
    }

    /// An instance begins work that takes so long, for a part of it on the processors of its node, if it were alone there.
    /// Its time limit counts from `since_us` on.
    pub fn share_processors(&mut self, id: u64, part: OnProcessors, event: Event) {
        let OnProcessors { busy_us, rest_us, since_us } = part;
        if busy_us == 0 {
            return self.work(id, rest_us, event);
        }
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        let left_us = one.is_paused.then_some(busy_us);
        one.work = Some(Work { event, began_us: now_us, due_us: u64::MAX, left_us, rest_us });
        if left_us.is_none() {
            self.begin_on_processors(id, since_us, busy_us);
        }
    }

    /// An instance's work goes on without processors.
    pub fn rest_of_work(&mut self, id: u64) {
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get(&id) else { return };
        let (is_paused, Some(work)) = (one.is_paused, one.work) else { return };
        // A load of code has the time limit of a call.
        let most_us = match work.event {
            Event::Loaded(_) => (work.began_us + LIMIT_US).saturating_sub(now_us),
            _ => u64::MAX,
        };
        let is_late = work.rest_us > most_us;
        let event = if is_late { Event::CallEnded(id, false) } else { work.event };
        let us = work.rest_us.min(most_us);
        let due_us = self.timer(now_us, us);
        let left_us = is_paused.then_some(us);
        if let Some(one) = self.world.instances.get_mut(&id) {
            one.work = Some(Work { event, due_us, left_us, rest_us: 0, ..work });
        }
        if left_us.is_none() {
            self.agenda.add(due_us, event);
        }
    }

    fn begin_on_processors(&mut self, id: u64, since_us: u64, us: u64) {
        let Some(node) = self.world.instances.get(&id).map(|one| one.node) else { return };
        if let Some(processors) = self.processors.get_mut(node.index()) {
            processors.begin((self.now_us, since_us), id, us);
            self.wait_for_processors(node.number());
        }
    }

    /// Whether an instance's work is over now, as it was not paused since it was announced.
    pub fn is_over(&self, id: u64, event: Event) -> bool {
        if !self.world.agents.pauses_some {
            return true;
        }
        let work = self.world.instances.get(&id).and_then(|one| one.work);
        work.is_none_or(|work| {
            work.event == event && work.left_us.is_none() && work.due_us <= self.now_us
        })
    }

    /// Pauses an instance, or has it go on. Work that is over at this moment is over.
    pub fn pause(&mut self, change: PauseChange) {
        let PauseChange { id, paused, .. } = change;
        let now_us = self.now_us;
        let Some(one) = self.world.instances.get_mut(&id) else { return };
        one.is_paused = paused;
        let Some(work) = &mut one.work else { return };
        let shares = work.due_us == u64::MAX;
        let node = one.node;
        if !paused {
            let Some(left_us) = work.left_us.take() else { return };
            if shares {
                return self.begin_on_processors(id, now_us, left_us);
            }
            let event = work.event;
            let due_us = self.timer(now_us, left_us);
            if let Some(work) = self.world.instances.get_mut(&id).and_then(|one| one.work.as_mut())
            {
                work.due_us = due_us;
            }
            self.agenda.add(due_us, event);
        } else if shares {
            work.left_us = self.processors.get_mut(node.index()).and_then(|one| {
                // What is over is about to be announced.
                if one.is_over(now_us, id) { None } else { one.leave(now_us, id) }
            });
            self.wait_for_processors(node.number());
        } else if work.due_us > now_us {
            work.left_us = Some(work.due_us - now_us);
        }
    }

    /// An instance is to be promoted, if its node has room. Until it is, it counts as promoted.
    pub fn promote(&mut self, id: u64) {
        // Its timer is before the agents', as in the platform.
        if let Some(us) = self.world.agents.promote(id)
            && let Some(one) = self.world.instances.get_mut(&id)
        {
            one.tiering = None;
            let bytes = one.held.pool_bytes;
            self.transfer(Link::Pool, bytes, us, Event::Promoted(id));
        }
        self.wait_for_agents();
    }

    /// An instance's pages are local.
    pub fn promoted(&mut self, id: u64) {
        if let Some(one) = self.world.instances.get_mut(&id) {
            one.is_local = true;
            self.weigh(id);
            self.world.agents.promoted(id);
            self.wait_for_agents();
        }
    }
}

#[cfg(test)]
mod tests {
    use farfork_platform::simulated::Totals;
    use farfork_platform::simulated::agents::Later;
    use farfork_policy::growth::OneByOne;
    use farfork_policy::node::NodeRef;
    use farfork_policy::settings::Growth;
    use farfork_scheduler::{Claim, History, StartOrder};
    use farfork_types::Tiering;

    use super::super::world::Instance;
    use super::super::{FINEST_US, Function, StartKind};
    use super::*;
    use crate::profile::Behaviour;
    use crate::run::Record;
    use crate::settings::Settings;
    use crate::shares::Held;

    struct Nothing;

    impl Watch for Nothing {
        fn ended(&mut self, _: Record) {}
        fn changed(&mut self, _: u64, _: Totals) {}
    }

    /// One node, on which not all busy instances may reach their limits at once.
    fn settings(processors: Option<u32>) -> Settings {
        let growth = Growth::OneByOne(OneByOne::default());
        let policies = farfork_policy::Settings { growth, ..farfork_policy::Settings::default() };
        Settings { nodes: 1, node_bytes: 900 << 20, policies, processors, ..Settings::default() }
    }

    fn machine<'a>(settings: &Settings, watch: &'a mut Nothing) -> Machine<'a, Nothing> {
        let functions = vec![Function { owner: 0, behaviour: Behaviour::typical(None) }];
        Machine::new(functions, settings, FINEST_US, None, watch)
    }

    /// A busy instance of the function.
    fn reserved(machine: &mut Machine<'_, Nothing>) -> u64 {
        let claim = Claim { memory_mb: 256, expected_bytes: Some(20 << 20) };
        let (node, most_bytes) = (NodeRef::numbered(0), claim.most_bytes());
        let order = StartOrder { node, is_clone: false, claim, most_bytes, tiering: Tiering::Mow };
        let one = Instance {
            function: 0,
            node: machine.world.agents.ledger.node("node1").unwrap(),
            kind: StartKind::Cold,
            is_clone: false,
            tiering: None,
            history: History::default(),
            most_bytes,
            restore_us: 0,
            took_us: 0,
            load_us: None,
            loaded_us: None,
            start_since_us: None,
            run_since_us: Some(0),
            share: None,
            payload_bytes: 0,
            held: Held::default(),
            call: None,
            work: None,
            is_paused: false,
            is_local: false,
        };
        machine.world.reserve(&order, one).unwrap()
    }

    /// An instance that begins to work at 0, for 100 us, with these processors; it pauses at 40, and goes on at 140.
    /// Returns what is due when, and when its work is over.
    fn paused(processors: Option<u32>) -> (Vec<(u64, Event)>, Option<u64>) {
        let mut watch = Nothing;
        let mut machine = machine(&settings(processors), &mut watch);
        let id = reserved(&mut machine);
        let event = Event::CallEnded(id, true);
        machine.go_on(id, 100);
        for (at_us, paused) in [(40, true), (140, false)] {
            machine.now_us = at_us;
            machine.pause(PauseChange { id, pid: 1, paused });
        }
        let mut over_us = None;
        let mut due = Vec::new();
        while let Some(at_us) = machine.agenda.due_us() {
            machine.now_us = at_us;
            let (_, one) = machine.agenda.take().unwrap();
            due.push((at_us, one));
            if one == event && machine.is_over(id, event) {
                over_us = Some(at_us);
            }
        }
        due.retain(|(_, one)| matches!(one, Event::CallEnded(..) | Event::Processors(..)));
        (due, over_us)
    }

    #[test]
    fn work_stands_still_while_an_instance_is_paused() {
        let (due, over_us) = paused(None);
        let ends: Vec<u64> = due.iter().map(|(at_us, _)| *at_us).collect();
        assert_eq!((ends, over_us), (vec![100, 200], Some(200)));
    }

    #[test]
    fn a_paused_call_leaves_its_processors() {
        let (due, _) = paused(Some(2));
        // The first change is outdated when it is due.
        assert_eq!(due.last().map(|(at_us, _)| *at_us), Some(200));
    }
    /// The agents decide which instances pause 3 ms after a promotion has begun. One that takes as long has ended by then.
    #[test]
    fn a_promotion_ends_before_what_is_decided_after_it_has_begun() {
        let mut watch = Nothing;
        let mut machine = machine(&settings(None), &mut watch);
        let ids = [(); 4].map(|()| reserved(&mut machine));
        for id in ids {
            machine.world.started(id).unwrap();
            let held = Held { near_bytes: 4 << 20, pool_bytes: 3 * 4_320_000, far_bytes: 0 };
            machine.world.weigh(id, held);
        }
        // What was decided before.
        machine.wait_for_agents();
        while let Some((_, event)) = machine.agenda.take() {
            if let Event::Agents(later) = event {
                let pool = machine.world.pool();
                machine.world.agents.happens(later, 0, pool, &machine.advice);
            }
        }
        machine.promote(ids[0]);
        let due: Vec<(u64, Event)> = std::iter::from_fn(|| {
            let at_us = machine.agenda.due_us()?;
            machine.agenda.take().map(|(_, event)| (at_us, event))
        })
        .collect();
        let node = machine.world.agents.ledger.node("node1").unwrap();
        let decided = Event::Agents(Later::Growth(node));
        assert_eq!(due, [(3000, Event::Promoted(ids[0])), (3000, decided)]);
    }
}
