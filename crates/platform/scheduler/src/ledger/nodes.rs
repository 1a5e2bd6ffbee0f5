//! All nodes, and which of those that answer has least memory in use.
//!
//! ```text
//!  best[1]             the better one of both halves
//!  best[2] best[3]     of each quarter …
//!  …                   leaves: the standing of each node
//! ```
//! A node that may have changed is marked. The next question computes its standing anew, and that of the halves which
//! it is in. So a change costs next to nothing, and a question the changed nodes times the depth of the tree.

use std::cell::RefCell;
use std::ops::{Deref, Index, IndexMut};

use crate::node::Node;

/// How good a node is for an instance, the best first: nodes with ghosts, then those with least memory in use, then
/// those with fewest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    is_silent: bool,
    lacks_ghosts: bool,
    used_bytes: u64,
    starting: u64,
    node: usize,
}

/// No node.
const NONE: Standing = Standing {
    is_silent: true,
    lacks_ghosts: true,
    used_bytes: u64::MAX,
    starting: u64::MAX,
    node: usize::MAX,
};

/// Which node is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// No node answers.
    None,
    /// Ghosts wait on a node, so that memory alone does not decide.
    HasGhosts,
    /// This one, by its index.
    Node(usize),
}

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

    /// The node that a placement by ghosts, memory and starts prefers, if any memory suffices: with everything that
    /// busy instances may still take counted as in use.
    pub fn best(&self) -> Best {
        let mut standings = self.standings.borrow_mut();
        while let Some(changed) = standings.changed.pop() {
            standings.is_changed[changed] = false;
            standings.set(changed, standing(changed, &self.all[changed]));
        }
        match standings.best[1] {
            Standing { is_silent: true, .. } => Best::None,
            Standing { lacks_ghosts: false, .. } => Best::HasGhosts,
            Standing { node, .. } => Best::Node(node),
        }
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
}

fn standing(node: usize, here: &Node) -> Standing {
    Standing {
        is_silent: !here.answers,
        lacks_ghosts: here.attached_ghosts + here.empty_ghosts == 0,
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
    fn scanned(nodes: &Nodes) -> Best {
        let answering = nodes.all.iter().enumerate().filter(|(_, node)| node.answers);
        let has_ghosts = |node: &Node| node.attached_ghosts > 0 || node.empty_ghosts > 0;
        if answering.clone().any(|(_, node)| has_ghosts(node)) {
            return Best::HasGhosts;
        }
        let used = |node: &Node| node.taken_bytes() + node.sums.headroom_bytes;
        let best = answering.min_by_key(|(index, node)| (used(node), node.sums.starting, *index));
        best.map_or(Best::None, |(index, _)| Best::Node(index))
    }

    proptest! {
        #[test]
        fn the_best_node_is_that_of_a_scan(
            count in 1usize..40,
            steps in proptest::collection::vec((any::<usize>(), 0u8..7, 0u64..4, any::<bool>()), 0..150),
        ) {
            let names = (0..count).map(|index| Node::new(format!("node{index:02}")));
            let mut nodes = Nodes::new(names.collect());
            for (which, what, figure, asks) in steps {
                let node = &mut nodes[which % count];
                match what {
                    0 => node.sums.begun_bytes = figure,
                    1 => node.sums.headroom_bytes = figure,
                    2 => node.sums.starting = figure,
                    3 => node.set_aside_bytes = figure,
                    4 => node.measured_bytes = Some(figure),
                    5 => node.answers = figure > 0,
                    _ => node.empty_ghosts = u64::from(figure == 3),
                }
                if asks {
                    prop_assert_eq!(nodes.best(), scanned(&nodes));
                }
            }
            prop_assert_eq!(nodes.best(), scanned(&nodes));
        }
    }
}
