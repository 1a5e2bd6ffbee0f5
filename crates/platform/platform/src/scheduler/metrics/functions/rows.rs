//! Functions' metrics for snapshots.

use std::collections::BTreeMap;

use farfork_sys::sync::locked;

use super::{Figures, Functions, OUTCOMES, STARTS};
use crate::api::Outcome;
use crate::scheduler::snapshot::Function;

impl Functions {
    /// All functions by `NAMESPACE/NAME`, without their instances.
    pub fn rows(&self) -> BTreeMap<String, Function> {
        let all = self.list().into_iter();
        all.map(|((namespace, name), of)| (format!("{namespace}/{name}"), of.row())).collect()
    }
}

impl Figures {
    fn row(&self) -> Function {
        let (mut calls, mut failed) = (0, 0);
        for (outcome, counter) in OUTCOMES.into_iter().zip(&self.outcomes) {
            calls += counter.get();
            failed += if outcome == Outcome::Success { 0 } else { counter.get() };
        }
        let mean = || self.duration_ms.get() as f64 / calls as f64;
        Function {
            calls,
            failed,
            waiting: u64::try_from(self.waiting.get()).unwrap_or(0),
            image: *locked(&self.image),
            image_error: locked(&self.image_error).clone(),
            starts: STARTS.into_iter().zip(self.starts.iter().map(|one| one.get())).collect(),
            duration_ms: (calls > 0).then(mean),
            recent: self.recent.look(),
            ..Function::default()
        }
    }
}
