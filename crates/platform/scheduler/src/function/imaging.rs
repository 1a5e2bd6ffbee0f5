//! A function's image: when it is made, of what, and when it is done without.
//!
//! ```text
//!  none ── an instance is due, the pool has room ──► in the making ── made ──► there
//!    ▲ └─ not before so many calls were answered          │ failed             │ its clones do not start,
//!    └────────────────────────────────────────────────────┴────────────────────┘ or its space is needed
//! ```

use std::collections::VecDeque;
use std::fmt::Display;

use farfork_policy::Memory;
use farfork_policy::checkpoint::{CheckpointFacts, Timing};

use crate::advice::Advice;

/// Calls of an instance whose durations are remembered.
const RECENT: usize = 32;
/// After this many failed starts of clones in a row an image is given up.
const MOST_FAILED_CLONES: u32 = 2;
/// So many images are not made of a function, and then no other is tried.
const MOST_FAILED_IMAGES: u32 = 4;

/// The calls that one instance has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Their number.
    pub calls: u64,
    /// Durations of the last of them, in microseconds.
    recent_us: VecDeque<u64>,
}

impl History {
    /// Adds a call that took so long inside the instance.
    pub fn answered(&mut self, run_us: u64) {
        self.calls += 1;
        self.recent_us.push_back(run_us);
        if self.recent_us.len() > RECENT {
            self.recent_us.pop_front();
        }
    }
}

/// The function's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageState {
    /// There is none, and none is tried before this many calls were answered.
    None {
        /// How many.
        next_after: u64,
    },
    /// An instance is being checkpointed.
    InTheMaking,
    /// There is one.
    There,
}

/// Whether an instance is checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It is not.
    No,
    /// It is.
    Now,
    /// It would be, if the pool had room for so many bytes.
    NoRoom(u64),
}

/// Why an image was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMade {
    /// The pool had no room.
    NoRoom {
        /// Bytes of the allocation that failed. Earlier ones may have succeeded.
        asked_bytes: u64,
        /// Bytes that were free then.
        free_bytes: u64,
    },
    /// Another reason.
    Other,
}

/// What follows from an image that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterNotMade {
    /// Bytes that the pool lacked, if that was the reason.
    pub wanted_bytes: Option<u64>,
    /// Whether no image is tried any more.
    pub is_last: bool,
}

/// Why an instance did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// It did not run.
    Start,
    /// Its node does not answer.
    NodeLost,
    /// The pool's images cannot be used.
    Images,
    /// Another reason.
    Other,
}

/// The state of a function's image.
#[derive(Clone, Debug)]
pub struct Imaging {
    state: ImageState,
    answered: u64,
    /// Failed starts of clones since the last success.
    failed_clones: u32,
    /// How many images of it could not be made since one was.
    failed_images: u32,
}

impl Default for Imaging {
    fn default() -> Imaging {
        let state = ImageState::None { next_after: 0 };
        Imaging { state, answered: 0, failed_clones: 0, failed_images: 0 }
    }
}

impl Imaging {
    /// The image.
    pub fn state(&self) -> ImageState {
        self.state
    }

    /// Whether instances are clones of it.
    pub fn has_image(&self) -> bool {
        self.state == ImageState::There
    }

    /// A call was answered.
    pub fn answered(&mut self) {
        self.answered += 1;
    }

    /// Decides whether an instance that has just answered is checkpointed, into an image of so many bytes.
    pub fn is_due(
        &self,
        history: &History,
        pool: Memory,
        image_bytes: u64,
        about: &dyn Display,
        advice: &impl Advice,
    ) -> Due {
        let ImageState::None { next_after } = self.state else { return Due::No };
        if self.answered < next_after {
            return Due::No;
        }
        let recent_us = history.recent_us.iter().copied().collect();
        let facts = CheckpointFacts { calls: history.calls, recent_us, pool, image_bytes };
        match advice.decide(about, &facts) {
            Timing::Now => Due::Now,
            Timing::NotYet => Due::No,
            Timing::NoRoom => Due::NoRoom(image_bytes),
        }
    }

    /// An instance is being checkpointed.
    pub fn begin(&mut self) {
        self.state = ImageState::InTheMaking;
    }

    /// There is an image, made now or left by an earlier run.
    pub fn there(&mut self) {
        self.state = ImageState::There;
    }

    /// An image was made.
    pub fn made(&mut self) {
        self.failed_images = 0;
        self.there();
    }

