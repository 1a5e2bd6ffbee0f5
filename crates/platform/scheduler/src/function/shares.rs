//! How much of the memory of a function's instances is near, and what calls have shown of it.
//!
//! ```text
//!  a call comes ─► its bin: arrivals per minute        a call has run ─► its bin and share: recent durations
//!  an instance starts for a call ─► facts of the call's bin ─► the share of the instance
//!  an instance gets another call ─► the same, after every few calls ─► its share, from now on, if it can be changed
//! ```
//! Bins of arguments are those of the profile; without one, powers of two.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;

use farfork_policy::share::{ALL, Cell, ShareFacts};
use farfork_types::LocalShare;

use super::Function;
use crate::advice::Advice;

/// Recent calls with one share whose durations are remembered. Twice as many as a learning policy asks for.
const RECENT: usize = 64;
/// Calls of a bin after which its share is asked for again.
const AGAIN: u64 = 4;
const MINUTE_US: u64 = 60_000_000;
const MINUTES: u64 = 60;

/// The shares of one function.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    profiled: Vec<Cell>,
    declared: Declared,
    bins: BTreeMap<u64, Bin>,
}

/// What a function's owner has declared about shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// By how much calls may be slower than with all memory near, in thousandths.
    pub tolerance_permille: Option<u64>,
    /// The share of all instances: no policy is asked.
    pub share: Option<LocalShare>,
}

impl Declared {
    /// Whether there is anything.
    pub fn is_any(&self) -> bool {
        *self != Declared::default()
    }
}

/// Arguments of about one size.
#[derive(Clone, Debug, Default)]
struct Bin {
    /// The share that was decided last.
    current: Option<LocalShare>,
    /// Calls that have run since then.
    unasked: u64,
    arrivals: PerMinute,
    seen: BTreeMap<LocalShare, Seen>,
}

/// Calls with one share.
#[derive(Clone, Debug, Default)]
struct Seen {
    recent_us: VecDeque<u64>,
    last_us: u64,
    near_bytes: u64,
}

/// An instance that has a share, and is about to serve a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The arguments that it has started for, in bytes.
    pub payload_bytes: u64,
    /// Its share.
    pub share: LocalShare,
    /// Whether the share can become smaller: pages never go back into the pool.
    pub can_shrink: bool,
}

/// Calls by minute, for an hour.
#[derive(Clone, Debug, Default)]
struct PerMinute {
    /// Minutes and calls, in their order.
    counts: VecDeque<(u64, u64)>,
    first_us: Option<u64>,
}

impl PerMinute {
    fn add(&mut self, now_us: u64) {
        self.first_us.get_or_insert(now_us);
        let minute = now_us / MINUTE_US;
        match self.counts.back_mut() {
            Some((last, count)) if *last == minute => *count += 1,
            _ => self.counts.push_back((minute, 1)),
        }
        self.forget(minute);
    }

    fn forget(&mut self, minute: u64) {
        while self.counts.front().is_some_and(|(old, _)| minute - old >= MINUTES) {
            self.counts.pop_front();
        }
    }

    /// Calls in an hour. A function that is known for less than a minute may have had a burst: its calls count
    /// as those of a whole minute.
    fn per_hour(&mut self, now_us: u64) -> u64 {
        self.forget(now_us / MINUTE_US);
        let known_us = now_us - self.first_us.unwrap_or(now_us).min(now_us);
        // The current minute is not over.
        let most_us = (MINUTES - 1) * MINUTE_US + now_us % MINUTE_US;
        let span_us = known_us.clamp(MINUTE_US, most_us.max(MINUTE_US));
        let calls: u64 = self.counts.iter().map(|(_, count)| count).sum();
        let per_hour = u128::from(calls) * u128::from(MINUTES * MINUTE_US) / u128::from(span_us);
        u64::try_from(per_hour).unwrap_or(u64::MAX)
    }
}

