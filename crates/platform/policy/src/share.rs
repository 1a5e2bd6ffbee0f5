//! How much of an instance's memory is near, by function and payload.
//!
//! Far memory makes calls slower, each function and each payload differently ("Towards Elastic Memory
//! Allocation of Serverless Functions in Disaggregated Memory Systems", §3). [`Fixed`] gives all the same share, [`Dynamic`] the smallest
//! share that a profile shows to be within a tolerance (§4.2), and
//! [`Adaptive`](crate::adaptive::Adaptive) learns from calls.
//!
//! Invariants: shares are of one instance. A function without the figures that a policy needs has
//! all of its memory near.

use farfork_types::LocalShare;
use serde::{Deserialize, Serialize};

use crate::{Decision, Facts, Policy};

/// Latency and memory of a function, with arguments of one size and one share of near memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Bytes of the arguments: its bin.
    pub payload_bytes: u64,
    /// The share of near memory.
    pub local_permille: LocalShare,
    /// Number of calls.
    pub calls: u64,
    /// The median of their latency, in microseconds.
    pub latency_us: u64,
    /// Near memory of an instance, in bytes.
    pub near_bytes: u64,
}

/// Facts about calls of a function with arguments of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareFacts {
    /// Bytes of the arguments.
    pub payload_bytes: u64,
    /// The share of the last instances.
    pub current_permille: LocalShare,
    /// By how much latency may exceed that with all memory near, in thousandths, if the owner has
    /// declared it. It overrides the settings.
    pub tolerance_permille: Option<u64>,
    /// Calls with arguments of this size in an hour, by those of the last hour, or of less time if the
    /// function is not known for as long.
    pub arrivals_per_hour: u64,
    /// What the function's profile says, if there is one: bins of payloads, and shares in each.
    pub profiled: Vec<Cell>,
    /// What recent calls have shown, in the same form.
    pub observed: Vec<Cell>,
}

impl Facts for ShareFacts {
    /// The share of near memory of the next instances.
    type Choice = LocalShare;
    const QUESTION: &'static str = "share";
}

/// All memory is near.
pub const ALL: LocalShare = match LocalShare::from_permille(LocalShare::ALL_PERMILLE) {
    Ok(share) => share,
    Err(_) => panic!("1000 thousandths are a share"),
};

/// The cells of a payload's bin, by share. The bin is the one with the nearest payload, and of two as
/// near the larger one.
pub(crate) fn bin(cells: &[Cell], payload_bytes: u64) -> Vec<Cell> {
    let far = |cell: &Cell| (cell.payload_bytes.abs_diff(payload_bytes), !cell.payload_bytes);
    let Some(nearest) = cells.iter().min_by_key(|cell| far(cell)) else { return Vec::new() };
    let is_in = |cell: &&Cell| cell.payload_bytes == nearest.payload_bytes;
    let mut cells: Vec<Cell> = cells.iter().filter(is_in).copied().collect();
    cells.sort_by_key(|cell| cell.local_permille.permille());
    cells
}

/// The cell of all memory near.
pub(crate) fn whole(cells: &[Cell]) -> Option<&Cell> {
    cells.iter().find(|cell| cell.local_permille == ALL)
}

/// The latency that a tolerance allows, in microseconds.
pub(crate) fn limit_us(whole: &Cell, tolerance_permille: u64) -> u64 {
    let excess = u128::from(whole.latency_us) * u128::from(tolerance_permille) / 1000;
    whole.latency_us.saturating_add(u64::try_from(excess).unwrap_or(u64::MAX))
}

/// The same share for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fixed {
    /// The share.
    pub local_permille: LocalShare,
}

impl Default for Fixed {
    fn default() -> Fixed {
        Fixed { local_permille: ALL }
    }
}

impl Policy<ShareFacts> for Fixed {
    fn decide(&self, _facts: &ShareFacts) -> Decision<LocalShare> {
        Decision::new(self.local_permille, "fixed by the settings")
    }
}

/// The smallest share with which the profile's latency is within a tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dynamic {
    /// By how much latency may exceed that with all memory near, in thousandths.
    pub tolerance_permille: u64,
}

impl Default for Dynamic {
    fn default() -> Dynamic {
        Dynamic { tolerance_permille: 50 }
    }
}

