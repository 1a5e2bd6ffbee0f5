//! What holds after any sequence of calls: sums are those of a scan, nothing is promised beyond a
//! budget, and what is taken ends once.

use std::collections::{BTreeMap, BTreeSet};

use farfork_policy::Policy;
use farfork_policy::growth::{Demand, GrowthFacts, Worker};
use farfork_policy::occupant::OccupantId;
use farfork_policy::placement::{NearestGhost, NodeFacts, PlacementFacts};
use farfork_policy::settings::Growth;
use farfork_scheduler::{Claim, GhostRef, ImageId, Ledger, NodeId, USUAL_MB, Usage};
use farfork_types::LocalShare;
use proptest::prelude::*;

use crate::bed::{Default, FREE, all_at_once, f, image, ledger, one_by_one};

/// A call. Instances and ghosts are chosen by their place among those that exist.
#[derive(Clone, Debug)]
enum Step {
    Reserve { node: usize, mb: u64, expected_mb: Option<u64> },
    Started(usize),
    BeginWork(usize),
    EndWork(usize),
    End(usize),
    Measure { node: usize, local_mb: u64, pool_mb: u64 },
    Kernel { node: usize, mb: Option<u64> },
    Lost(usize),
    Promote(usize),
    Promoted(usize),
    ChangeShare { which: usize, from: u16, to: u16 },
    ShareChanged(usize),
    Freeze(usize),
    Thawed(usize),
    Pause { node: usize, which: usize },
    GoesOn(usize, bool),
    TakeEmpty { node: usize, usual: bool },
    TakeAttached { node: usize, cid: u128 },
    OrderEmpty { node: usize, usual: bool },
    OrderAttached { node: usize, cid: u128 },
    SetAside(usize, u64),
    Counted(usize),
    Made(usize, Option<u64>),
    Withdraw { node: usize, which: usize },
    Surplus,
    ForgetImage,
    ForgetGhosts(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (node, which, mb) = (0usize..2, 0usize..8, 1u64..500);
    let cid = prop_oneof![4 => Just(1u128), 1 => Just(2)];
    prop_oneof![
        4 => (node.clone(), mb.clone(), proptest::option::of(1u64..600))
            .prop_map(|(node, mb, expected_mb)| Step::Reserve { node, mb, expected_mb }),
        3 => which.clone().prop_map(Step::Started),
        3 => which.clone().prop_map(Step::BeginWork),
        3 => which.clone().prop_map(Step::EndWork),
        1 => which.clone().prop_map(Step::End),
        2 => (node.clone(), 0u64..500, 0u64..300)
            .prop_map(|(node, local_mb, pool_mb)| Step::Measure { node, local_mb, pool_mb }),
        1 => (node.clone(), proptest::option::of(0u64..900))
            .prop_map(|(node, mb)| Step::Kernel { node, mb }),
        1 => node.clone().prop_map(Step::Lost),
        2 => which.clone().prop_map(Step::Promote),
        2 => which.clone().prop_map(Step::Promoted),
        2 => (which.clone(), 0u16..=1000, 0u16..=1000)
            .prop_map(|(which, from, to)| Step::ChangeShare { which, from, to }),
        2 => which.clone().prop_map(Step::ShareChanged),
        1 => which.clone().prop_map(Step::Freeze),
        1 => which.clone().prop_map(Step::Thawed),
        2 => (node.clone(), which.clone()).prop_map(|(node, which)| Step::Pause { node, which }),
        1 => (which.clone(), any::<bool>()).prop_map(|(which, on)| Step::GoesOn(which, on)),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, usual)| Step::TakeEmpty { node, usual }),
        4 => (node.clone(), cid.clone()).prop_map(|(node, cid)| Step::TakeAttached { node, cid }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, usual)| Step::OrderEmpty { node, usual }),
        3 => (node.clone(), cid).prop_map(|(node, cid)| Step::OrderAttached { node, cid }),
        3 => (which.clone(), 1u64..300).prop_map(|(which, mb)| Step::SetAside(which, mb)),
        2 => which.clone().prop_map(Step::Counted),
        5 => (which.clone(), proptest::option::weighted(0.8, 1u64..100))
            .prop_map(|(which, mb)| Step::Made(which, mb)),
        2 => (node.clone(), which).prop_map(|(node, which)| Step::Withdraw { node, which }),
        1 => Just(Step::Surplus),
        1 => Just(Step::ForgetImage),
        1 => node.prop_map(Step::ForgetGhosts),
        2 => (0u64..40_000_000).prop_map(Step::Wait),
    ]
}

