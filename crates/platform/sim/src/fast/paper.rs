//! The policy of the paper of shares ("Towards Elastic Memory Allocation of Serverless Functions in Disaggregated
//! Memory Systems", §4.1), instead of the platform's scheduler.
//!
//! ```text
//!  a call ──► an idle instance of its function and payload bin, the last used ──► runs ──► idle for 60 s ──► ended
//!         └─► none: a new one at once, with the share that the policy of shares decides
//! ```
//! There is no queue, no limit of memory, no image. An instance holds the footprint that the profile has of its
//! function, payload and share, from its start until it is ended. The paper does not say whether calls with other
//! payloads use the same instance; as the footprint is that of one payload, they do not here.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};

use farfork_platform::api::StartKind;
use farfork_platform::simulated::Totals;
use farfork_policy::tiering::Objective;
use farfork_scheduler::ByNumber;
use farfork_types::LocalShare;

use super::advice::Advisor;
use super::agenda::{Agenda, Event};
use super::{Call, Finish, Function, Watch};
use crate::model::action_name;
use crate::run::Record;
use crate::settings::Settings;
use crate::shares::Held;

/// How long an instance stays idle (§4.1).
pub const KEEP_ALIVE_US: u64 = 60_000_000;

/// Function and bin of payloads.
type Kind = (u32, u64);

#[derive(Debug)]
struct Instance {
    kind: Kind,
    share: Option<LocalShare>,
    held: Held,
    /// Its call, its start, and how long it runs.
    call: Option<(Call, StartKind, u64)>,
    /// When it ends, if it is idle until then.
    until_us: u64,
}

/// A running simulation.
pub struct Paper<'a, W> {
    now_us: u64,
    advice: Advisor<'a>,
    functions: Vec<Function>,
    /// What the policy of shares is asked with.
    states: Vec<farfork_scheduler::Function>,
    instances: ByNumber<Instance>,
    /// The most recently used is last.
    idle: HashMap<Kind, VecDeque<u64>>,
    next: u64,
    running: usize,
    agenda: Agenda,
    totals: Totals,
    events: u64,
    watch: &'a mut W,
}