impl Seen {
    /// The median duration.
    fn median_us(&self) -> u64 {
        let mut sorted: Vec<u64> = self.recent_us.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

impl Shares {
    /// Of a function with this profile, which may be empty.
    pub fn new(profiled: Vec<Cell>) -> Shares {
        Shares { profiled, ..Shares::default() }
    }

    /// The bin of arguments: the nearest of the profile, and of two as near the larger one.
    fn bin(&self, payload_bytes: u64) -> u64 {
        let bins = self.profiled.iter().map(|cell| cell.payload_bytes);
        let nearest = bins.min_by_key(|bin| (bin.abs_diff(payload_bytes), !bin));
        nearest.unwrap_or_else(|| payload_bytes.checked_next_power_of_two().unwrap_or(u64::MAX))
    }

    /// A call has come.
    pub fn called(&mut self, now_us: u64, payload_bytes: u64) {
        let bin = self.bin(payload_bytes);
        self.bins.entry(bin).or_default().arrivals.add(now_us);
    }

    /// A call has run for so long in an instance with this share, which had so much near memory.
    pub fn ran(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        share: LocalShare,
        run_us: u64,
        near_bytes: u64,
    ) {
        let bin = self.bin(payload_bytes);
        let bin = self.bins.entry(bin).or_default();
        bin.unasked += 1;
        let seen = bin.seen.entry(share).or_default();
        seen.recent_us.push_back(run_us);
        if seen.recent_us.len() > RECENT {
            seen.recent_us.pop_front();
        }
        (seen.last_us, seen.near_bytes) = (now_us, near_bytes);
    }

    /// Decides the share of an instance that starts for a call.
    pub fn decide(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> LocalShare {
        if let Some(share) = self.declared.share {
            return share;
        }
        let facts = self.facts(now_us, payload_bytes);
        self.decided(facts.payload_bytes, advice.decide(about, &facts))
    }

    /// The share that an instance should have from now on, which has started for arguments of this size. It is asked for
    /// after every few calls; a decision that changes nothing is not written down.
    pub fn again(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> LocalShare {
        if let Some(share) = self.declared.share {
            return share;
        }
        let payload_bytes = self.bin(payload_bytes);
        let bin = self.bins.entry(payload_bytes).or_default();
        if let Some(current) = bin.current.filter(|_| bin.unasked < AGAIN) {
            return current;
        }
        let facts = self.facts(now_us, payload_bytes);
        let current = facts.current_permille;
        let share = advice.decide_if(about, &facts, |share| *share != current);
        self.decided(facts.payload_bytes, share)
    }

    fn decided(&mut self, bin: u64, share: LocalShare) -> LocalShare {
        let bin = self.bins.entry(bin).or_default();
        (bin.current, bin.unasked) = (Some(share), 0);
        share
    }

    fn facts(&mut self, now_us: u64, payload_bytes: u64) -> ShareFacts {
        let payload_bytes = self.bin(payload_bytes);
        let bin = self.bins.entry(payload_bytes).or_default();
        // What has not run for an hour may have become another.
        bin.seen.retain(|_, seen| now_us.saturating_sub(seen.last_us) < MINUTES * MINUTE_US);
        let cell = |(share, seen): (&LocalShare, &Seen)| Cell {
            payload_bytes,
            local_permille: *share,
            calls: seen.recent_us.len() as u64,
            latency_us: seen.median_us(),
            near_bytes: seen.near_bytes,
        };
        ShareFacts {
            payload_bytes,
            current_permille: bin.current.unwrap_or(ALL),
            tolerance_permille: self.declared.tolerance_permille,
            arrivals_per_hour: bin.arrivals.per_hour(now_us),
            profiled: self.profiled.clone(),
            observed: bin.seen.iter().map(cell).collect(),
        }
    }

    /// Another version is called: what the last one has shown does not count.
    pub fn forget(&mut self) {
        self.bins.clear();
    }
}

impl Function {
    /// Shares of near memory are decided from now on, by this profile and by what calls show.
    pub fn with_shares(mut self, profiled: Vec<Cell>) -> Function {
        self.shares = Some(Box::new(Shares::new(profiled)));
        self
    }

    /// Shares are decided from now on, or not any more, by what the owner has declared if it has declared anything.
    pub fn decide_shares(&mut self, are_decided: bool, profiled: Vec<Cell>, declared: Declared) {
        let shares = Shares { declared, ..Shares::new(profiled) };
        self.shares = are_decided.then(|| Box::new(shares));
    }

    /// Whether shares are decided.
    pub fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// A call has come with arguments of this size.
    pub fn called_with(&mut self, now_us: u64, payload_bytes: u64) {
        if let Some(shares) = &mut self.shares {
            shares.called(now_us, payload_bytes);
        }
    }

    /// A call with arguments of this size has run for so long in an instance with this share of near memory, and
    /// with so many near bytes.
    pub fn ran(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        share: LocalShare,
        run_us: u64,
        near_bytes: u64,
    ) {
        if let Some(shares) = &mut self.shares {
            shares.ran(now_us, payload_bytes, share, run_us, near_bytes);
        }
    }

    /// Decides the share of near memory of an instance that starts for a call with arguments of this size; `None`
    /// if shares are not decided.
    pub fn share(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        advice: &impl Advice,
    ) -> Option<LocalShare> {
        let shares = self.shares.as_mut()?;
        Some(shares.decide(now_us, payload_bytes, &self.about, advice))
    }

    /// The share that an instance gets before its next call, if it can have a better one than it has.
    pub fn share_change(
        &mut self,
        now_us: u64,
        instance: Sharing,
        advice: &impl Advice,
    ) -> Option<LocalShare> {
        let Sharing { payload_bytes, share, can_shrink } = instance;
        let better = self.share_again(now_us, payload_bytes, advice)?;
        (better > share || can_shrink && better < share).then_some(better)
    }

    /// The share that an instance that started for arguments of this size should have from its next call on; `None` if
    /// shares are not decided.
    pub fn share_again(
        &mut self,
        now_us: u64,
        payload_bytes: u64,
        advice: &impl Advice,
    ) -> Option<LocalShare> {
        let shares = self.shares.as_mut()?;
        Some(shares.again(now_us, payload_bytes, &self.about, advice))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use farfork_policy::Question;

    use super::*;

    fn share(permille: u16) -> LocalShare {
        LocalShare::from_permille(permille).unwrap()
    }

    fn cell(payload_bytes: u64) -> Cell {
        Cell { payload_bytes, local_permille: ALL, calls: 9, latency_us: 5, near_bytes: 7 }
    }

    /// Keeps the facts that it was asked with, and chooses 900.
    #[derive(Default)]
    struct Asked(RefCell<Vec<serde_json::Value>>);

    impl Advice for Asked {
        fn decide_if<F: Question>(
            &self,
            _: &dyn Display,
            facts: &F,
            _: impl FnOnce(&F::Choice) -> bool,
        ) -> F::Choice {
            self.0.borrow_mut().push(serde_json::to_value(facts).unwrap());
            serde_json::from_value(900.into()).unwrap()
        }
    }

    fn asked(shares: &mut Shares, now_us: u64, payload_bytes: u64) -> ShareFacts {
        let asked = Asked::default();
        assert_eq!(shares.decide(now_us, payload_bytes, &"f", &asked), share(900));
        serde_json::from_value(asked.0.into_inner().pop().unwrap()).unwrap()
    }

    #[test]
    fn calls_count_in_the_bin_of_their_arguments() {
        let mut shares = Shares::new(vec![cell(10), cell(30)]);
        for payload_bytes in [0, 19, 20, 21, 99] {
            shares.called(5, payload_bytes);
        }
        shares.ran(5, 19, share(900), 8, 100);
        let small = asked(&mut shares, 6, 11);
        assert_eq!((small.payload_bytes, small.current_permille), (10, ALL));
        // In less than a minute.
        assert_eq!((small.arrivals_per_hour, small.profiled.len()), (2 * 60, 2));
        let seen = Cell {
            local_permille: share(900),
            calls: 1,
            latency_us: 8,
            near_bytes: 100,
            ..cell(10)
        };
        assert_eq!(small.observed, [seen]);
        let large = asked(&mut shares, 6, 25);
        assert_eq!((large.payload_bytes, large.arrivals_per_hour), (30, 3 * 60));
        assert!(large.observed.is_empty());
        assert_eq!(asked(&mut shares, 6, 25).current_permille, share(900));
        let mut without = Shares::default();
        without.called(0, 1000);
        assert_eq!(asked(&mut without, 0, 1024).arrivals_per_hour, 60);
    }

    #[test]
    fn a_share_is_asked_for_again_after_a_few_calls() {
        let mut shares = Shares::new(vec![cell(0)]);
        let asked = Asked::default();
        let again = |shares: &mut Shares| shares.again(7, 0, &"f", &asked);
        assert_eq!([(); 3].map(|()| again(&mut shares)), [share(900); 3]);
        assert_eq!(asked.0.borrow().len(), 1, "nothing has run");
        for calls in 1..=2 * AGAIN {
            shares.ran(7, 0, share(900), 8, 100);
            again(&mut shares);
            assert_eq!(asked.0.borrow().len() as u64, 1 + calls / AGAIN);
        }
        assert_eq!(shares.decide(7, 0, &"f", &asked), share(900));
        assert_eq!(asked.0.borrow().len(), 4, "a start asks in any case");
    }

    #[test]
    fn a_share_shrinks_only_where_it_can() {
        let function = || {
            let objective = farfork_policy::tiering::Objective::default();
            Function::new("f".to_owned(), 256, objective).with_shares(Vec::new())
        };
        let change = |permille, can_shrink| {
            let of = Sharing { payload_bytes: 5, share: share(permille), can_shrink };
            function().share_change(7, of, &Asked::default())
        };
        for (can_shrink, lowered) in [(false, None), (true, Some(share(900)))] {
            let changes = [899, 900, 901].map(|permille| change(permille, can_shrink));
            assert_eq!(changes, [Some(share(900)), None, lowered]);
        }
        let of = Sharing { payload_bytes: 5, share: share(1), can_shrink: true };
        let mut without = function();
        without.decide_shares(false, Vec::new(), Declared::default());
        assert_eq!(without.share_change(7, of, &Asked::default()), None);
    }

    #[test]
    fn an_hour_of_calls_counts_and_recent_durations_do() {
        let mut shares = Shares::new(vec![cell(0)]);
        // Two a second, for 90 minutes.
        let last_us = 90 * MINUTE_US;
        for at_us in (0..last_us).step_by(500_000) {
            shares.called(at_us, 0);
        }
        for run_us in 0..200 {
            shares.ran(last_us, 0, ALL, run_us, run_us);
        }
        let facts = asked(&mut shares, last_us, 0);
        assert_eq!(facts.arrivals_per_hour, 7200);
        assert_eq!(
            (facts.observed[0].calls, facts.observed[0].latency_us, facts.observed[0].near_bytes),
            (64, 168, 199)
        );
        let later = asked(&mut shares, last_us + 61 * MINUTE_US, 0);
        assert_eq!((later.arrivals_per_hour, later.observed.len()), (0, 0));
    }
}
