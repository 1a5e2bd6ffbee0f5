//! What platforms are put through: how much memory nodes have, and how many calls come.

use super::systems::System;
use super::trace::Trace;

/// Memory, and load.
pub struct Scenario {
    /// Its name in reports.
    pub name: &'static str,
    /// Memory of each node.
    pub node_bytes: u64,
    /// How many traces are replayed at once.
    traces: usize,
}

/// With ample memory.
pub const AMPLE: &str = "100 % of the memory";
/// With a quarter of it.
pub const SCARCE: &str = "25 % of the memory";
/// With a quarter of it, and as many calls as keep two processors busy if every one is warm.
pub const CROWDED: &str = "25 % of the memory, six traces at once";

/// All of them; the quick ones come last.
pub const ALL: [Scenario; 4] = [
    Scenario { name: AMPLE, node_bytes: 4 << 30, traces: 1 },
    Scenario { name: "50 % of the memory", node_bytes: 2 << 30, traces: 1 },
    Scenario { name: SCARCE, node_bytes: 1 << 30, traces: 1 },
    Scenario { name: CROWDED, node_bytes: 1 << 30, traces: 6 },
];

impl Scenario {
    /// What one round replays: its own trace, and as many as are wanted of those that follow.
    pub fn trace(&self, traces: &[Trace], round: usize) -> Trace {
        Trace::at_once(traces.iter().cycle().skip(round).take(self.traces))
    }

    /// Whether it is of interest how a system does: too many calls would only keep waiting for processors
    /// where most of them need a cold start.
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
