//! How much of a node's memory stays free for what instances at work may come to take, and who of them
//! pauses when that is about to be used up.
//!
//! An instance may take all that its limit lets it, and mostly takes little of that. Were the limits of
//! all set aside, few could work; were they not, one would be killed for what another takes. This is the
//! problem of the banker (Dijkstra, EWD 123, 1965): claims are known, and all are met in the end if there is
//! an order in which each can come to its claim, and give back what it has, before the next. As a call ends
//! within its time, so does each of these. So no more has to be free than lets such an order exist, and a
//! little that is taken before anybody can be paused.

use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Memory, Policy};

/// What an instance demands of its node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// What it holds, in bytes.
    pub held_bytes: u64,
    /// What it may take beyond that, in bytes.
    pub headroom_bytes: u64,
}

/// An instance that has something to do, or is starting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its name.
    pub id: String,
    /// What it demands.
    #[serde(flatten)]
    pub demand: Demand,
    /// Whether it pauses.
    pub is_paused: bool,
    /// Whether it cannot be told to pause: it is starting, or being checkpointed.
    #[serde(default)]
    pub goes_on: bool,
}

/// What is known of a node on which instances may come to take more than is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthFacts {
    /// What is taken of its memory, without what is promised to these.
    pub memory: Memory,
    /// Of that, what instances hold that have nothing to do: they end where room runs out.
    pub idle_bytes: u64,
    /// Those that have something to do.
    pub workers: Vec<Worker>,
}

impl Facts for GrowthFacts {
    /// The names of those that pause; all others go on.
    type Choice = Vec<String>;
    const QUESTION: &'static str = "growth";
}

/// One comes to its limit after the other, and more work at a time than their limits add up to. That pays
/// where they mostly wait; who computes gains nothing by sharing processors with more others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OneByOne {
    /// Bytes that may be taken on a node before anybody can be paused.
    pub slack_bytes: u64,
}

impl Default for OneByOne {
    fn default() -> OneByOne {
        OneByOne { slack_bytes: 64 << 20 }
    }
}

