//! What a function takes with a share of its memory near.
//!
//! ```text
//!  cells of a profile, by payload (the nearest bin) and share
//!     between two shares: in proportion               latency, near, pool and far memory
//!     below the least share of a bin: its least cell
//! ```
//! An instance holds what its function needs for the payload that needs most. Where it has no image, all that is
//! not near is far.

use std::collections::BTreeMap;

use farfork_policy::share::{self, ALL};
use farfork_types::{LocalShare, LocalShareError};

/// Bytes that one instance holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Near memory.
    pub near_bytes: u64,
    /// Pages of the image that it maps from the pool.
    pub pool_bytes: u64,
    /// Memory further away.
    pub far_bytes: u64,
}

/// A cell of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the arguments.
    pub payload_bytes: u64,
    /// The share of near memory, in thousandths.
    pub local_permille: u64,
    /// Number of calls.
    pub calls: u64,
    /// The median of their latency.
    pub latency_us: u64,
    /// What an instance holds.
    pub held: Held,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    calls: u64,
    latency_us: u64,
    held: Held,
}

/// Measurements by payload and share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    bins: BTreeMap<u64, BTreeMap<LocalShare, Point>>,
}

impl Shares {
    /// The cells of a profile. Of two with one payload and share the last one counts.
    ///
    /// # Errors
    /// A share is above 1000 thousandths.
    pub fn new(cells: impl IntoIterator<Item = Measured>) -> Result<Shares, LocalShareError> {
        let mut shares = Shares::default();
        for Measured { payload_bytes, local_permille, calls, latency_us, held } in cells {
            let share = u16::try_from(local_permille).map_err(|_| LocalShareError)?;
            let share = LocalShare::from_permille(share)?;
            let point = Point { calls, latency_us, held };
            shares.bins.entry(payload_bytes).or_default().insert(share, point);
        }
        Ok(shares)
    }

    /// Whether these cells can be simulated: with shares, each payload needs all memory near and less; without
    /// them there is no far memory.
    pub fn check(&self, has_shares: bool) -> Result<(), String> {
        let points = || self.bins.values().flat_map(BTreeMap::values);
        if !has_shares {
            let has_far = points().any(|point| point.held.far_bytes > 0);
            let words =
                "its profile has far memory, which needs shares: set 'share' in the policies";
            return if has_far { Err(words.to_owned()) } else { Ok(()) };
        }
        let remedy = "give --profile FILE with cells of local_permille 1000 and of smaller shares for each payload";
        if self.bins.is_empty() {
            return Err(format!("shares are decided, and it has no profile; {remedy}"));
        }
        for (payload_bytes, bin) in &self.bins {
            let lacks = match bin.get(&ALL) {
                None => "no share 1000",
                Some(whole) if whole.latency_us == 0 => "a latency of 0",
                Some(_) if bin.len() < 2 => "no share below 1000",
                Some(_) => continue,
            };
            return Err(format!(
                "for a payload of {payload_bytes} bytes its profile has {lacks}; {remedy}"
            ));
        }
        Ok(())
    }

    /// The same as facts for the policies.
    pub fn facts(&self) -> Vec<share::Cell> {
        let bin = |(payload_bytes, bin): (&u64, &BTreeMap<LocalShare, Point>)| {
            let cell = |(share, point): (&LocalShare, &Point)| share::Cell {
                payload_bytes: *payload_bytes,
                local_permille: *share,
                calls: point.calls,
                latency_us: point.latency_us,
                near_bytes: point.held.near_bytes,
            };
            bin.iter().map(cell).collect::<Vec<_>>()
        };
        self.bins.iter().flat_map(bin).collect()
    }

    /// The nearest bin of a payload, and of two as near the larger one.
    pub fn bin(&self, payload_bytes: u64) -> Option<u64> {
        let far = |bin: &&u64| (bin.abs_diff(payload_bytes), !**bin);
        self.bins.keys().min_by_key(far).copied()
    }

    /// How long a call runs with a share, if it runs for `duration_us` with all memory near.
    pub fn run_us(&self, duration_us: u64, payload_bytes: u64, share: LocalShare) -> u64 {
        let Some(bin) = self.bin(payload_bytes).and_then(|bin| self.bins.get(&bin)) else {
            return duration_us;
        };
        let (Some(whole), Some(here)) = (at(bin, ALL), at(bin, share)) else { return duration_us };
        scaled(duration_us, here.latency_us, whole.latency_us.max(1))
    }

    /// What an instance holds with a share: that of the payload for which most is held.
    pub fn held(&self, is_clone: bool, share: LocalShare) -> Held {
        let most = |bin: &&BTreeMap<LocalShare, Point>| at(bin, ALL).map(|one| one.held.near_bytes);
        self.bins
            .values()
            .max_by_key(most)
            .map_or_else(Held::default, |bin| held(bin, is_clone, share))
    }

