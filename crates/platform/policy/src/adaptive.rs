//! Shares of near memory that are learned from calls, with the pitfall of far memory in mind.
//!
//! ```text
//!  1000 ─► 990 ─► 980 ─► 960 ─► 920 ─► …  twice as much away each time, no further than calls stay within the limit if
//!                                         they go on as in the last step
//!   too slow ─► back to between: there, calls take at most what the line from the last share to the slow one says
//!  then the learned share with which the instances together have least near memory
//! ```
//! Slower calls overlap more, need more instances, and can take more near memory in all than faster
//! ones (§3.3 of the paper of [shares](crate::share)). What counts is near bytes times instances, of which there are as
//! many as calls run (Little's law: arrivals times duration) and a few more. Functions
//! do not depend on each other in this: with the least for each, the cluster has least.
//!
//! A learning period is `learn_calls` calls at each share that is tried, mostly six to ten of them. It ends early, after
//! `least_calls`, at a share with which calls take too long. Facts hold recent calls, so a function whose calls at share
//! 1000 are no longer recent learns anew.
//!
//! Where pages become near by hotness, or are spread evenly, each step of a share slows calls at least
//! as much as the step before it. Steps rely on that: a straight line through two shares says too little of shares
//! further down, and too much of those between. So only the last step down can be too far, once; and if calls would not
//! take less memory with what the line says, they do not.

use farfork_types::LocalShare;
use serde::{Deserialize, Serialize};

use crate::share::{ALL, Cell, ShareFacts, bin, limit_us, whole};
use crate::{Decision, Policy};

const US_PER_HOUR: u128 = 3_600_000_000;
const ONE: u128 = 1_000_000;

/// The learned share with which all instances together have least near memory, within a tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adaptive {
    /// By how much latency may exceed that with all memory near, in thousandths.
    pub tolerance_permille: u64,
    /// Calls that show the latency of a share.
    pub learn_calls: u64,
    /// Calls after which a share is given up if they take too long.
    pub least_calls: u64,
    /// By how much the first share that is tried is smaller than 1000, in thousandths; at least 1. Shares are
    /// multiples of it.
    pub step_permille: u64,
    /// How many instances there are beyond the mean of running calls, in thousandths of its root.
    /// Calls that arrive independently overlap by Poisson's law, whose deviation that root is.
    pub spread_permille: u64,
    /// By how much less near memory another share must need than the current one, in thousandths.
    pub least_gain_permille: u64,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        Adaptive {
            tolerance_permille: 50,
            learn_calls: 32,
            least_calls: 8,
            step_permille: 10,
            spread_permille: 2000,
            least_gain_permille: 10,
        }
    }
}

/// What calls have shown.
struct Learned {
    /// Cells of shares within the limit, by share; none is below a share beyond it.
    within: Vec<Cell>,
    /// The cell of the largest share beyond the limit.
    beyond: Option<Cell>,
    limit_us: u64,
}

impl Adaptive {
    /// Near bytes of all instances that serve these calls.
    fn total_bytes(&self, cell: &Cell, arrivals_per_hour: u64) -> u128 {
        // In millionths: thousandths would be off by half a percent where few calls run.
        let busy_us = u128::from(arrivals_per_hour) * u128::from(cell.latency_us);
        let running = busy_us / (US_PER_HOUR / ONE);
        let root = running.saturating_mul(ONE).isqrt();
        let spread = root.saturating_mul(u128::from(self.spread_permille)) / 1000;
        let instances = running.saturating_add(spread).max(ONE);
        instances.saturating_mul(u128::from(cell.near_bytes)) / ONE
    }

    fn learned(&self, cells: &[Cell], limit_us: u64) -> Learned {
        let is_beyond = |cell: &&Cell| {
            cell.latency_us > limit_us && cell.calls >= self.least_calls.min(self.learn_calls)
        };
        let permille = |cell: &Cell| cell.local_permille.permille();
        let beyond = cells.iter().filter(is_beyond).max_by_key(|cell| permille(cell)).copied();
        let is_within = |cell: &&Cell| {
            cell.calls >= self.learn_calls
                && beyond.is_none_or(|beyond| permille(cell) > permille(&beyond))
        };
        let within = cells.iter().filter(is_within).copied().collect();
        Learned { within, beyond, limit_us }
    }

