//! Bandwidth of the pool and of far memory, shared by all transfers.
//!
//! ```text
//!  a start, checkpoint, promotion or run = what it moves over a link + the rest
//!     alone: as long as without a limit, but no shorter than the link takes for the bytes
//!     with others: the link's part takes as many times longer as transfers share it (processor sharing, one server)
//! ```
//! A clone's start moves the pages that it copies, a checkpoint the image, a promotion what was mapped; a call reads once what
//! its instance maps from the pool, or has far. Where pages are read more often, caches are taken to have them.

use std::collections::{BTreeMap, BTreeSet};

use farfork_platform::simulated::processors::Processors;

use super::agenda::{Event, Link};

/// What follows a transfer.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// Something happens after the rest.
    Event(Event),
    /// The instance's start goes on.
    Start,
    /// The instance's call goes on, without others on the link. At its time limit it leaves the link.
    Run {
        /// When that is.
        until_us: u64,
    },
}

/// A transfer that has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Its instance, if it is that of a start or a run.
    pub instance: u64,
    /// How long the rest takes.
    pub rest_us: u64,
    /// What follows.
    pub then: Then,
}

/// A transfer that has left its link.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// The transfer.
    pub transfer: Transfer,
    /// Whether it has not ended, and left at a time limit.
    pub is_late: bool,
}

/// A link with limited bandwidth.
#[derive(Debug)]
struct Limited {
    /// Bytes per second.
    rate: u64,
    /// What is on it.
    shared: Processors,
    /// Time limits of what is on it, and numbers of the transfers.
    until: BTreeSet<(u64, u64)>,
}

/// Both links, and what is on them.
#[derive(Debug, Default)]
pub struct Links {
    limits: BTreeMap<Link, Limited>,
    transfers: BTreeMap<u64, Transfer>,
    next: u64,
}

impl Links {
    /// Links with so many bytes per second, if they are limited.
    pub fn new(pool: Option<u64>, far: Option<u64>) -> Links {
        let limits = [(Link::Pool, pool), (Link::Far, far)];
        let limit = |(link, rate): (Link, Option<u64>)| {
            let (rate, shared) = (rate?.max(1), Processors::new(1));
            Some((link, Limited { rate, shared, until: BTreeSet::new() }))
        };
        Links { limits: limits.into_iter().filter_map(limit).collect(), ..Links::default() }
    }

    /// Whether any of them is limited.
    pub fn are_limited(&self) -> bool {
        !self.limits.is_empty()
    }

    /// How long a link takes for so many bytes alone, in microseconds; `None` if that is not limited, or nothing.
    fn alone_us(&self, link: Link, bytes: u64) -> Option<u64> {
        let rate = self.limits.get(&link)?.rate;
        let us = (u128::from(bytes) * 1_000_000).div_ceil(u128::from(rate));
        u64::try_from(us).ok().filter(|us| *us > 0)
    }

    /// Begins a transfer of so many bytes, of what takes `us` alone in all. Returns false if nothing limits it.
    pub fn begin(
        &mut self,
        (link, bytes): (Link, u64),
        now_us: u64,
        us: u64,
        (instance, then): (u64, Then),
    ) -> bool {
        let Some(alone_us) = self.alone_us(link, bytes) else { return false };
        let number = self.next;
        self.next += 1;
        let rest_us = us.saturating_sub(alone_us);
        self.transfers.insert(number, Transfer { instance, rest_us, then });
        if let Some(limited) = self.limits.get_mut(&link) {
            limited.shared.begin((now_us, now_us), number, alone_us);
            limited.until.extend(then.until_us().map(|until_us| (until_us, number)));
        }
        true
    }

    /// When the next transfer ends or leaves if nothing changes, and the number of the change after which that is so.
    pub fn due(&self, link: Link) -> Option<(u64, u64)> {
        let limited = self.limits.get(&link)?;
        let (at_us, change) = limited.shared.due(u64::MAX)?;
        let first = limited.until.first().map_or(u64::MAX, |(until_us, _)| *until_us);
        Some((at_us.min(first), change))
    }

    /// The transfers that are over, or at their time limits; `None` if something has changed since that change.
    pub fn ended(&mut self, link: Link, change: u64, now_us: u64) -> Option<Vec<Left>> {
        let Limited { shared, until, .. } = self.limits.get_mut(&link)?;
        let ended = shared.is_current(change).then(|| shared.ended(now_us, u64::MAX))?;
        let mut left = Vec::new();
        for ended in ended {
            let Some(transfer) = self.transfers.remove(&ended.instance) else { continue };
            let until_us = transfer.then.until_us();
            until_us.map(|until_us| until.remove(&(until_us, ended.instance)));
            left.push(Left { transfer, is_late: false });
        }
        while let Some((until_us, number)) = until.first().copied().filter(|one| one.0 <= now_us) {
            until.remove(&(until_us, number));
            shared.leave(now_us, number);
            let transfer = self.transfers.remove(&number);
            left.extend(transfer.map(|transfer| Left { transfer, is_late: true }));
        }
        Some(left)
    }
}

impl Then {
    fn until_us(self) -> Option<u64> {
        match self {
            Then::Event(_) | Then::Start => None,
            Then::Run { until_us } => Some(until_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_its_link_at_its_time_limit() {
        let mut links = Links::new(Some(1_000_000), None);
        let run = |until_us| Then::Run { until_us };
        // Of 1000 us each. The second has had 400 of them at its limit, and the first 500.
        assert!(links.begin((Link::Pool, 1000), 0, 1500, (1, run(9000))));
        assert!(links.begin((Link::Pool, 1000), 100, 1000, (2, run(900))));
        let (at_us, change) = links.due(Link::Pool).unwrap();
        let left = links.ended(Link::Pool, change, at_us).unwrap();
        let seen = |left: &[Left]| -> Vec<(u64, u64, bool)> {
            left.iter()
                .map(|one| (one.transfer.instance, one.transfer.rest_us, one.is_late))
                .collect()
        };
        assert_eq!((at_us, seen(&left)), (900, vec![(2, 0, true)]));
        assert!(links.ended(Link::Pool, change, at_us).is_none(), "that has changed it");
        let (at_us, change) = links.due(Link::Pool).unwrap();
        let left = links.ended(Link::Pool, change, at_us).unwrap();
        assert_eq!((at_us, seen(&left)), (1400, vec![(1, 500, false)]));
        assert!(links.due(Link::Pool).is_none() && links.transfers.is_empty());
        assert!(links.limits[&Link::Pool].until.is_empty());
    }
}
