//! How much of a node's memory stays free for busy instances, and which of them pause when it is
//! about to be used up.
//!
//! An instance may take all that its limit allows, and mostly takes little of that. If all limits
//! were set aside, few instances could work; if they were not, one would be OOM-killed for what
//! another takes. This is the banker's problem (Dijkstra, EWD 123, 1965): claims are known, and all
//! are met in the end if an order exists in which each instance can reach its claim, and give back
//! what it holds, before the next. Each instance does give it back, because a call ends within its
//! time limit. So only as much must be free as lets such an order exist, plus what instances may
//! take before they can be paused.

use serde::{Deserialize, Serialize};

use crate::occupant::OccupantId;
use crate::{Decision, Facts, Memory, Policy};

/// An instance's demand for memory of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Bytes that it holds.
    pub held_bytes: u64,
    /// Bytes that it may take beyond that.
    pub headroom_bytes: u64,
}

/// An instance that is busy or starting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its name.
    pub id: OccupantId,
    /// Its demand.
    #[serde(flatten)]
    pub demand: Demand,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Whether it cannot be paused: it is starting, or being checkpointed.
    #[serde(default)]
    pub goes_on: bool,
}

/// Facts about a node on which busy instances may take more than is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthFacts {
    /// Its memory in use, without what is promised to the workers.
    pub memory: Memory,
    /// Of that, what idle instances hold. They end where memory runs out.
    pub idle_bytes: u64,
    /// Its busy and starting instances.
    pub workers: Vec<Worker>,
}

impl Facts for GrowthFacts {
    /// The names of the instances to pause; all others run.
    type Choice = Vec<OccupantId>;
    const QUESTION: &'static str = "growth";
}

/// Instances reach their limits one after the other, and more of them work than their limits add up
/// to. This pays where functions mostly wait. Functions that compute gain nothing by sharing
/// processors with more others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneByOne {
    /// Bytes that instances may take on a node before they can be paused.
    pub slack_bytes: u64,
}

impl Default for OneByOne {
    fn default() -> OneByOne {
        OneByOne { slack_bytes: 64 << 20 }
    }
}

impl OneByOne {
    /// The least that must be free so that all of these can reach their limits one after the other,
    /// even if any of them takes the slack before the others are paused.
    ///
    /// The order is by need, the least first. Slack that a later instance takes is given back too
    /// late for the earlier ones, so all but the last need it on top.
    pub fn least_free(&self, demands: impl Iterator<Item = Demand>) -> u64 {
        let mut order: Vec<Demand> = demands.collect();
        order.sort_by_key(|demand| demand.headroom_bytes);
        let last = order.len().saturating_sub(1);
        let (mut least, mut given_back) = (0, 0_u64);
        for (index, demand) in order.into_iter().enumerate() {
            let slack = if index == last { 0 } else { self.slack_bytes };
            let needed = demand.headroom_bytes.saturating_add(slack);
            least = least.max(needed.saturating_sub(given_back));
            given_back = given_back.saturating_add(demand.held_bytes);
        }
        least
    }
}

/// All may reach their limits at once, and none pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllAtOnce {}

impl AllAtOnce {
    /// Bytes that must be free so that all of these can reach their limits at once.
    pub fn least_free(&self, demands: impl Iterator<Item = Demand>) -> u64 {
        demands.map(|demand| demand.headroom_bytes).sum()
    }
}

impl Policy<GrowthFacts> for AllAtOnce {
    fn decide(&self, _: &GrowthFacts) -> Decision<Vec<OccupantId>> {
        Decision::new(Vec::new(), "the limits of all busy instances are set aside")
    }
}

