//! The ghosts of one kind on one node: empty ones with a memory limit, or those with one image.

use farfork_policy::Memory;
use farfork_policy::admission::Idle;
use farfork_policy::ghosts::{AttachedFacts, EmptyFacts};
use farfork_policy::occupant::OccupantId;
use farfork_types::Tiering;

use crate::arrivals::Arrivals;
use crate::claim::ImageSpec;

/// Memory of an empty ghost, including the kernel's, until one was measured.
const GUESSED_EMPTY_BYTES: u64 = 600 << 10;
/// What an empty ghost saves, making a container, in microseconds.
const EMPTY_SAVES_US: u64 = 30_000;
/// Time of waking an attached ghost, until one was measured.
const GUESSED_WAKE_US: u64 = 100;
/// Memory of an attached ghost until one was measured: that of a small function.
const GUESSED_ATTACHED_BYTES: u64 = 3 << 20;
/// The weight of earlier measurements against 1 for the last one.
const INERTIA: u64 = 3;

/// Memory of a ghost of this image, until one was measured.
pub fn guessed_bytes(image: &ImageSpec) -> u64 {
    match image.tiering {
        // All of the image's memory is copied.
        Tiering::Copy => image.memory_mb << 20,
        _ => GUESSED_ATTACHED_BYTES,
    }
}

/// What ghosts of one kind have in common, and those that wait.
#[derive(Clone, Debug)]
pub struct Stock {
    /// The image, if they have one.
    pub image: Option<ImageSpec>,
    /// Ghosts that wait; the last one is taken first.
    pub waiting: Vec<u64>,
    /// Number of ghosts being made.
    pub making: u64,
    /// When ghosts were taken.
    pub arrivals: Arrivals,
    /// Memory of one ghost.
    pub bytes: u64,
    /// Duration of starts in empty ghosts, and in attached ones.
    empty_us: Option<u64>,
    attached_us: Option<u64>,
}

impl Stock {
    /// No ghosts yet, with this image or empty.
    pub fn new(image: Option<&ImageSpec>) -> Stock {
        Stock {
            image: image.copied(),
            waiting: Vec::new(),
            making: 0,
            arrivals: Arrivals::default(),
            bytes: image.map_or(GUESSED_EMPTY_BYTES, guessed_bytes),
            empty_us: None,
            attached_us: None,
        }
    }

    /// Microseconds that a start in one of them saves, if known.
    fn saves_us(&self) -> Option<u64> {
        if self.image.is_none() {
            return Some(EMPTY_SAVES_US);
        }
        let attached_us = self.attached_us.unwrap_or(GUESSED_WAKE_US);
        self.empty_us.map(|empty_us| empty_us.saturating_sub(attached_us))
    }

    /// Records the duration of a start, in an attached or an empty ghost.
    pub fn started(&mut self, took_us: u64, was_attached: bool) {
        let seen = if was_attached { &mut self.attached_us } else { &mut self.empty_us };
        *seen = Some(seen.map_or(took_us, |before| (before * INERTIA + took_us) / (INERTIA + 1)));
    }

    /// The facts to decide how many empty ghosts should wait.
    pub fn empty_facts(&self, memory: Memory, now_us: u64) -> EmptyFacts {
        EmptyFacts { burst: self.arrivals.burst(now_us), ghost_bytes: self.bytes, memory }
    }

    /// The facts to decide how many ghosts with the image should wait; `None` while their saving is
    /// not known, and none should.
    pub fn attached_facts(
        &self,
        memory: Memory,
        pool: Memory,
        now_us: u64,
    ) -> Option<AttachedFacts> {
        Some(AttachedFacts {
            saved_us: self.saves_us()?,
            burst: self.arrivals.burst(now_us),
            starts_per_hour: self.arrivals.in_last_hour(now_us),
            ghost_bytes: self.bytes,
            memory,
            pool,
        })
    }

    /// Waiting ghosts as candidates for eviction. They share the arrivals of the last hour, and
    /// each counts for one use at least if there was any.
    pub fn idle(&self, now_us: u64) -> impl Iterator<Item = Idle> {
        let count = self.waiting.len().max(1) as u64;
        let uses_per_hour = self.arrivals.in_last_hour(now_us).div_ceil(count);
        let (bytes, saves_us) = (self.bytes, self.saves_us().unwrap_or(0));
        let idle =
            move |id: &u64| Idle { id: OccupantId::ghost(*id), bytes, saves_us, uses_per_hour };
        self.waiting.iter().map(idle)
    }
}