/// An instance, as the scan knows it.
#[derive(Clone, Debug)]
struct Seen {
    node: usize,
    claim: Claim,
    pid: Option<i32>,
    usage: Option<Usage>,
    is_busy: bool,
    promoted_bytes: u64,
    share_bytes: u64,
    is_paused: bool,
    goes_on: bool,
    is_frozen: bool,
}

impl Seen {
    fn demand(&self) -> Demand {
        let held = self.usage.map_or(self.claim.first_bytes(), |usage| usage.local_bytes);
        let held_bytes = held + self.promised();
        Demand { held_bytes, headroom_bytes: self.claim.most_bytes().saturating_sub(held_bytes) }
    }

    fn held(&self) -> u64 {
        match self.usage {
            None if self.is_busy => 0,
            None => self.claim.most_bytes(),
            Some(usage) => usage.local_bytes,
        }
    }

    fn begun(&self) -> u64 {
        let first = if self.usage.is_none() && self.is_busy { self.claim.first_bytes() } else { 0 };
        first + self.promised()
    }

    /// What is promoted, or a larger share takes, has the limit's room.
    fn promised(&self) -> u64 {
        let held = self.usage.map_or(self.claim.first_bytes(), |usage| usage.local_bytes);
        let left = self.claim.most_bytes().saturating_sub(held.max(self.held()));
        (self.promoted_bytes + self.share_bytes).min(left)
    }
}

/// The ledger, and what a scan of plain lists says of it.
struct Bed {
    ledger: Ledger,
    growth: Growth,
    nodes: Vec<NodeId>,
    now_us: u64,
    instances: BTreeMap<u64, Seen>,
    kernel: Vec<Option<u64>>,
    answers: Vec<bool>,
    set_aside: BTreeMap<u64, (usize, u64)>,
    /// Ghosts that were ordered, and are neither made nor failed.
    making: Vec<(u64, usize)>,
    /// Ghosts that wait, and their nodes.
    waiting: BTreeMap<u64, usize>,
    /// Ghosts that were taken, stopped or are gone.
    ended: BTreeSet<u64>,
}