    /// No image was made, with so many bytes free in the pool now. It is tried again after more calls: each
    /// time, instances stand still, and calls wait. What has failed often is left.
    pub fn not_made(&mut self, why: NotMade, free_now_bytes: u64) -> AfterNotMade {
        let (next_after, after) = match why {
            NotMade::NoRoom { asked_bytes, free_bytes } => {
                // What it was given before it asked for more is free again.
                let needed = asked_bytes + free_now_bytes.saturating_sub(free_bytes);
                // Others may make room at once, or it has room meanwhile.
                let times = if free_now_bytes < needed { 1 } else { 2 };
                let after = AfterNotMade { wanted_bytes: Some(needed), is_last: false };
                (self.answered.saturating_mul(times), after)
            }
            NotMade::Other => {
                self.failed_images += 1;
                let is_last = self.failed_images >= MOST_FAILED_IMAGES;
                let next = if is_last { u64::MAX } else { self.answered.saturating_mul(2) };
                (next, AfterNotMade { wanted_bytes: None, is_last })
            }
        };
        self.state = ImageState::None { next_after };
        after
    }

    /// Calls are made without the image, until there is another.
    pub fn do_without(&mut self) {
        self.failed_clones = 0;
        self.state = ImageState::None { next_after: self.answered.saturating_mul(2) };
    }

    /// An instance has started.
    pub fn started(&mut self) {
        self.failed_clones = 0;
    }

    /// An instance did not start. Returns whether the image is to be given up: files that it maps have
    /// changed, perhaps.
    pub fn not_started(&mut self, why: NotStarted, is_clone: bool) -> bool {
        // A lost node says nothing about the image.
        let is_images_fault = is_clone && why == NotStarted::Start;
        self.failed_clones += u32::from(is_images_fault);
        let is_lost = why == NotStarted::Images;
        self.has_image() && (is_lost || self.failed_clones >= MOST_FAILED_CLONES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::ByDefault;

    const FREE: Memory = Memory { used_bytes: 0, budget_bytes: 100 };

    fn after(calls: u64) -> (Imaging, History) {
        let (mut imaging, mut history) = (Imaging::default(), History::default());
        for call in 0..calls {
            imaging.answered();
            history.answered(call);
        }
        (imaging, history)
    }

    fn due((imaging, history): &(Imaging, History), pool: Memory) -> Due {
        imaging.is_due(history, pool, 60, &"f", &ByDefault::new())
    }

    #[test]
    fn an_instance_is_due_once_and_again_after_twice_as_many_calls() {
        assert_eq!(due(&after(15), FREE), Due::No);
        let mut one = after(16);
        assert_eq!(due(&one, FREE), Due::Now);
        assert_eq!(due(&one, Memory { used_bytes: 41, ..FREE }), Due::NoRoom(60));
        one.0.begin();
        assert_eq!(due(&one, FREE), Due::No);
        one.0.made();
        assert!(one.0.has_image() && due(&one, FREE) == Due::No);
        one.0.do_without();
        assert_eq!(one.0.state(), ImageState::None { next_after: 32 });
        assert_eq!(due(&one, FREE), Due::No);
        (0..16).for_each(|_| one.0.answered());
        assert_eq!(due(&one, FREE), Due::Now);
    }

    #[test]
    fn what_has_failed_four_times_is_left() {
        let (mut imaging, _) = after(16);
        let seen: Vec<AfterNotMade> = (0..4).map(|_| imaging.not_made(NotMade::Other, 0)).collect();
        assert_eq!(
            seen.iter().map(|one| one.is_last).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        assert_eq!(imaging.state(), ImageState::None { next_after: u64::MAX });
        imaging.made();
        assert!(!imaging.not_made(NotMade::Other, 0).is_last, "one was made between");
    }

    #[test]
    fn without_room_it_waits_for_room_or_for_calls() {
        let (mut imaging, _) = after(16);
        let no_room = NotMade::NoRoom { asked_bytes: 10, free_bytes: 4 };
        // It had 20 when it asked for more.
        assert_eq!(imaging.not_made(no_room, 24).wanted_bytes, Some(30));
        assert_eq!(imaging.state(), ImageState::None { next_after: 16 });
        assert_eq!(
            imaging.not_made(NotMade::NoRoom { asked_bytes: 10, free_bytes: 4 }, 4).wanted_bytes,
            Some(10)
        );
        imaging.not_made(NotMade::NoRoom { asked_bytes: 1, free_bytes: 30 }, 30);
        assert_eq!(
            imaging.state(),
            ImageState::None { next_after: 32 },
            "others have left meanwhile"
        );
    }

    #[test]
    fn an_image_is_given_up_after_two_clones_that_did_not_start() {
        let (mut imaging, _) = after(16);
        assert!(!imaging.not_started(NotStarted::Images, false), "there is none");
        imaging.there();
        assert!(!imaging.not_started(NotStarted::Start, true));
        imaging.started();
        assert!(!imaging.not_started(NotStarted::NodeLost, true));
        assert!(!imaging.not_started(NotStarted::Start, true));
        assert!(imaging.not_started(NotStarted::Start, true));
        imaging.do_without();
        imaging.there();
        assert!(imaging.not_started(NotStarted::Images, true));
    }
}