impl Policy<GrowthFacts> for OneByOne {
    fn decide(&self, facts: &GrowthFacts) -> Decision<Vec<OccupantId>> {
        let GrowthFacts { memory, idle_bytes, workers } = facts;
        let free = memory.free_below(1000);
        let least = self.least_free(workers.iter().map(|worker| worker.demand));
        if free >= least {
            return Decision::new(Vec::new(), format!("{free} bytes are free, {least} are needed"));
        }
        // An instance that runs while others pause runs to its end. Otherwise two might wait for
        // each other's memory.
        let may_pause = || workers.iter().filter(|worker| !worker.goes_on);
        let first =
            may_pause().min_by_key(|worker| (worker.is_paused, worker.demand.headroom_bytes));
        let Some(first) = first else {
            return Decision::new(Vec::new(), "no instance can pause");
        };
        let Worker { id, demand: Demand { headroom_bytes, .. }, .. } = first;
        let why = format!(
            "{free} bytes are free, busy instances need {least} to reach their limits one by one"
        );
        // It waits for memory of idle instances, which end soon. For other memory it need not wait.
        let (lacks, soon) = (*headroom_bytes > free, *headroom_bytes <= free + idle_bytes);
        if lacks && soon {
            let all = may_pause().map(|worker| worker.id.clone()).collect();
            return Decision::new(
                all,
                format!("{why}: {id} waits for {headroom_bytes} of idle ones"),
            );
        }
        let others = may_pause().filter(|worker| worker.id != *id);
        let others = others.map(|worker| worker.id.clone()).collect();
        Decision::new(others, format!("{why}: only {id} runs, it may take {headroom_bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worker(id: &str, held_bytes: u64, headroom_bytes: u64) -> Worker {
        let demand = Demand { held_bytes, headroom_bytes };
        Worker { id: id.into(), demand, ..Worker::default() }
    }

    #[test]
    fn one_by_one_sets_aside_for_the_largest_not_for_all() {
        let small = || std::iter::repeat_n(Demand { held_bytes: 1, headroom_bytes: 127 }, 50);
        let policy = OneByOne { slack_bytes: 9 };
        assert_eq!(policy.least_free(small().take(0)), 0);
        assert_eq!(policy.least_free(small().take(1)), 127, "it is alone");
        assert_eq!(policy.least_free(small()), 136);
        let with_large = || small().chain([Demand { held_bytes: 10, headroom_bytes: 890 }]);
        assert_eq!(policy.least_free(with_large()), 840, "50 of it are given back before");
        assert_eq!(AllAtOnce {}.least_free(with_large()), 50 * 127 + 890);
    }

    #[test]
    fn one_instance_runs_where_not_all_can() {
        let decided_with = |used_bytes, idle_bytes, workers: &[Worker]| {
            let memory = Memory { used_bytes, budget_bytes: 1000 };
            let facts = GrowthFacts { memory, idle_bytes, workers: workers.to_vec() };
            let decided = OneByOne { slack_bytes: 10 }.decide(&facts);
            decided.choice.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let decided = |used_bytes, workers: &[Worker]| decided_with(used_bytes, 0, workers);
        let mut all = vec![worker("a", 100, 300), worker("b", 100, 200), worker("c", 0, 400)];
        // b needs 210, a 310 less 100, c 400 less 200.
        assert_eq!(decided(790, &all), [""; 0]);
        assert_eq!(decided(791, &all), ["a", "c"]);
        // b needs less now, but a runs already.
        (all[1].is_paused, all[2].is_paused) = (true, true);
        assert_eq!(decided(791, &all), ["b", "c"]);
        assert_eq!(decided_with(801, 0, &all), ["b", "c"], "nothing else becomes free");
        assert_eq!(decided_with(801, 101, &all), ["a", "b", "c"]);
        all[0].goes_on = true;
        assert_eq!(decided_with(801, 101, &all), ["b", "c"], "a cannot be paused");
        assert_eq!(decided(1000, &[]), [""; 0]);
        assert_eq!(decided(2000, &[worker("alone", 5, 400)]), [""; 0]);
    }

    /// Simulates workers that take all memory they can while they run. Each ends when it has its
    /// limit.
    fn simulated(
        policy: OneByOne,
        budget_bytes: u64,
        workers: &[Worker],
        order: &[usize],
    ) -> Result<(), String> {
        let (mut alive, mut idle): (Vec<Worker>, Vec<u64>) = (workers.to_vec(), Vec::new());
        let mut turns = order.iter().copied().cycle();
        for _ in 0..100_000 {
            let idle_bytes = idle.iter().sum();
            let used_bytes =
                alive.iter().map(|worker| worker.demand.held_bytes).sum::<u64>() + idle_bytes;
            if used_bytes > budget_bytes {
                return Err(format!("{used_bytes} of {budget_bytes} are taken"));
            }
            let memory = Memory { used_bytes, budget_bytes };
            let facts = GrowthFacts { memory, idle_bytes, workers: alive.clone() };
            let paused = policy.decide(&facts).choice;
            for worker in &mut alive {
                worker.is_paused = paused.contains(&worker.id);
            }
            let going: Vec<usize> =
                (0..alive.len()).filter(|index| !alive[*index].is_paused).collect();
            let Some(turn) = turns.next().filter(|_| !alive.is_empty()) else { return Ok(()) };
            // Idle ones end where memory runs out, after a while.
            if !paused.is_empty() && turn % 2 == 0 {
                idle.pop();
            }
            if going.is_empty() {
                match idle.is_empty() && turn % 2 == 1 {
                    true => return Err("all pause for nothing".to_owned()),
                    false => continue,
                }
            }
            // Before the next decision, one takes all of the slack.
            let one = &mut alive[going[turn % going.len()]];
            let more = one.demand.headroom_bytes.min(policy.slack_bytes);
            one.demand.held_bytes += more;
            one.demand.headroom_bytes -= more;
            let done = alive.iter().filter(|worker| worker.demand.headroom_bytes == 0);
            idle.extend(done.map(|worker| worker.demand.held_bytes));
            alive.retain(|worker| worker.demand.headroom_bytes > 0);
        }
        Err("it never ends".to_owned())
    }

    proptest! {
        #[test]
        fn every_admitted_worker_reaches_its_limit_within_the_budget(
            sizes in proptest::collection::vec((0u64..200, 1u64..600), 1..8),
            order in proptest::collection::vec(0usize..8, 1..12).prop_filter(
                "some idle one ends", |order| order.iter().any(|turn| turn % 2 == 0)
            ),
            slack_bytes in 1u64..80,
        ) {
            let policy = OneByOne { slack_bytes };
            let named = sizes.iter().enumerate();
            let workers: Vec<Worker> =
                named.map(|(id, (held, more))| worker(&id.to_string(), *held, *more)).collect();
            let held: u64 = workers.iter().map(|worker| worker.demand.held_bytes).sum();
            // The smallest budget with which admission lets them in.
            let mut budget = held;
            while budget - held < policy.least_free(workers.iter().map(|worker| worker.demand)) {
                budget += 1;
            }
            prop_assert_eq!(simulated(policy, budget, &workers, &order), Ok(()));
        }
    }
}