    /// The next share to learn, if there is one.
    fn next(&self, learned: &Learned, arrivals_per_hour: u64) -> Option<LocalShare> {
        let [low, rest @ ..] = &learned.within[..] else { return None };
        let step = self.step_permille.max(1);
        let from = u64::from(low.local_permille.permille());
        // Twice as far from 1000 as the last one: the first time, one step.
        let furthest = from.saturating_sub(u64::from(LocalShare::ALL_PERMILLE) - from);
        let (other, floor) = match (learned.beyond, rest.first()) {
            (Some(beyond), _) => (beyond, u64::from(beyond.local_permille.permille()) + 1),
            (None, Some(above)) => (*above, furthest.min(from.saturating_sub(step))),
            (None, None) => return self.share(from.checked_sub(1)?.saturating_sub(step - 1)),
        };
        let total = |cell: &Cell| self.total_bytes(cell, arrivals_per_hour);
        let best = learned.within.iter().map(total).min()?;
        let least_step = match learned.beyond {
            Some(_) => from.saturating_sub(step),
            None => from.checked_sub(1)?,
        };
        // Downwards by the grid, as long as calls would stay within the limit.
        let grid = (0..=least_step / step).rev().map(|steps| steps * step);
        let shares = grid.filter_map(|permille| self.share(permille));
        let expected = shares.map(|share| on_line(share, low, &other));
        let within: Vec<Cell> =
            expected.take_while(|cell| cell.latency_us <= learned.limit_us).collect();
        let gain = |cell: &Cell| total(cell) < best;
        within.iter().any(gain).then_some(())?;
        let is_near = |cell: &&Cell| u64::from(cell.local_permille.permille()) >= floor;
        within.iter().rfind(is_near).map(|cell| cell.local_permille)
    }

    fn share(&self, permille: u64) -> Option<LocalShare> {
        LocalShare::from_permille(u16::try_from(permille).ok()?).ok()
    }

    /// The best of the learned shares. The current one stays if it is nearly as good.
    fn best<'a>(&self, learned: &'a Learned, facts: &ShareFacts) -> Option<&'a Cell> {
        let total = |cell: &Cell| self.total_bytes(cell, facts.arrivals_per_hour);
        // Of equal ones the largest, with which calls are fastest.
        let best = learned.within.iter().rev().min_by_key(|cell| total(cell))?;
        let is_current = |cell: &&Cell| cell.local_permille == facts.current_permille;
        let current = learned.within.iter().find(is_current);
        let gain = u128::from(self.least_gain_permille);
        let is_near = |cell: &&Cell| {
            total(cell) <= total(best).saturating_add(total(best).saturating_mul(gain) / 1000)
        };
        current.filter(is_near).or(Some(best))
    }
}

/// What a share below `low` shows, if it is on a straight line with `low` and another one: with one above, further down
/// that line, and with one below, between both.
fn on_line(share: LocalShare, low: &Cell, other: &Cell) -> Cell {
    let apart =
        |from: LocalShare, to: LocalShare| u128::from(from.permille().abs_diff(to.permille()));
    let whole = apart(other.local_permille, low.local_permille).max(1);
    let part = |change: u64, round_up: u128| {
        let change = u128::from(change) * apart(low.local_permille, share) + round_up;
        u64::try_from(change / whole).unwrap_or(u64::MAX)
    };
    let slower_us = part(low.latency_us.abs_diff(other.latency_us), whole - 1);
    let is_slower =
        (other.local_permille > low.local_permille) == (low.latency_us >= other.latency_us);
    let saved_bytes = part(low.near_bytes.abs_diff(other.near_bytes), 0);
    Cell {
        local_permille: share,
        // Calls with less memory near are not faster: that is chance.
        latency_us: if is_slower {
            low.latency_us.saturating_add(slower_us)
        } else {
            low.latency_us
        },
        near_bytes: low.near_bytes.saturating_sub(saved_bytes),
        ..*low
    }
}

