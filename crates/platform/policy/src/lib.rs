//! What the autoscaler decides, as pure functions of what was observed.
//!
//! ```text
//!  facts ──► Policy::decide ──► decision: a choice, and why
//!                                   │
//!                                   └──► journal: one line of JSON each, from which every decision
//!                                        can be made again and compared
//! ```
//! Whoever runs functions, for real or in a simulation, gathers facts, asks, and acts. Invariants:
//! nothing here reads a clock, draws a number at random, keeps state between two questions or does
//! any I/O but that of the journal; equal facts give equal decisions, to the letter. All figures are
//! integers with their unit in the name, shares are in thousandths (`permille`).
//!
//! The questions are those of CXLporter (CXLfork §5): [when to checkpoint](checkpoint), [in which
//! tier memory lives](tiering), [how long an idle instance stays](keep_alive), [how many ghosts
//! wait](ghosts); and those of any platform with limits: [where an instance goes](placement), [what
//! makes room for it](admission), [who pauses](growth) and [who ends when room runs out](relief), [which
//! images go](reclaim).
#![forbid(unsafe_code)]

pub mod admission;
pub mod checkpoint;
pub mod ghosts;
mod greedy;
pub mod growth;
pub mod journal;
pub mod keep_alive;
pub mod memory;
pub mod observed;
pub mod placement;
pub mod reclaim;
pub mod relief;
pub mod settings;
pub mod tiering;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use memory::Memory;
pub use settings::{Policies, Settings};

/// What a question is decided on.
pub trait Facts: Clone + Debug + Serialize + DeserializeOwned {
    /// What is chosen.
    type Choice: Clone + Debug + PartialEq + Serialize + DeserializeOwned;
    /// The question's name in journals.
    const QUESTION: &'static str;
}

/// One way to answer a question.
pub trait Policy<F: Facts>: Debug + Send + Sync {
    /// Decides.
    fn decide(&self, facts: &F) -> Decision<F::Choice>;
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<C> {
    /// What to do.
    pub choice: C,
    /// Why, in words, with the figures that decided it.
    pub why: String,
}

impl<C> Decision<C> {
    /// A choice and its reason.
    pub fn new(choice: C, why: impl Into<String>) -> Decision<C> {
        Decision { choice, why: why.into() }
    }
}
