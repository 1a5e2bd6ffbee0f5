//! Scenarios: memory of the nodes, and number of calls.

use super::systems::System;
use super::trace::Trace;

/// Memory and load.
pub struct Scenario {
    /// Name in reports.
    pub name: &'static str,
    /// Memory of each node.
    pub node_bytes: u64,
    /// Number of traces that are replayed at once.
    traces: usize,
}

/// With ample memory.
pub const AMPLE: &str = "100 % of the memory";
/// With a quarter of the memory.
pub const SCARCE: &str = "25 % of the memory";
/// With a quarter of the memory, and as many calls as keep two processors busy if all are warm.
pub const CROWDED: &str = "25 % of the memory, six traces at once";

/// All scenarios. Quick runs use the last ones.
pub const ALL: [Scenario; 4] = [
    Scenario { name: AMPLE, node_bytes: 4 << 30, traces: 1 },
    Scenario { name: "50 % of the memory", node_bytes: 2 << 30, traces: 1 },
    Scenario { name: SCARCE, node_bytes: 1 << 30, traces: 1 },
    Scenario { name: CROWDED, node_bytes: 1 << 30, traces: 6 },
];

impl Scenario {
    /// The trace of a round: its own trace, merged with the following ones.
    pub fn trace(&self, traces: &[Trace], round: usize) -> Trace {
        Trace::merged(traces.iter().cycle().skip(round).take(self.traces))
    }

    /// Whether a system is measured in this scenario. With too many calls, systems with cold starts would
    /// only wait for processors.
    pub fn is_for(&self, system: &System) -> bool {
        self.traces == 1 || system.has_images()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::systems;
    use super::super::trace::Arrival;
    use super::*;

    #[test]
    fn rounds_have_all_calls_of_their_traces() {
        let call =
            |name: &str, at| Arrival { at: Duration::from_secs(at), function: name.to_owned() };
        let traces =
            ["a", "b", "c", "d"].map(|name| Trace { arrivals: vec![call(name, 1), call(name, 9)] });
        let of = |scenario: usize, round| -> Vec<String> {
            let trace = ALL[scenario].trace(&traces, round);
            assert!(trace.arrivals.is_sorted_by_key(|arrival| arrival.at));
            trace.arrivals.into_iter().map(|arrival| arrival.function).collect()
        };
        assert_eq!(of(2, 3), ["d", "d"]);
        assert_eq!(of(3, 0), ["a", "b", "c", "d", "a", "b"].repeat(2));
        assert_eq!(of(3, 3), ["d", "a", "b", "c", "d", "a"].repeat(2));
    }

    #[test]
    fn crowds_are_for_the_systems_that_goals_are_of() {
        let is_for = |name: &str| {
            let all = systems::all();
            let system = all.iter().find(|system| system.name == name).unwrap();
            ALL.iter().all(|scenario| scenario.is_for(system))
        };
        for name in [systems::FARFORK, systems::FULL_COPY, systems::MIGRATE_ON_ACCESS] {
            assert!(is_for(name), "{name}");
        }
        assert!(!is_for("cold-start") && !is_for("container-cold-start"));
    }
}
