//! In which tier the memory of instances lives: of those that start, and of those that run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farfork_policy::placement::NodeFacts;
use farfork_policy::tiering::{Objective, TieringFacts};
use farfork_types::Tiering;

use super::Function;
use crate::api::Parameters;
use crate::scheduler::instance::Instance;

impl Function {
    /// In which tier the memory of an instance is to live that starts on a node, if that answers.
    pub(super) fn tiering_on(&mut self, node: Option<&NodeFacts>) -> Tiering {
        if let Some(node) = node {
            self.tiering = self.ask_for_tiering(node);
        }
        self.tiering
    }

    fn ask_for_tiering(&self, node: &NodeFacts) -> Tiering {
        let facts = TieringFacts {
            current: self.tiering,
            latency: self.latency.latency(),
            objective: objective(&self.action.annotations),
            memory: node.memory,
            pool_busy_permille: node.pool_busy_permille,
        };
        let advisor = &self.shared.advisor;
        advisor.decide(&*advisor.policies.tiering, &self.about, &facts)
    }

    /// Has an instance that waits for its next call get local copies of what it reads from the pool, where
    /// another would start with some: a function that comes near its objective need not wait until one has
    /// to start.
    pub(super) fn promote(&mut self, instance: &Instance, node: &NodeFacts) {
        let may_change = self.tiering != Tiering::Mow
            || objective(&self.action.annotations) != Objective::default();
        // One that has answered nothing has touched nothing. Nothing to decide is nothing to keep on record.
        if !may_change || instance.calls == 0 || !instance.reads_from_pool() {
            return;
        }
        // A node without room says nothing of others.
        if self.ask_for_tiering(node) != Tiering::Hybrid {
            return;
        }
        self.tiering = Tiering::Hybrid;
        let is_local = Arc::clone(&instance.is_local);
        is_local.store(true, Ordering::Relaxed);
        let (about, promoting) = (self.about.clone(), self.shared.nodes.promote(instance.id));
        tokio::spawn(async move {
            match promoting.await {
                Ok(pages @ 1..) => tracing::info!(about, pages, "promoted"),
                // Nothing is known of its pages yet, or there is no room: later, perhaps.
                Ok(0) => is_local.store(false, Ordering::Relaxed),
                Err(error) => {
                    is_local.store(false, Ordering::Relaxed);
                    tracing::debug!(about, %error, "not promoted");
                }
            }
        });
    }
}

/// The objective that stands in an action's annotations, in milliseconds there.
fn objective(annotations: &Parameters) -> Objective {
    let us = |key: &str| {
        let ms = annotations.get(key)?.as_f64().filter(|ms| *ms > 0.0)?;
        Some((ms * 1000.0) as u64)
    };
    Objective { mean_us: us("slo-mean-ms"), p99_us: us("slo-p99-ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objectives_stand_in_annotations() {
        let all = Parameters::from_iter([("slo-p99-ms", json!(2.5)), ("slo-mean-ms", json!("1"))]);
        let expected = Objective { mean_us: None, p99_us: Some(2500) };
        assert_eq!(objective(&all), expected);
        let none = Parameters::from_iter([("slo-p99-ms", json!(-1))]);
        assert_eq!(objective(&none), Objective::default());
    }
}