impl Policy<ShareFacts> for Dynamic {
    fn decide(&self, facts: &ShareFacts) -> Decision<LocalShare> {
        let tolerance = facts.tolerance_permille.unwrap_or(self.tolerance_permille);
        let cells = bin(&facts.profiled, facts.payload_bytes);
        let Some(whole) = whole(&cells) else {
            let why = match cells.first() {
                None => "it has no profile".to_owned(),
                Some(cell) => format!(
                    "its profile lacks the share 1000 for {} bytes of arguments",
                    cell.payload_bytes
                ),
            };
            return Decision::new(ALL, why);
        };
        let limit_us = limit_us(whole, tolerance);
        // The whole itself is within its limit.
        let least = cells.iter().find(|cell| cell.latency_us <= limit_us).unwrap_or(whole);
        let Cell { payload_bytes, latency_us, .. } = least;
        let why = format!(
            "with {payload_bytes} bytes of arguments a call takes {latency_us} us, and may take {limit_us} us"
        );
        Decision::new(least.local_permille, why)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn share(permille: u64) -> LocalShare {
        LocalShare::from_permille(u16::try_from(permille).unwrap()).unwrap()
    }

    pub(crate) fn facts() -> ShareFacts {
        ShareFacts {
            payload_bytes: 100,
            current_permille: share(1000),
            tolerance_permille: None,
            arrivals_per_hour: 60,
            profiled: Vec::new(),
            observed: Vec::new(),
        }
    }

    fn cell(payload_bytes: u64, permille: u64, latency_us: u64) -> Cell {
        let local_permille = share(permille);
        Cell { payload_bytes, local_permille, calls: 30, latency_us, near_bytes: permille << 10 }
    }

    fn chosen(tolerance: u64, facts: &ShareFacts) -> u64 {
        let policy = Dynamic { tolerance_permille: tolerance };
        u64::from(policy.decide(facts).choice.permille())
    }

    #[test]
    fn the_smallest_share_within_the_tolerance_is_chosen() {
        let latencies = [(0, 1390), (500, 1200), (800, 1050), (900, 1010), (1000, 1000)];
        let profiled = latencies.map(|(share, us)| cell(100, share, us)).to_vec();
        let facts = ShareFacts { profiled, ..facts() };
        let shares = [0, 9, 10, 50, 100, 200, 1000].map(|tolerance| chosen(tolerance, &facts));
        assert_eq!(shares, [1000, 1000, 900, 800, 800, 500, 0]);
        let declared = ShareFacts { tolerance_permille: Some(200), ..facts };
        assert_eq!(chosen(0, &declared), 500, "the owner's tolerance overrides the settings'");
    }

    #[test]
    fn payloads_have_the_share_of_the_nearest_bin() {
        let slow_if_small = [cell(10, 0, 3000), cell(10, 1000, 1000)];
        let profiled = [&slow_if_small[..], &[cell(30, 0, 1010), cell(30, 1000, 1000)]].concat();
        let of = |payload_bytes| {
            chosen(50, &ShareFacts { payload_bytes, profiled: profiled.clone(), ..facts() })
        };
        assert_eq!([0, 10, 19, 20, 30, u64::MAX].map(of), [1000, 1000, 1000, 0, 0, 0]);
    }

    #[test]
    fn without_a_profile_all_is_near() {
        let decision = Dynamic::default().decide(&facts());
        assert_eq!((decision.choice, &*decision.why), (ALL, "it has no profile"));
        let partial = ShareFacts { profiled: vec![cell(7, 300, 5)], ..facts() };
        let decision = Dynamic::default().decide(&partial);
        assert_eq!(decision.choice, ALL);
        assert!(decision.why.contains("lacks the share 1000 for 7 bytes"), "{}", decision.why);
    }

    #[test]
    fn shares_out_of_range_are_refused() {
        let read = serde_json::from_str::<Fixed>;
        assert_eq!(read(r#"{"local_permille": 800}"#).unwrap().local_permille, share(800));
        let message = read(r#"{"local_permille": 1001}"#).unwrap_err().to_string();
        assert!(message.contains("from 0 to 1000"), "{message}");
    }
}
