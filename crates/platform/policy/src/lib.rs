//! The platform's policies: pure functions from facts to decisions.
//!
//! ```text
//!  facts ──► Policy::decide ──► decision: a choice and its reason
//!                                   │
//!                                   └──► journal: one line of JSON each, from which replay repeats
//!                                        and compares every decision
//! ```
//! The caller, a platform or a simulation, gathers facts, asks a policy, and acts on the decision.
//! Invariants: nothing here reads a clock, draws random numbers, keeps state between two decisions,
//! or does I/O other than the journal's. Equal facts give equal decisions, to the letter. All
//! figures are integers with their unit in the name; shares are in thousandths (`permille`).
//!
//! The questions of CXLporter (CXLfork §5): [when to checkpoint](checkpoint), [in which tier memory
//! lives](tiering), [how long an idle instance stays](keep_alive), [how many ghosts wait](ghosts).
//! The questions of any platform with limits: [where an instance starts](placement), [what is
//! evicted for it](admission), [which instances pause](growth) and [which end when memory runs
//! out](relief), [which images are removed](reclaim).
//! Asked by simulations only, and if [`Settings`] have it: [how much of an instance's memory is
//! near](share), with [a policy that learns it](adaptive).
#![forbid(unsafe_code)]

pub mod adaptive;
pub mod admission;
pub mod checkpoint;
pub mod ghosts;
mod greedy;
pub mod growth;
pub mod journal;
pub mod keep_alive;
pub mod memory;
pub mod node;
pub mod observed;
pub mod occupant;
pub mod placement;
pub mod reclaim;
pub mod relief;
pub mod settings;
pub mod share;
pub mod tiering;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use memory::Memory;
pub use settings::{Policies, Question, Settings};

/// The facts of one question.
pub trait Facts: Clone + Debug + Serialize + DeserializeOwned {
    /// The type of the decision's choice.
    type Choice: Clone + Debug + PartialEq + Serialize + DeserializeOwned;
    /// The question's name in journals.
    const QUESTION: &'static str;
}

/// One way to decide a question.
pub trait Policy<F: Facts>: Debug + Send + Sync {
    /// Decides.
    fn decide(&self, facts: &F) -> Decision<F::Choice>;

    /// The choice alone. What is asked with every call does without the words of its reason here.
    fn choose(&self, facts: &F) -> F::Choice {
        self.decide(facts).choice
    }
}

/// A policy's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<C> {
    /// What to do.
    pub choice: C,
    /// The reason in words, with the figures that decided it.
    pub why: String,
}

impl<C> Decision<C> {
    /// A choice and its reason.
    pub fn new(choice: C, why: impl Into<String>) -> Decision<C> {
        Decision { choice, why: why.into() }
    }
}
