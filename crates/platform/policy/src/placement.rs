//! On which node an instance starts.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::node::NodeRef;
use crate::{Decision, Facts, Memory, Policy};

/// Facts about an instance that needs a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFacts {
    /// Most bytes that the instance may take.
    pub need_bytes: u64,
    /// The nodes that answer.
    pub nodes: Vec<NodeFacts>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Which it is.
    #[serde(rename = "name")]
    pub node: NodeRef,
    /// Its memory, including what is promised to busy instances.
    pub memory: Memory,
    /// Bytes that must be free for one more instance of this kind beside the busy ones, if that is
    /// not all that it may take.
    #[serde(default)]
    pub need_bytes: Option<u64>,
    /// Ghosts attached to the function's image.
    pub attached_ghosts: u64,
    /// Empty ghosts that the function's user may take.
    pub empty_ghosts: u64,
    /// Instances that are starting.
    pub starting: u64,
    /// Share of the pool's bandwidth in use as seen from this node, in thousandths, if measured.
    #[serde(default)]
    pub pool_busy_permille: Option<u64>,
}

impl Facts for PlacementFacts {
    /// The node; `None` if no node has room.
    type Choice = Option<NodeRef>;
    const QUESTION: &'static str = "placement";
}

/// The node where a ghost waits; among several, the one with most free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NearestGhost {
    /// Share of a node's memory that instances may take, in thousandths. The rest is for their
    /// growth.
    pub most_memory_permille: u64,
}

impl Default for NearestGhost {
    fn default() -> NearestGhost {
        NearestGhost { most_memory_permille: 950 }
    }
}

impl NearestGhost {
    fn free(&self, node: &NodeFacts) -> u64 {
        node.memory.free_below(self.most_memory_permille)
    }

    fn best<'a>(&self, facts: &'a PlacementFacts) -> Option<&'a NodeFacts> {
        // An instance that needs nothing does not start on a full node either.
        let fitting =
            facts.nodes.iter().filter(|node| self.free(node) >= facts.need_on(node).max(1));
        let key = |node: &NodeFacts| (GhostKind::on(node), Reverse(self.free(node)), node.starting);
        fitting
            .min_by(|one, other| key(one).cmp(&key(other)).then_with(|| one.node.cmp(&other.node)))
    }
}

impl PlacementFacts {
    fn need_on(&self, node: &NodeFacts) -> u64 {
        node.need_bytes.unwrap_or(self.need_bytes)
    }
}

impl Policy<PlacementFacts> for NearestGhost {
    fn decide(&self, facts: &PlacementFacts) -> Decision<Option<NodeRef>> {
        let Some(best) = self.best(facts) else {
            let (count, needs) = (facts.nodes.len(), facts.nodes.iter());
            let least = needs.map(|node| facts.need_on(node)).min().unwrap_or(facts.need_bytes);
            return Decision::new(None, format!("none of {count} nodes has {least} bytes free"));
        };
        let why = format!("{}, {} bytes are free", GhostKind::on(best).words(), self.free(best));
        Decision::new(Some(best.node.clone()), why)
    }

    fn choose(&self, facts: &PlacementFacts) -> Option<NodeRef> {
        self.best(facts).map(|best| best.node.clone())
    }
}

/// The best ghost that an instance finds on a node; the quickest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GhostKind {
    Attached,
    Empty,
    None,
}

impl GhostKind {
    fn on(node: &NodeFacts) -> GhostKind {
        match node {
            NodeFacts { attached_ghosts: 1.., .. } => GhostKind::Attached,
            NodeFacts { empty_ghosts: 1.., .. } => GhostKind::Empty,
            _ => GhostKind::None,
        }
    }

    fn words(self) -> &'static str {
        match self {
            GhostKind::Attached => "a ghost with its image waits",
            GhostKind::Empty => "an empty ghost waits",
            GhostKind::None => "no ghost waits",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str, used_bytes: u64, attached_ghosts: u64, empty_ghosts: u64) -> NodeFacts {
        let memory = Memory { used_bytes, budget_bytes: 1000 };
        let node = NodeRef::from(name);
        NodeFacts { node, memory, attached_ghosts, empty_ghosts, ..NodeFacts::default() }
    }

    fn placed(need_bytes: u64, nodes: &[NodeFacts]) -> Option<String> {
        let facts = PlacementFacts { need_bytes, nodes: nodes.to_vec() };
        let choice = NearestGhost::default().decide(&facts).choice;
        choice.map(|node| node.name().to_owned())
    }

    #[test]
    fn a_waiting_ghost_counts_more_than_free_memory() {
        let nodes = [node("a", 0, 0, 0), node("b", 500, 0, 3), node("c", 800, 1, 0)];
        assert_eq!(placed(100, &nodes).as_deref(), Some("c"));
        assert_eq!(placed(200, &nodes).as_deref(), Some("b"), "it does not fit on c");
        assert_eq!(placed(600, &nodes).as_deref(), Some("a"));
        assert_eq!(placed(951, &nodes), None);
        assert_eq!(placed(0, &[]), None);
    }

    #[test]
    fn ties_go_to_the_node_with_more_free_memory_then_with_fewer_starts() {
        let nodes = [node("a", 300, 0, 1), node("b", 200, 0, 1)];
        assert_eq!(placed(1, &nodes).as_deref(), Some("b"));
        let busy = NodeFacts { starting: 2, ..node("a", 200, 0, 1) };
        assert_eq!(placed(1, &[busy, node("b", 200, 0, 1)]).as_deref(), Some("b"));
    }

    proptest! {
        #[test]
        fn no_node_is_filled_beyond_its_share(
            need in 0u64..1200,
            used in proptest::collection::vec((0u64..1200, 0u64..2, 0u64..2), 0..5),
        ) {
            let nodes: Vec<NodeFacts> = used
                .iter()
                .enumerate()
                .map(|(index, (used, attached, empty))| node(&index.to_string(), *used, *attached, *empty))
                .collect();
            match placed(need, &nodes) {
                Some(name) => {
                    let chosen = &nodes[name.parse::<usize>().unwrap()];
                    prop_assert!(chosen.memory.used_bytes + need <= 950);
                }
                None => prop_assert!(used.iter().all(|(used, ..)| used + need.max(1) > 950)),
            }
        }
    }
}
