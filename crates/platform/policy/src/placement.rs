//! On which node an instance starts.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// What is known when an instance has to go somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementFacts {
    /// What the instance may take, in bytes.
    pub need_bytes: u64,
    /// The nodes that answer.
    pub nodes: Vec<NodeFacts>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its memory, with what is promised to instances at work.
    pub memory: Memory,
    /// What has to be free for one more instance of this kind beside those at work, in bytes, if not all that it
    /// may take.
    #[serde(default)]
    pub need_bytes: Option<u64>,
    /// Ghosts on it that have the function's image.
    pub attached_ghosts: u64,
    /// Empty ghosts on it that the function's user may have.
    pub empty_ghosts: u64,
    /// Instances that are starting on it.
    pub starting: u64,
    /// Share of the pool's bandwidth in use, as seen from it, in thousandths; nothing if it is not measured.
    #[serde(default)]
    pub pool_busy_permille: Option<u64>,
}

impl Facts for PlacementFacts {
    /// The node's name; nothing if there is room on none.
    type Choice = Option<String>;
    const QUESTION: &'static str = "placement";
}

/// Where a ghost waits, and among those where most memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NearestGhost {
    /// Share of a node's memory that instances may take, in thousandths: the rest is for what they
    /// grow by.
    pub most_memory_permille: u64,
}

impl Default for NearestGhost {
    fn default() -> NearestGhost {
        NearestGhost { most_memory_permille: 950 }
    }
}

impl Policy<PlacementFacts> for NearestGhost {
    fn decide(&self, facts: &PlacementFacts) -> Decision<Option<String>> {
        let need = |node: &NodeFacts| node.need_bytes.unwrap_or(facts.need_bytes);
        let free = |node: &NodeFacts| node.memory.free_below(self.most_memory_permille);
        // Who needs nothing does not start on a full node either.
        let fitting = facts.nodes.iter().filter(|node| free(node) >= need(node).max(1));
        let best = fitting.min_by_key(|node| {
            let kind = Kind::of(node);
            (kind, Reverse(free(node)), node.starting, node.name.clone())
        });
        let Some(best) = best else {
            let count = facts.nodes.len();
            let least = facts.nodes.iter().map(need).min().unwrap_or(facts.need_bytes);
            return Decision::new(None, format!("none of {count} nodes has {least} bytes left"));
        };
        let why = format!("{} on it, {} bytes left", Kind::of(best).words(), free(best));
        Decision::new(Some(best.name.clone()), why)
    }
}

/// What an instance finds on a node; the quickest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Attached,
    Empty,
    Nothing,
}

impl Kind {
    fn of(node: &NodeFacts) -> Kind {
        match node {
            NodeFacts { attached_ghosts: 1.., .. } => Kind::Attached,
            NodeFacts { empty_ghosts: 1.., .. } => Kind::Empty,
            _ => Kind::Nothing,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Attached => "a ghost with its image waits",
            Kind::Empty => "an empty ghost waits",
            Kind::Nothing => "no ghost waits",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(name: &str, used_bytes: u64, attached_ghosts: u64, empty_ghosts: u64) -> NodeFacts {
        let memory = Memory { used_bytes, budget_bytes: 1000 };
        let name = name.to_owned();
        NodeFacts { name, memory, attached_ghosts, empty_ghosts, ..NodeFacts::default() }
    }

    fn placed(need_bytes: u64, nodes: &[NodeFacts]) -> Option<String> {
        let facts = PlacementFacts { need_bytes, nodes: nodes.to_vec() };
        NearestGhost::default().decide(&facts).choice
    }

    #[test]
    fn a_ghost_that_waits_is_worth_more_than_free_memory() {
        let nodes = [node("a", 0, 0, 0), node("b", 500, 0, 3), node("c", 800, 1, 0)];
        assert_eq!(placed(100, &nodes).as_deref(), Some("c"));
        assert_eq!(placed(200, &nodes).as_deref(), Some("b"), "it does not fit on c");
        assert_eq!(placed(600, &nodes).as_deref(), Some("a"));
        assert_eq!(placed(951, &nodes), None);
        assert_eq!(placed(0, &[]), None);
    }

    #[test]
    fn among_equals_the_emptier_one_then_the_less_busy_one_takes_it() {
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
