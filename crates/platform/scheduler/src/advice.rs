//! Whom the scheduler asks.

use std::fmt::Display;

use farfork_policy::Question;

/// Decides by policies. The platform also writes each decision down.
pub trait Advice {
    /// Whether decisions are written down, with all their facts. Where they are not, facts that cannot change a choice
    /// may be left out.
    fn is_recorded(&self) -> bool {
        true
    }

    /// Decides. `about` is what the decision is about, for the journal: a function, a node, an image.
    fn decide<F: Question>(&self, about: &dyn Display, facts: &F) -> F::Choice {
        self.decide_if(about, facts, |_| true)
    }

    /// Decides, and writes the decision down only if its choice is worth it: what is asked all the time
    /// has the same answer most of the time.
    fn decide_if<F: Question>(
        &self,
        about: &dyn Display,
        facts: &F,
        is_worth: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice;
}

/// The default policies, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct ByDefault(farfork_policy::Policies);

#[cfg(test)]
impl ByDefault {
    pub(crate) fn new() -> ByDefault {
        ByDefault(farfork_policy::Settings::default().into())
    }
}

#[cfg(test)]
impl Advice for ByDefault {
    fn decide_if<F: Question>(
        &self,
        _: &dyn Display,
        facts: &F,
        _: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice {
        F::policy(&self.0).decide(facts).choice
    }
}