impl Bed {
    fn new(growth: Growth) -> Bed {
        let ledger = ledger(growth, &["a", "b"]);
        let nodes = ledger.ids().collect();
        Bed {
            ledger,
            growth,
            nodes,
            now_us: 0,
            instances: BTreeMap::new(),
            kernel: vec![None; 2],
            answers: vec![true; 2],
            set_aside: BTreeMap::new(),
            making: Vec::new(),
            waiting: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    fn here(&self, node: usize) -> impl Iterator<Item = (&u64, &Seen)> {
        self.instances.iter().filter(move |(_, one)| one.node == node)
    }

    fn taken(&self, node: usize) -> u64 {
        let held: u64 = self.here(node).map(|(_, one)| one.held()).sum();
        let begun: u64 = self.here(node).map(|(_, one)| one.begun()).sum();
        let aside = self.set_aside.values().filter(|(other, _)| *other == node);
        self.kernel[node].unwrap_or(held) + begun + aside.map(|(_, bytes)| bytes).sum::<u64>()
    }

    fn demands(&self, node: usize) -> impl Iterator<Item = Demand> {
        self.here(node).filter(|(_, one)| one.is_busy).map(|(_, one)| one.demand())
    }

    fn used(&self, node: usize) -> u64 {
        self.taken(node) + self.growth.least_free(self.demands(node))
    }

    fn need(&self, node: usize, claim: Claim) -> u64 {
        let first_bytes = claim.first_bytes();
        let headroom_bytes = claim.most_bytes() - first_bytes;
        let one = Demand { held_bytes: first_bytes, headroom_bytes };
        let after = self.growth.least_free(self.demands(node).chain([one]));
        (first_bytes + after).saturating_sub(self.growth.least_free(self.demands(node)))
    }

    fn is_crowded(&self, node: usize) -> bool {
        let growth: u64 = self.demands(node).map(|demand| demand.headroom_bytes).sum();
        let over = self.taken(node) + growth > 1000 << 20;
        self.growth.overcommits() && (over || self.here(node).any(|(_, one)| one.is_paused))
    }

    /// The facts about growth, without what ghosts hold.
    fn workers(&self, node: usize) -> Vec<Worker> {
        let busy = self.here(node).filter(|(_, one)| one.is_busy);
        let worker = |(id, one): (&u64, &Seen)| Worker {
            id: OccupantId::instance(*id),
            demand: one.demand(),
            is_paused: one.is_paused,
            goes_on: one.goes_on || one.is_frozen || one.pid.is_none(),
        };
        busy.map(worker).collect()
    }

    fn pick(&self, which: usize) -> Option<u64> {
        let count = self.instances.len();
        self.instances.keys().nth(which % count.max(1)).copied()
    }

    fn with(&mut self, which: usize, change: impl FnOnce(&mut Seen, u64)) {
        if let Some(id) = self.pick(which)
            && let Some(one) = self.instances.get_mut(&id)
        {
            change(one, id);
        }
    }

    /// A share is changed while nothing is promoted and no other change is counted.
    fn change_share(&mut self, which: usize, [from, to]: [u16; 2]) {
        let Some(id) = self.pick(which) else { return };
        let one = &self.instances[&id];
        let (node, most, is_free) =
            (one.node, one.claim.most_bytes(), one.promoted_bytes + one.share_bytes == 0);
        let [from, to] = [from, to].map(|share| LocalShare::from_permille(share).unwrap());
        let Some(_) = self.ledger.promote_to(id, Some(from), to) else { return };
        assert!(is_free, "another one is under way");
        let bytes = to.of(most).saturating_sub(from.of(most));
        self.with(which, |one, _| one.share_bytes = bytes);
        assert!(bytes == 0 || self.used(node) <= 1000 << 20, "over budget");
    }

    /// Ghosts end once, and only those that wait.
    fn end(&mut self, ghosts: &[GhostRef]) {
        for ghost in ghosts {
            let node = self.waiting.remove(&ghost.id);
            assert_eq!(node, self.nodes.iter().position(|node| *node == ghost.node), "{ghost:?}");
            assert!(self.ended.insert(ghost.id), "{ghost:?} ended before");
        }
    }

    fn take(&mut self, node: usize, id: Option<u64>) {
        let ghost = id.map(|id| GhostRef { node: self.nodes[node], id });
        self.end(ghost.as_slice());
    }

    fn instance_step(&mut self, step: &Step) {
        match *step {
            Step::Reserve { node, mb, expected_mb } => {
                let expected_bytes = expected_mb.map(|mb| mb << 20);
                let claim = Claim { memory_mb: mb, expected_bytes };
                let Some(id) = self.ledger.reserve(self.nodes[node], claim) else {
                    let needed = self.used(node) + self.need(node, claim);
                    assert!(needed > 1000 << 20, "there is room");
                    return;
                };
                let one = Seen {
                    node,
                    claim,
                    pid: None,
                    usage: None,
                    is_busy: true,
                    promoted_bytes: 0,
                    share_bytes: 0,
                    is_paused: false,
                    goes_on: false,
                    is_frozen: false,
                };
                self.instances.insert(id, one);
                assert!(self.used(node) <= 1000 << 20, "over budget");
            }
            Step::Started(which) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.started(id, id as i32);
                    self.with(which, |one, id| one.pid = Some(id as i32));
                }
            }
            Step::BeginWork(which) => {
                let Some(id) = self.pick(which) else { return };
                let before = self.instances[&id].clone();
                let began = self.ledger.begin_work(id);
                self.with(which, |one, _| one.is_busy |= began);
                let is_out = before.is_frozen && !self.answers[before.node];
                assert!(!(is_out && began));
                if began && !before.is_busy {
                    assert!(self.used(before.node) <= 1000 << 20, "over budget");
                }
            }
            Step::EndWork(which) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.end_work(id);
                    self.with(which, |one, _| one.is_busy = false);
                }
            }
            Step::End(which) => {
                if let Some(id) = self.pick(which) {
                    assert!(self.ledger.end(id) && !self.ledger.end(id));
                    self.instances.remove(&id);
                }
            }
            Step::Promote(which) => {
                let Some(id) = self.pick(which) else { return };
                if self.ledger.promote(id).is_some() {
                    self.with(which, |one, _| one.promoted_bytes = one.usage.unwrap().pool_bytes);
                    assert!(self.used(self.instances[&id].node) <= 1000 << 20, "over budget");
                }
            }
            Step::Promoted(which) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.promoted(id);
                    self.with(which, |one, _| one.promoted_bytes = 0);
                }
            }
            Step::ChangeShare { which, from, to } => self.change_share(which, [from, to]),
            Step::ShareChanged(which) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.share_changed(id);
                    self.with(which, |one, _| one.share_bytes = 0);
                }
            }
            Step::Freeze(which) => {
                let Some(id) = self.pick(which) else { return };
                let froze = self.ledger.freeze(id).is_some();
                let one = self.instances.get_mut(&id).unwrap();
                let may = !one.is_busy && !one.is_paused;
                assert_eq!(froze, may && one.pid.is_some());
                one.is_frozen |= may;
            }
            Step::Thawed(which) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.thawed(id);
                    self.with(which, |one, _| one.is_frozen = false);
                }
            }
            Step::Pause { node, which } => {
                let id = self.pick(which).map(OccupantId::instance);
                let changes = self.ledger.pause(self.nodes[node], id.as_slice(), self.now_us);
                for (id, one) in self.instances.iter_mut().filter(|(_, one)| one.node == node) {
                    let change = changes.iter().find(|change| change.id == *id);
                    one.is_paused = change.map_or(one.is_paused, |change| change.paused);
                }
            }
            Step::GoesOn(which, on) => {
                if let Some(id) = self.pick(which) {
                    self.ledger.prevent_pause(id, on);
                    self.with(which, |one, _| one.goes_on = on);
                }
            }
            _ => self.node_step(step),
        }
    }

    fn node_step(&mut self, step: &Step) {
        match *step {
            Step::Measure { node, local_mb, pool_mb } => {
                let here = self.here(node).filter_map(|(_, one)| one.pid);
                let usage = |pid: i32| Usage {
                    local_bytes: (local_mb + u64::from(pid.unsigned_abs() % 7)) << 20,
                    pool_bytes: pool_mb << 20,
                };
                let clones: BTreeMap<i32, Usage> = here.map(|pid| (pid, usage(pid))).collect();
                let has_turned = self.ledger.record_usage(self.nodes[node], Some(&clones));
                assert_eq!(has_turned, !self.answers[node]);
                self.answers[node] = true;
                for one in self.instances.values_mut().filter(|one| one.node == node) {
                    one.usage = one.pid.map(usage).or(one.usage);
                }
            }
            Step::Kernel { node, mb } => {
                self.ledger.record_measured(self.nodes[node], mb.map(|mb| mb << 20));
                self.kernel[node] = mb.map(|mb| mb << 20).or(self.kernel[node]);
            }
            Step::Lost(node) => {
                self.ledger.record_usage(self.nodes[node], None);
                self.answers[node] = false;
            }
            Step::Wait(us) => self.now_us += us,
            _ => self.ghost_step(step),
        }
    }

    fn ghost_step(&mut self, step: &Step) {
        let (now_us, advice) = (self.now_us, Default::new());
        let limit = |usual| if usual { USUAL_MB } else { 64 };
        match *step {
            Step::TakeEmpty { node, usual } => {
                let taken = self.ledger.take_empty(self.nodes[node], limit(usual), now_us);
                self.take(node, taken);
            }
            Step::TakeAttached { node, cid } => {
                let (image, node_id) = (image(&mut self.ledger, cid), self.nodes[node]);
                let (taken, stale) = self.ledger.take_attached(node_id, &image, now_us);
                self.ledger.record_start(node_id, image.image, 400_000, taken.is_some());
                self.take(node, taken);
                self.end(&stale);
            }
            Step::OrderEmpty { node, usual } => {
                let orders =
                    self.ledger.order_empty(self.nodes[node], limit(usual), now_us, &advice);
                self.making.extend(orders.iter().map(|order| (order.id, node)));
            }
            Step::OrderAttached { node, cid } => {
                let (image, node_id) = (image(&mut self.ledger, cid), self.nodes[node]);
                let orders = self.ledger.order_attached(node_id, &image, FREE, now_us, &advice);
                self.making.extend(orders.iter().map(|order| (order.id, node)));
            }
            Step::SetAside(which, mb) => {
                let count = self.making.len().max(1);
                let Some((id, node)) = self.making.get(which % count).copied() else { return };
                if self.ledger.set_aside(id, mb << 20) {
                    assert!(self.set_aside.insert(id, (node, mb << 20)).is_none(), "twice");
                    assert!(self.used(node) <= 1000 << 20, "over budget");
                }
            }
            Step::Counted(which) => {
                let count = self.set_aside.len().max(1);
                let Some(id) = self.set_aside.keys().nth(which % count).copied() else { return };
                assert!(self.ledger.counted(id) && !self.ledger.counted(id));
                self.set_aside.remove(&id);
            }
            Step::Made(which, mb) if !self.making.is_empty() => {
                let (id, node) = self.making.swap_remove(which % self.making.len());
                let is_useless = self.ledger.made(id, mb.map(|mb| mb << 20));
                assert!(!is_useless || mb.is_some());
                if mb.is_some() && !is_useless {
                    self.waiting.insert(id, node);
                }
            }
            Step::Withdraw { node, which } => {
                let idle = self.ledger.idle_ghosts(self.nodes[node], now_us);
                let chosen = idle.get(which % idle.len().max(1));
                let ids: Vec<OccupantId> = chosen.map(|one| one.id.clone()).into_iter().collect();
                let (withdrawn, bytes) = self.ledger.withdraw(self.nodes[node], &ids, now_us);
                assert_eq!(bytes, chosen.map_or(0, |one| one.bytes));
                self.end(&withdrawn);
            }
            Step::Surplus => {
                let surplus = self.ledger.surplus(FREE, now_us, &advice);
                self.end(&surplus);
            }
            Step::ForgetImage => {
                let image = f(&mut self.ledger);
                let useless = self.ledger.forget_image(image);
                self.end(&useless);
            }
            Step::ForgetGhosts(node) => {
                let gone = self.ledger.forget_ghosts(self.nodes[node]);
                self.end(&gone);
                assert!(self.waiting.values().all(|other| *other != node));
            }
            _ => {}
        }
    }

    /// A placement decides the same for the likeliest nodes as for all.
    fn check_likeliest(&self, claim: Claim, image: Option<ImageId>) {
        let all = self.ledger.numbered_facts(claim, image);
        let Some(likeliest) = self.ledger.likeliest(claim, image) else {
            return assert!(self.growth.overcommits());
        };
        assert!(!self.growth.overcommits() && likeliest.iter().all(|one| all.contains(one)));
        for most_memory_permille in [100, 500, 950, 1000] {
            let policy = NearestGhost { most_memory_permille };
            let placed = |nodes: &[NodeFacts]| {
                let need_bytes = claim.most_bytes();
                policy.choose(&PlacementFacts { need_bytes, nodes: nodes.to_vec() })
            };
            assert_eq!(placed(&likeliest), placed(&all));
        }
    }

    /// The ledger's sums are those of a scan.
    fn check(&mut self) {
        let claim = Claim { memory_mb: 100, expected_bytes: Some(30 << 20) };
        let [f, g] = ["guest/f", "guest/g"].map(|name| self.ledger.image(name));
        let facts = self.ledger.node_facts(claim, Some(f));
        for memory_mb in [64, USUAL_MB] {
            let claim = Claim { memory_mb, ..claim };
            for image in [None, Some(f), Some(g)] {
                self.check_likeliest(claim, image);
            }
        }
        let mut facts = facts.into_iter();
        for (index, node) in self.nodes.clone().into_iter().enumerate() {
            let status = self.ledger.status(node);
            let starting = self.here(index).filter(|(_, one)| one.pid.is_none()).count() as u64;
            let paused = self.here(index).filter(|(_, one)| one.is_paused).count() as u64;
            assert_eq!((status.starting, status.paused), (starting, paused));
            assert_eq!(status.memory.used_bytes, self.used(index));
            assert_eq!(self.ledger.is_crowded(node), self.is_crowded(index));
            let ghosts = status.empty_ghosts + status.attached_ghosts;
            let waiting = self.waiting.iter().filter(|(_, other)| **other == index);
            let waiting: BTreeSet<u64> = waiting.map(|(id, _)| *id).collect();
            assert_eq!(ghosts, waiting.len() as u64);
            assert_eq!(self.ledger.ghosts_on(node).collect::<BTreeSet<_>>(), waiting);
            let aside = self.set_aside.values().any(|(other, _)| *other == index);
            assert_eq!(self.ledger.has_set_aside(node), aside);
            if let Some(GrowthFacts { memory, idle_bytes, workers }) =
                self.ledger.growth_facts(node)
            {
                assert_eq!((memory.used_bytes, workers), (self.taken(index), self.workers(index)));
                let idle = self.here(index).filter(|(_, one)| !one.is_busy);
                let idle: u64 = idle.map(|(_, one)| one.held()).sum();
                let ghosts = self.ledger.idle_ghosts(node, self.now_us);
                let ghosts: u64 = ghosts.iter().map(|ghost| ghost.bytes).sum();
                assert_eq!(idle_bytes, idle + ghosts);
            }
            if self.answers[index] {
                let fact = facts.next().unwrap();
                assert_eq!(fact.need_bytes, Some(self.need(index, claim)));
                assert_eq!(fact.starting, starting);
            }
        }
        assert_eq!(facts.next(), None);
    }
}

fn run(growth: Growth, steps: &[Step]) {
    let mut bed = Bed::new(growth);
    for step in steps {
        bed.instance_step(step);
        bed.check();
    }
    // All ends, and nothing is left.
    bed.instances.clone().keys().for_each(|id| assert!(bed.ledger.end(*id)));
    bed.set_aside.clone().keys().for_each(|id| assert!(bed.ledger.counted(*id)));
    (bed.instances, bed.set_aside) = (BTreeMap::new(), BTreeMap::new());
    let nodes = bed.nodes.clone();
    nodes.into_iter().for_each(|node| bed.ledger.record_measured(node, Some(0)));
    bed.kernel = vec![Some(0); 2];
    bed.check();
    assert_eq!([bed.used(0), bed.used(1)], [0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_those_of_a_scan_and_all_ends_once(
        steps in proptest::collection::vec(step(), 1..150),
        is_one_by_one: bool,
    ) {
        run(if is_one_by_one { one_by_one() } else { all_at_once() }, &steps);
    }
}