impl Policy<ShareFacts> for Adaptive {
    fn decide(&self, facts: &ShareFacts) -> Decision<LocalShare> {
        let cells = bin(&facts.observed, facts.payload_bytes);
        let learn = |share: LocalShare| {
            let seen = cells.iter().find(|cell| cell.local_permille == share);
            let calls = seen.map_or(0, |cell| cell.calls);
            let why = format!("learns it: {calls} of {} calls are known", self.learn_calls);
            Decision::new(share, why)
        };
        let Some(whole) = whole(&cells).filter(|cell| cell.calls >= self.learn_calls) else {
            return learn(ALL);
        };
        let tolerance = facts.tolerance_permille.unwrap_or(self.tolerance_permille);
        let learned = self.learned(&cells, limit_us(whole, tolerance));
        if let Some(next) = self.next(&learned, facts.arrivals_per_hour) {
            return learn(next);
        }
        let best = self.best(&learned, facts).unwrap_or(whole);
        let why = format!(
            "{} calls per hour need {} near bytes with it, and {} with all near; a call takes {} us, and may \
             take {} us",
            facts.arrivals_per_hour,
            self.total_bytes(best, facts.arrivals_per_hour),
            self.total_bytes(whole, facts.arrivals_per_hour),
            best.latency_us,
            learned.limit_us,
        );
        Decision::new(best.local_permille, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Dynamic;
    use crate::share::tests::{facts, share};
    use proptest::prelude::*;

    const BASE_US: u64 = 400_000;

    /// A function that is slower by `slow_permille` with no memory near, and less so with more: in
    /// proportion, or by a power of it.
    #[derive(Clone, Copy, Debug)]
    struct Function {
        slow_permille: u64,
        power: u32,
        arrivals_per_hour: u64,
        tolerance_permille: u64,
    }

    impl Function {
        fn cell(self, permille: u64, calls: u64) -> Cell {
            let away = (1000 - permille).pow(self.power);
            let slower = BASE_US * self.slow_permille * away / 1000_u64.pow(self.power + 1);
            Cell {
                payload_bytes: 100,
                local_permille: share(permille),
                calls,
                latency_us: BASE_US + slower,
                near_bytes: (1 << 20) + (permille << 16),
            }
        }

        fn facts(self) -> ShareFacts {
            let Function { arrivals_per_hour, tolerance_permille, .. } = self;
            let tolerance_permille = Some(tolerance_permille);
            ShareFacts { arrivals_per_hour, tolerance_permille, ..facts() }
        }

        /// Near bytes of all instances, computed in another way than by the policy.
        fn total(self, share: LocalShare) -> f64 {
            let cell = self.cell(u64::from(share.permille()), 1);
            let per_second = f64::from(u32::try_from(self.arrivals_per_hour).unwrap()) / 3600.0;
            let seconds = f64::from(u32::try_from(cell.latency_us).unwrap()) / 1e6;
            let running = per_second * seconds;
            let near_bytes = f64::from(u32::try_from(cell.near_bytes).unwrap());
            (running + 2.0 * running.sqrt()).max(1.0) * near_bytes
        }

        fn is_within(self, share: LocalShare, tolerance: u64) -> bool {
            let cell = self.cell(u64::from(share.permille()), 1);
            cell.latency_us <= BASE_US + BASE_US * tolerance / 1000
        }

        /// What the profile decides, on the same grid of shares.
        fn dynamic(self, tolerance_permille: u64) -> LocalShare {
            let profiled = (0..=20).map(|step| self.cell(step * 50, 30)).collect();
            let tolerance_permille = Some(tolerance_permille);
            let facts = ShareFacts { profiled, tolerance_permille, ..self.facts() };
            Dynamic::default().decide(&facts).choice
        }

        /// Calls, eight by eight: the share after so many, and how many took too long.
        fn learn(self, calls: u64) -> (LocalShare, u64) {
            let mut facts = self.facts();
            let mut violations = 0;
            for _ in 0..calls.div_ceil(8) {
                facts.current_permille = Adaptive::default().decide(&facts).choice;
                let chosen = facts.current_permille;
                violations += 8 * u64::from(!self.is_within(chosen, self.tolerance_permille));
                match facts.observed.iter_mut().find(|cell| cell.local_permille == chosen) {
                    Some(cell) => cell.calls += 8,
                    None => facts.observed.push(self.cell(u64::from(chosen.permille()), 8)),
                }
            }
            (facts.current_permille, violations)
        }
    }

    /// 21 shares of 32 calls each.
    const PERIOD: u64 = 21 * 32;

    #[test]
    fn a_tolerant_function_has_little_near_memory() {
        let tolerant =
            Function { slow_permille: 40, power: 1, arrivals_per_hour: 60, tolerance_permille: 50 };
        assert_eq!(tolerant.learn(32).0, ALL);
        assert_eq!(tolerant.learn(PERIOD + 8), (share(0), 0));
    }

    #[test]
    fn calls_that_overlap_more_are_counted() {
        // As slow as image recognition in the paper, at one hundred calls per second.
        let sensitive = Function {
            slow_permille: 3900,
            power: 1,
            arrivals_per_hour: 360_000,
            tolerance_permille: 200,
        };
        let dynamic = sensitive.dynamic(200);
        assert_eq!(dynamic, share(950), "19.5 percent slower");
        assert!(sensitive.total(dynamic) > sensitive.total(ALL), "the pitfall");
        assert_eq!(sensitive.learn(PERIOD), (ALL, 0));
        let rarely_called = Function { arrivals_per_hour: 6, ..sensitive };
        assert_eq!(rarely_called.learn(PERIOD), (share(950), 0), "one instance in any case");
    }

    #[test]
    fn a_share_that_has_become_slow_is_left() {
        let function =
            Function { slow_permille: 40, power: 1, arrivals_per_hour: 60, tolerance_permille: 50 };
        let mut facts = function.facts();
        facts.observed = vec![function.cell(950, 40), function.cell(1000, 40)];
        facts.current_permille = share(950);
        facts.observed[0].latency_us = BASE_US * 2;
        assert_eq!(Adaptive::default().decide(&facts).choice, ALL);
    }

    #[test]
    fn small_gains_do_not_change_a_share() {
        let policy = Adaptive::default();
        let cell = |permille, near_bytes| Cell {
            near_bytes,
            calls: 32,
            ..Function { slow_permille: 0, power: 1, arrivals_per_hour: 1, tolerance_permille: 50 }
                .cell(permille, 32)
        };
        let chosen = |near_bytes, current| {
            let mut facts = facts();
            facts.observed = vec![cell(0, near_bytes), cell(1000, 1000)];
            facts.current_permille = share(current);
            policy.decide(&facts).choice
        };
        assert_eq!([995, 900].map(|bytes| chosen(bytes, 1000)), [share(1000), share(0)]);
        assert_eq!(chosen(995, 0), share(0));
    }

    fn functions() -> impl Strategy<Value = Function> {
        let tolerances = prop::sample::select(vec![50_u64, 100, 200]);
        (0..5000_u64, 1..=3_u32, 1..1_000_000_u64, tolerances).prop_map(
            |(slow_permille, power, arrivals_per_hour, tolerance_permille)| Function {
                slow_permille,
                power,
                arrivals_per_hour,
                tolerance_permille,
            },
        )
    }

    proptest! {
        #[test]
        fn it_learns_shares_as_good_as_those_of_profiles(function in functions()) {
            let (learned, violations) = function.learn(PERIOD);
            prop_assert!(function.is_within(learned, function.tolerance_permille));
            prop_assert!(violations <= Adaptive::default().least_calls, "{violations} calls");
            // Where a step reaches the limit exactly, rounding decides. Close to it, where slowdowns are far from a line, the
            // last step may not be tried: of little near memory, that is much.
            let dynamic = function.dynamic(function.tolerance_permille - 1);
            let step = Adaptive::default().step_permille;
            let before = share((u64::from(dynamic.permille()) + step).min(1000));
            let ours = function.total(learned);
            let theirs = function.total(dynamic).max(function.total(before));
            prop_assert!(ours <= theirs * 1.02, "{learned}: {ours}, {dynamic}: {theirs}");
            // A share that is nearly as good stays: to one percent, and rounding.
            let whole = function.total(ALL);
            prop_assert!(ours <= whole * 1.011, "{learned}: {ours}, all near: {whole}");
        }

        #[test]
        fn no_figures_overflow(
            shares in prop::collection::vec((0..=1000_u64, any::<[u64; 3]>()), 0..6),
            whole in any::<[u64; 2]>(),
            arrivals_per_hour: u64,
            tolerance: u64,
            step_permille in 0..1100_u64,
            spread_permille: u64,
        ) {
            let cell = |permille, [calls, latency_us, near_bytes]: [u64; 3]| {
                let local_permille = share(permille);
                Cell { payload_bytes: 100, local_permille, calls, latency_us, near_bytes }
            };
            let observed = shares.iter().map(|&(permille, figures)| cell(permille, figures));
            // Without a known cell of this share no figure is computed.
            let whole = cell(1000, [40, whole[0], whole[1]]);
            let observed: Vec<Cell> = std::iter::once(whole).chain(observed).collect();
            let facts = ShareFacts {
                arrivals_per_hour,
                tolerance_permille: Some(tolerance),
                profiled: observed.clone(),
                observed,
                ..facts()
            };
            let policy = Adaptive { step_permille, spread_permille, ..Adaptive::default() };
            policy.decide(&facts);
            Dynamic::default().decide(&facts);
        }
    }
}
