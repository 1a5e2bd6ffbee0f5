//! Whether the counts of structures are right.

use std::collections::{HashMap, HashSet};

use crate::census::{self, Seen};
use crate::layout::{ClientId, FREE, LINKED, SHARED};
use crate::nodes::{next, node};
use crate::region::{Platform, Region};
use crate::shared::Record;
use crate::words::Words;

/// Objects of structures that are wrong.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// No reference means them, and no client is freeing them.
    pub(crate) lost: Vec<u32>,
    /// As many references as their count says do not exist, or there are more.
    pub(crate) miscounted: Vec<u32>,
    /// References mean them, but only from objects that nothing holds: circles, and what hangs on these.
    pub(crate) unreachable: Vec<u32>,
}

/// Counts the references to every object, and follows them from what is held. Clients go on meanwhile.
pub(crate) fn structures<P: Platform>(region: &Region<P>) -> Audit {
    let mut references: HashMap<u32, u32> = HashMap::new();
    let mut linked = Vec::new();
    let mut listed = HashSet::new();
    let mut held = Vec::new();
    census::objects(region, |Seen { granule, owner, .. }| {
        if owner == SHARED {
            let record = Record(granule);
            listed.extend(record.root(region));
            follow(region, record.deferred_at(region), &mut listed);
        }
        let Some(node) = node(region, granule) else { return };
        let targets = (0..node.fields)
            .filter_map(|field| region.granule_of(region.words.word(node.field(region, field))));
        targets.for_each(|target| *references.entry(target).or_default() += 1);
        match owner {
            LINKED => linked.push(granule),
            _ => held.push(granule),
        }
    });
    for id in ClientId::all() {
        follow(region, region.layout.dying(id), &mut listed);
    }
    held.extend(&listed);
    let reached = reach(region, held);
    let mut audit = Audit::default();
    for granule in linked {
        let found = references.remove(&granule).unwrap_or(0);
        let count = node(region, granule).map_or(0, |node| node.count);
        if found != count {
            audit.miscounted.push(granule);
        } else if count == 0 && !listed.contains(&granule) {
            audit.lost.push(granule);
        } else if !reached.contains(&granule) {
            audit.unreachable.push(granule);
        }
    }
    // References to memory that is free.
    let owner = |granule: &u32| region.words.byte(region.layout.owner(*granule));
    audit.miscounted.extend(references.into_keys().filter(|granule| owner(granule) == FREE));
    audit
}

/// Objects of structures that references lead to from these, and these.
fn reach<P: Platform>(region: &Region<P>, mut from: Vec<u32>) -> HashSet<u32> {
    let mut reached: HashSet<u32> = from.iter().copied().collect();
    while let Some(granule) = from.pop() {
        let Some(node) = node(region, granule) else { continue };
        let targets = (0..node.fields).filter_map(|field| node.target(region, field));
        from.extend(targets.map(|to| to.granule).filter(|to| reached.insert(*to)));
    }
    reached
}

/// The objects of a list. Ends where it meets one that it has seen.
fn follow<P: Platform>(region: &Region<P>, from: usize, listed: &mut HashSet<u32>) {
    let mut at = from;
    while let Some(granule) = region.granule_in_spans(region.words.word(at)) {
        if node(region, granule).is_none() || !listed.insert(granule) {
            return;
        }
        at = next(region, granule);
    }
}
