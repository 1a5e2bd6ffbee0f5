//! All nodes, and which of those that answer has least memory in use.
//!
//! ```text
//!  best[1]             the better one of both halves
//!  best[2] best[3]     of each quarter …
//!  …                   leaves: the standing of each node
//! ```
//! A node that may have changed is marked. The next question computes its standing anew, and that of the halves which
//! it is in. So a change costs next to nothing, and a question the changed nodes times the depth of the tree. The best
//! of some nodes only, those on which a kind of ghosts waits, is found by a walk that leaves out halves that are not better
//! than what it has found.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ops::{Deref, Index, IndexMut};

use crate::node::Node;

/// How good a node is for an instance, the best first: those with least memory in use, then those with fewest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    is_silent: bool,
    used_bytes: u64,
    starting: u64,
    node: usize,
}

/// No node.
const NONE: Standing =
    Standing { is_silent: true, used_bytes: u64::MAX, starting: u64::MAX, node: usize::MAX };

/// Of so few nodes each is looked at, without a walk.
const FEW: usize = 8;

/// Nodes, by name.
#[derive(Clone, Debug)]
pub struct Nodes {
    all: Vec<Node>,
    standings: RefCell<Standings>,
    /// How often a node was borrowed for changes.
    pub changes: u64,
}

#[derive(Clone, Debug)]
struct Standings {
    /// The root is at 1; the leaf of node `n` at `leaves + n`.
    best: Vec<Standing>,
    leaves: usize,
    /// Nodes that may have changed.
    changed: Vec<usize>,
    is_changed: Vec<bool>,
}

impl Nodes {
    /// These nodes, which are sorted.
    pub fn new(mut all: Vec<Node>) -> Nodes {
        all.sort_by(|one, other| one.name.cmp(&other.name));
        let leaves = all.len().next_power_of_two();
        let standings = Standings {
            best: vec![NONE; 2 * leaves],
            leaves,
            changed: (0..all.len()).collect(),
            is_changed: vec![true; all.len()],
        };
        Nodes { all, standings: RefCell::new(standings), changes: 0 }
    }

    /// The node that answers and has least memory in use, with everything that busy instances may still take counted
    /// as in use; by its index.
    pub fn best(&self) -> Option<usize> {
        let best = self.standings().best[1];
        (!best.is_silent).then_some(best.node)
    }

    /// The same of these nodes.
    pub fn best_of<T>(&self, nodes: &BTreeMap<usize, T>) -> Option<usize> {
        let standings = self.standings();
        let mut best = NONE;
        if nodes.len() <= FEW {
            let of_these = nodes.keys().map(|node| standings.best[standings.leaves + node]);
            best = of_these.min().unwrap_or(NONE);
        } else {
            standings.walk(1, &mut best, &|node| nodes.contains_key(&node));
        }
        (!best.is_silent).then_some(best.node)
    }

    /// What is known of all nodes, with all changes.
    fn standings(&self) -> RefMut<'_, Standings> {
        let mut standings = self.standings.borrow_mut();
        while let Some(changed) = standings.changed.pop() {
            standings.is_changed[changed] = false;
            standings.set(changed, standing(changed, &self.all[changed]));
        }
        standings
    }
}

impl Standings {
    fn set(&mut self, node: usize, standing: Standing) {
        let mut at = self.leaves + node;
        self.best[at] = standing;
        while at > 1 {
            at /= 2;
            let best = self.best[2 * at].min(self.best[2 * at + 1]);
            if self.best[at] == best {
                return;
            }
            self.best[at] = best;
        }
    }

    /// Finds what is better than the best so far in a part of the tree: the better half first, as the other one may be left
    /// out then.
    fn walk(&self, at: usize, best: &mut Standing, is_in: &impl Fn(usize) -> bool) {
        let here = self.best[at];
        if here >= *best {
            return;
        }
        if at >= self.leaves {
            if is_in(here.node) {
                *best = here;
            }
            return;
        }
        let (one, other) = (2 * at, 2 * at + 1);
        let one_is_first = self.best[one] < self.best[other];
        let (first, last) = if one_is_first { (one, other) } else { (other, one) };
        self.walk(first, best, is_in);
        self.walk(last, best, is_in);
    }
}

fn standing(node: usize, here: &Node) -> Standing {
    Standing {
        is_silent: !here.answers,
        used_bytes: here.taken_bytes() + here.sums.headroom_bytes,
        starting: here.sums.starting,
        node,
    }
}

impl Deref for Nodes {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.all
    }
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, node: usize) -> &Node {
        &self.all[node]
    }
}

/// A node that is borrowed for changes counts as changed.
impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, node: usize) -> &mut Node {
        self.changes += 1;
        let standings = self.standings.get_mut();
        if !standings.is_changed[node] {
            standings.is_changed[node] = true;
            standings.changed.push(node);
        }
        &mut self.all[node]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By looking at each node.
    fn scanned(nodes: &Nodes, is_in: impl Fn(usize) -> bool) -> Option<usize> {
        let answering = nodes.all.iter().enumerate().filter(|(_, node)| node.answers);
        let used = |node: &Node| node.taken_bytes() + node.sums.headroom_bytes;
        let best = answering
            .filter(|(index, _)| is_in(*index))
            .min_by_key(|(index, node)| (used(node), node.sums.starting, *index));
        best.map(|(index, _)| index)
    }

    proptest! {
        #[test]
        fn the_best_node_is_that_of_a_scan(
            count in 1usize..70,
            steps in proptest::collection::vec((any::<usize>(), 0u8..6, 0u64..4, any::<bool>()), 0..150),
            some in any::<u128>(),
        ) {
            let names = (0..count).map(|index| Node::new(format!("node{index:02}")));
            let mut nodes = Nodes::new(names.collect());
            let is_in = |node: usize| some >> node & 1 == 1;
            let members: BTreeMap<usize, ()> =
                (0..count).filter(|node| is_in(*node)).map(|node| (node, ())).collect();
            for (which, what, figure, asks) in steps {
                let node = &mut nodes[which % count];
                match what {
                    0 => node.sums.begun_bytes = figure,
                    1 => node.sums.headroom_bytes = figure,
                    2 => node.sums.starting = figure,
                    3 => node.set_aside_bytes = figure,
                    4 => node.measured_bytes = Some(figure),
                    _ => node.answers = figure > 0,
                }
                if asks {
                    prop_assert_eq!(nodes.best(), scanned(&nodes, |_| true));
                    prop_assert_eq!(nodes.best_of(&members), scanned(&nodes, is_in));
                }
            }
            prop_assert_eq!(nodes.best(), scanned(&nodes, |_| true));
            prop_assert_eq!(nodes.best_of(&members), scanned(&nodes, is_in));
        }
    }
}