impl<'a, W: Watch> Paper<'a, W> {
    pub fn new(
        functions: Vec<Function>,
        settings: &Settings,
        journal: Option<&'a mut dyn Write>,
        watch: &'a mut W,
    ) -> Paper<'a, W> {
        let has_shares = settings.policies.share.is_some();
        let state = |(index, one): (usize, &Function)| {
            let about = format!("u{}/{}", one.owner, action_name(index));
            let state = farfork_scheduler::Function::new(
                about,
                one.behaviour.limit_mb,
                Objective::default(),
            );
            if has_shares { state.with_shares(one.behaviour.shares.facts()) } else { state }
        };
        Paper {
            now_us: 0,
            advice: Advisor::new(settings.policies, journal),
            states: functions.iter().enumerate().map(state).collect(),
            functions,
            instances: ByNumber::default(),
            idle: HashMap::new(),
            next: 0,
            running: 0,
            agenda: Agenda::default(),
            totals: Totals::default(),
            events: 0,
            watch,
        }
    }

    /// Serves the calls.
    pub fn run(mut self, calls: impl Iterator<Item = Call>) -> io::Result<Finish> {
        for call in calls {
            self.until(call.arrival_us);
            self.at(call.arrival_us);
            self.events += 1;
            self.arrive(call);
        }
        while self.running > 0 {
            let Some(due_us) = self.agenda.due_us() else { break };
            self.until(due_us);
        }
        self.advice.end()?;
        Ok(Finish { end_us: self.now_us, events: self.events })
    }

    fn at(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.advice.now_us.set(now_us);
    }

    /// Everything that is due up to a moment. A call that ends when another comes leaves its instance to that.
    fn until(&mut self, until_us: u64) {
        while let Some(due_us) = self.agenda.due_us().filter(|due_us| *due_us <= until_us) {
            let Some((_, event)) = self.agenda.take() else { return };
            self.at(due_us);
            self.events += 1;
            match event {
                Event::CallEnded(id, _) => self.call_ended(id),
                Event::Expired(id) => self.expired(id),
                _ => {}
            }
        }
    }

    fn arrive(&mut self, call: Call) {
        let function = call.function as usize;
        let behaviour = &self.functions[function].behaviour;
        let cold_us = behaviour.cold_us;
        let kind = (call.function, behaviour.shares.bin(call.payload_bytes).unwrap_or(0));
        self.states[function].called_with(self.now_us, call.payload_bytes);
        let idle = self.idle.get_mut(&kind).and_then(VecDeque::pop_back);
        let (id, start, start_us) = match idle {
            Some(id) => {
                self.change_share(id, &call);
                (id, StartKind::Warm, 0)
            }
            None => (self.start(kind, &call), StartKind::Cold, cold_us),
        };
        let Some(one) = self.instances.get_mut(&id) else { return };
        let shares = &self.functions[function].behaviour.shares;
        let slower = |share| shares.run_us(call.duration_us, call.payload_bytes, share);
        let run_us = one.share.map_or(call.duration_us, slower);
        one.call = Some((call, start, run_us));
        self.running += 1;
        let end_us = self.now_us.saturating_add(start_us).saturating_add(run_us);
        self.agenda.add(end_us, Event::CallEnded(id, true));
    }

    /// Starts an instance, and returns its number.
    fn start(&mut self, kind: Kind, call: &Call) -> u64 {
        let function = kind.0 as usize;
        let share = self.states[function].share(self.now_us, call.payload_bytes, &self.advice);
        let held = self.held(call, share);
        let id = self.next;
        self.next += 1;
        self.instances.insert(id, Instance { kind, share, held, call: None, until_us: 0 });
        self.totals.instances += 1;
        self.totals.near_bytes += held.near_bytes;
        self.totals.far_bytes += held.far_bytes;
        self.watch.changed(self.now_us, self.totals);
        id
    }

    fn held(&self, call: &Call, share: Option<LocalShare>) -> Held {
        let behaviour = &self.functions[call.function as usize].behaviour;
        match share {
            Some(share) => behaviour.shares.held_for(call.payload_bytes, false, share),
            None => behaviour.held(false, None),
        }
    }

    /// Changes the share of an instance that is about to serve a call, if another one is better by now.
    fn change_share(&mut self, id: u64, call: &Call) {
        let state = &mut self.states[call.function as usize];
        let better = state.share_again(self.now_us, call.payload_bytes, &self.advice);
        let held = self.held(call, better);
        let Some(one) = self.instances.get_mut(&id).filter(|one| one.share != better) else {
            return;
        };
        one.share = better;
        let before = std::mem::replace(&mut one.held, held);
        self.totals.near_bytes = self.totals.near_bytes - before.near_bytes + held.near_bytes;
        self.totals.far_bytes = self.totals.far_bytes - before.far_bytes + held.far_bytes;
        self.watch.changed(self.now_us, self.totals);
    }

    fn call_ended(&mut self, id: u64) {
        let Some(one) = self.instances.get_mut(&id) else { return };
        let Some((call, start, run_us)) = one.call.take() else { return };
        let (kind, share, near_bytes) = (one.kind, one.share, one.held.near_bytes);
        one.until_us = self.now_us + KEEP_ALIVE_US;
        self.agenda.add(one.until_us, Event::Expired(id));
        self.idle.entry(kind).or_default().push_back(id);
        self.running -= 1;
        let Call { request, arrival_us, duration_us, payload_bytes, .. } = call;
        if let Some(share) = share {
            let state = &mut self.states[kind.0 as usize];
            state.ran(self.now_us, payload_bytes, share, run_us, near_bytes);
        }
        let latency_us = self.now_us - arrival_us;
        let start = Some(start);
        self.watch.ended(Record { request, arrival_us, latency_us, duration_us, run_us, start });
    }

    /// An instance ends, unless it has had another call meanwhile.
    fn expired(&mut self, id: u64) {
        let is_over = |one: &Instance| one.call.is_none() && one.until_us == self.now_us;
        if !self.instances.get(&id).is_some_and(is_over) {
            return;
        }
        let Some(one) = self.instances.remove(&id) else { return };
        if let Some(idle) = self.idle.get_mut(&one.kind) {
            // Those that were used first are first, and end first.
            idle.retain(|other| *other != id);
        }
        self.totals.instances -= 1;
        self.totals.near_bytes -= one.held.near_bytes;
        self.totals.far_bytes -= one.held.far_bytes;
        self.watch.changed(self.now_us, self.totals);
    }
}
