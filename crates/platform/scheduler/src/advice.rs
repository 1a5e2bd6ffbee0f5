//! Whom the scheduler asks.

use std::fmt::Display;

use farfork_policy::Question;

/// Decides by policies. The platform also writes each decision down.
pub trait Advice {
    /// Decides. `about` is what the decision is about, for the journal: a function, a node, an image.
    fn decide<F: Question>(&self, about: &dyn Display, facts: &F) -> F::Choice;
}