impl OneByOne {
    /// The least that has to be free so that all of these can come to their limits one after the other, whoever
    /// takes up to the slack before the others can be paused.
    ///
    /// Those go first that need least. What others take meanwhile is theirs, and given back by them; but those
    /// who come later in the order give it back too late for those before them. So all but the last need it.
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

/// All may come to their limits at once: nobody pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllAtOnce {}

impl AllAtOnce {
    /// What has to be free so that all of these can come to their limits at once.
    pub fn least_free(&self, demands: impl Iterator<Item = Demand>) -> u64 {
        demands.map(|demand| demand.headroom_bytes).sum()
    }
}

impl Policy<GrowthFacts> for AllAtOnce {
    fn decide(&self, _: &GrowthFacts) -> Decision<Vec<String>> {
        Decision::new(Vec::new(), "what all may take is set aside")
    }
}

impl Policy<GrowthFacts> for OneByOne {
    fn decide(&self, facts: &GrowthFacts) -> Decision<Vec<String>> {
        let GrowthFacts { memory, idle_bytes, workers } = facts;
        let free = memory.free_below(1000);
        let least = self.least_free(workers.iter().map(|worker| worker.demand));
        if free >= least {
            return Decision::new(Vec::new(), format!("{free} bytes are free, and {least} enough"));
        }
        // Who goes on already does so to its end, or two might wait for each other's memory.
        let may_pause = || workers.iter().filter(|worker| !worker.goes_on);
        let first =
            may_pause().min_by_key(|worker| (worker.is_paused, worker.demand.headroom_bytes));
        let Some(first) = first else {
            return Decision::new(Vec::new(), "nobody can pause");
        };
        let Worker { id, demand: Demand { headroom_bytes, .. }, .. } = first;
        let why = format!(
            "{free} bytes are free, of {least} that instances at work may come to take one after the other"
        );
        // What will be free soon is not yet. What will not is not waited for.
        let (lacks, soon) = (*headroom_bytes > free, *headroom_bytes <= free + idle_bytes);
        if lacks && soon {
            let all = may_pause().map(|worker| worker.id.clone()).collect();
            return Decision::new(all, format!("{why}: {id} may take {headroom_bytes}, soon"));
        }
        let others = may_pause().filter(|worker| worker.id != *id);
        let others = others.map(|worker| worker.id.clone()).collect();
        Decision::new(others, format!("{why}: {id} goes on, which may take {headroom_bytes}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worker(id: &str, held_bytes: u64, headroom_bytes: u64) -> Worker {
        let demand = Demand { held_bytes, headroom_bytes };
        Worker { id: id.to_owned(), demand, ..Worker::default() }
    }

    #[test]
    fn as_much_stays_free_as_the_largest_may_take_not_as_all_may() {
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
    fn one_goes_on_where_not_all_can() {
        let decided_with = |used_bytes, idle_bytes, workers: &[Worker]| {
            let memory = Memory { used_bytes, budget_bytes: 1000 };
            let facts = GrowthFacts { memory, idle_bytes, workers: workers.to_vec() };
            OneByOne { slack_bytes: 10 }.decide(&facts).choice
        };
        let decided = |used_bytes, workers: &[Worker]| decided_with(used_bytes, 0, workers);
        let mut all = vec![worker("a", 100, 300), worker("b", 100, 200), worker("c", 0, 400)];
        // b needs 210, a 310 less 100, c 400 less 200.
        assert_eq!(decided(790, &all), [""; 0]);
        assert_eq!(decided(791, &all), ["a", "c"]);
        // b may take less now, but a goes on already.
        (all[1].is_paused, all[2].is_paused) = (true, true);
        assert_eq!(decided(791, &all), ["b", "c"]);
        assert_eq!(decided_with(801, 0, &all), ["b", "c"], "nothing else comes to be free");
        assert_eq!(decided_with(801, 101, &all), ["a", "b", "c"]);
        all[0].goes_on = true;
        assert_eq!(decided_with(801, 101, &all), ["b", "c"], "it cannot be told");
        assert_eq!(decided(1000, &[]), [""; 0]);
        assert_eq!(decided(2000, &[worker("alone", 5, 400)]), [""; 0]);
    }

    /// What comes of workers that take what they can while they are let: each ends when it has all.
    fn played_to_the_end(
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
            // Idle ones end where room runs out, after a while.
            if !paused.is_empty() && turn % 2 == 0 {
                idle.pop();
            }
            if going.is_empty() {
                match idle.is_empty() && turn % 2 == 1 {
                    true => return Err("all pause for nothing".to_owned()),
                    false => continue,
                }
            }
            // Before anybody looks again, one takes all that may be taken until then.
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
        fn whoever_was_let_in_comes_to_its_limit_and_memory_is_enough(
            sizes in proptest::collection::vec((0u64..200, 1u64..600), 1..8),
            order in proptest::collection::vec(0usize..8, 1..12).prop_filter(
                "somebody ends", |order| order.iter().any(|turn| turn % 2 == 0)
            ),
            slack_bytes in 1u64..80,
        ) {
            let policy = OneByOne { slack_bytes };
            let named = sizes.iter().enumerate();
            let workers: Vec<Worker> =
                named.map(|(id, (held, more))| worker(&id.to_string(), *held, *more)).collect();
            let held: u64 = workers.iter().map(|worker| worker.demand.held_bytes).sum();
            // As few as will do: admission lets them in with that.
            let mut budget = held;
            while budget - held < policy.least_free(workers.iter().map(|worker| worker.demand)) {
                budget += 1;
            }
            let played = played_to_the_end(policy, budget, &workers, &order);
            prop_assert_eq!(played, Ok(()));
        }
    }
}