    /// The same of the bin of one payload.
    pub fn held_for(&self, payload_bytes: u64, is_clone: bool, share: LocalShare) -> Held {
        let bin = self.bin(payload_bytes).and_then(|bin| self.bins.get(&bin));
        bin.map_or_else(Held::default, |bin| held(bin, is_clone, share))
    }
}

fn held(bin: &BTreeMap<LocalShare, Point>, is_clone: bool, share: LocalShare) -> Held {
    let (Some(whole), Some(here)) = (at(bin, ALL), at(bin, share)) else { return Held::default() };
    if is_clone {
        return here.held;
    }
    let far_bytes = whole.held.near_bytes.saturating_sub(here.held.near_bytes);
    Held { near_bytes: here.held.near_bytes, pool_bytes: 0, far_bytes }
}

/// What a share shows: between two measured ones in proportion.
fn at(bin: &BTreeMap<LocalShare, Point>, share: LocalShare) -> Option<Point> {
    let below = bin.range(..=share).next_back();
    let above = bin.range(share..).next();
    let ((low, below), (high, above)) = below.zip(above).or_else(|| {
        let only = below.or(above)?;
        Some((only, only))
    })?;
    let whole = u64::from(high.permille() - low.permille()).max(1);
    let part = u64::from(share.permille().clamp(low.permille(), high.permille()) - low.permille());
    let between = |of: fn(&Point) -> u64| {
        let (low, high) = (of(below), of(above));
        let change = scaled(low.abs_diff(high), part, whole);
        if high >= low { low + change } else { low - change }
    };
    Some(Point {
        calls: below.calls.min(above.calls),
        latency_us: between(|point| point.latency_us),
        held: Held {
            near_bytes: between(|point| point.held.near_bytes),
            pool_bytes: between(|point| point.held.pool_bytes),
            far_bytes: between(|point| point.held.far_bytes),
        },
    })
}

fn scaled(figure: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(figure) * u128::from(part) / u128::from(whole);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(permille: u16) -> LocalShare {
        LocalShare::from_permille(permille).unwrap()
    }

    fn shares(cells: &[(u64, u64, u64, u64, u64)]) -> Shares {
        let cell = |&(payload_bytes, local_permille, latency_us, near_bytes, pool_bytes)| {
            let held = Held { near_bytes, pool_bytes, far_bytes: 0 };
            Measured { payload_bytes, local_permille, calls: 9, latency_us, held }
        };
        Shares::new(cells.iter().map(cell)).unwrap()
    }

    #[test]
    fn between_two_shares_figures_are_in_proportion() {
        let shares = shares(&[
            (10, 0, 4000, 100, 900),
            (10, 500, 2000, 600, 400),
            (10, 1000, 1000, 1000, 0),
            (30, 200, 1100, 10, 40),
            (30, 1000, 1000, 50, 0),
        ]);
        let run = |payload, permille| shares.run_us(500, payload, share(permille));
        assert_eq!(
            [0, 250, 500, 750, 999, 1000].map(|permille| run(9, permille)),
            [2000, 1500, 1000, 750, 501, 500]
        );
        assert_eq!(run(20, 200), 550, "of two bins as near the larger one");
        assert_eq!(run(30, 0), 550, "below the least share its cell counts");
        let held = |is_clone, permille| shares.held(is_clone, share(permille));
        assert_eq!(held(true, 250), Held { near_bytes: 350, pool_bytes: 650, far_bytes: 0 });
        assert_eq!(held(false, 250), Held { near_bytes: 350, pool_bytes: 0, far_bytes: 650 });
        assert_eq!(held(false, 1000), Held { near_bytes: 1000, ..Held::default() });
        assert_eq!(shares.held_for(30, true, share(600)).near_bytes, 30);
        assert_eq!(shares.facts().len(), 5);
    }

    #[test]
    fn profiles_that_do_not_show_what_shares_change_are_refused() {
        for (cells, words) in [
            (&[][..], "no profile"),
            (&[(0, 500, 1, 1, 1)], "no share 1000"),
            (&[(0, 1000, 1, 1, 1)], "no share below 1000"),
            (&[(0, 1000, 0, 1, 1), (0, 0, 1, 1, 1)], "a latency of 0"),
            (&[(0, 1000, 1, 1, 1), (0, 0, 1, 1, 1), (7, 1000, 1, 1, 1)], "payload of 7 bytes"),
        ] {
            let why = shares(cells).check(true).unwrap_err();
            assert!(why.contains(words) && why.contains("--profile"), "{why}");
            assert_eq!(shares(cells).check(false), Ok(()));
        }
        assert_eq!(shares(&[(0, 1000, 1, 1, 1), (0, 0, 1, 1, 1)]).check(true), Ok(()));
    }
}
