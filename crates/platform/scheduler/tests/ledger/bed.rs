//! A ledger under test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;

use farfork_policy::growth::{AllAtOnce, OneByOne};
use farfork_policy::placement::NodeFacts;
use farfork_policy::settings::Growth;
use farfork_policy::{Memory, Policies, Question, Settings};
use farfork_scheduler::{Advice, Claim, ImageId, ImageSpec, Ledger, NodeId, Usage};
use farfork_types::Tiering;

pub const FREE: Memory = Memory { used_bytes: 0, budget_bytes: 1 << 40 };

pub fn all_at_once() -> Growth {
    Growth::AllAtOnce(AllAtOnce::default())
}

pub fn one_by_one() -> Growth {
    Growth::OneByOne(OneByOne { slack_bytes: 10 << 20 })
}

/// Nodes with 1000 MiB each.
pub fn ledger(growth: Growth, nodes: &[&str]) -> Ledger {
    Ledger::new(nodes.iter().map(|node| (*node).to_owned()), 1000 << 20, growth, 0)
}

pub fn node(ledger: &Ledger, name: &str) -> NodeId {
    ledger.node(name).unwrap()
}

pub fn claim(memory_mb: u64) -> Claim {
    Claim { memory_mb, expected_bytes: None }
}

pub fn like_others(memory_mb: u64, expected: u64) -> Claim {
    Claim { memory_mb, expected_bytes: Some(expected << 20) }
}

pub fn usage(local: u64, pool: u64) -> Usage {
    Usage { local_bytes: local << 20, pool_bytes: pool << 20 }
}

/// Measures clones on the first node, which has answered before.
pub fn seen<const N: usize>(ledger: &mut Ledger, clones: [(i32, Usage); N]) {
    let node = ledger.ids().next().unwrap();
    assert!(!ledger.record_usage(node, Some(&BTreeMap::from(clones))), "it has answered before");
}

/// A started, measured and busy instance on the first node.
pub fn busy(ledger: &mut Ledger, pid: i32, memory_mb: u64, local: u64) -> u64 {
    let node = ledger.ids().next().unwrap();
    let one = ledger.reserve(node, claim(memory_mb)).expect("there is room");
    ledger.started(one, pid);
    seen(ledger, [(pid, usage(local, 0))]);
    one
}

pub fn facts(ledger: &Ledger) -> Vec<NodeFacts> {
    ledger.node_facts(Claim::default(), None)
}

pub fn used(ledger: &Ledger) -> Vec<u64> {
    facts(ledger).iter().map(|node| node.memory.used_bytes >> 20).collect()
}

/// The image of the only function that has one.
pub fn f(ledger: &mut Ledger) -> ImageId {
    ledger.image("guest/f")
}

pub fn image(ledger: &mut Ledger, cid: u128) -> ImageSpec {
    let (image, cid) = (f(ledger), format!("{cid:032x}").parse().unwrap());
    ImageSpec { image, cid, tiering: Tiering::Mow, memory_mb: 128 }
}

/// The default policies, which note what decisions are about.
#[derive(Debug)]
pub struct Default {
    policies: Policies,
    pub about: RefCell<Vec<String>>,
}

impl Default {
    pub fn new() -> Default {
        Default { policies: Settings::default().into(), about: RefCell::default() }
    }
}

impl Advice for Default {
    fn decide_if<F: Question>(
        &self,
        about: &dyn Display,
        facts: &F,
        _: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice {
        self.about.borrow_mut().push(format!("{} {about}", F::QUESTION));
        F::policy(&self.policies).decide(facts).choice
    }
}
