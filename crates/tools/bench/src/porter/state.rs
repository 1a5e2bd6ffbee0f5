//! The state of a platform while a trace is replayed.

use farfork_platform::scheduler::snapshot::{Node, Snapshot};

use super::processors::Load;

/// The state of a platform at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlatformState {
    /// Local memory of instances, in bytes.
    pub local_bytes: u64,
    /// Share of the nodes' memory that is used or promised, as admission counts it, in percent.
    pub promised: f64,
    /// Calls that wait for an instance.
    pub waiting: u64,
    /// Instances that are being started.
    pub starting: u64,
    /// Load of the processors since the previous sample.
    pub load: Load,
}

impl PlatformState {
    /// The sums over all nodes of a snapshot.
    pub fn from_snapshot(snapshot: &Snapshot, load: Load) -> PlatformState {
        let sum = |of: fn(&Node) -> u64| snapshot.nodes.values().map(of).sum::<u64>();
        let budget = sum(|node| node.budget_bytes).max(1);
        PlatformState {
            local_bytes: sum(|node| node.instances.local_bytes),
            promised: 100.0 * sum(|node| node.memory_bytes) as f64 / budget as f64,
            waiting: snapshot.calls_waiting,
            starting: sum(|node| node.starting),
            load,
        }
    }
}

#[cfg(test)]
mod tests {
    use farfork_platform::scheduler::snapshot::Instances;

    use super::*;

    #[test]
    fn nodes_are_added_up() {
        let node = |local_bytes, memory_bytes| Node {
            memory_bytes,
            budget_bytes: 1000,
            starting: 2,
            instances: Instances { local_bytes, ..Instances::default() },
            ..Node::default()
        };
        let nodes = [("a", node(10, 900)), ("b", node(20, 100))];
        let nodes = nodes.map(|(name, node)| (name.to_owned(), node)).into();
        let load = Load { busy: 60.0, taken_away: 1.0 };
        let seen = PlatformState::from_snapshot(
            &Snapshot { nodes, calls_waiting: 7, ..Snapshot::default() },
            load,
        );
        assert_eq!(
            seen,
            PlatformState { local_bytes: 30, promised: 50.0, waiting: 7, starting: 4, load }
        );
        assert_eq!(
            PlatformState::from_snapshot(&Snapshot::default(), Load::default()),
            PlatformState::default()
        );
    }
}
