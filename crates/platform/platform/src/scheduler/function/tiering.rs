//! Tiering policies of starting instances, and promotion of running ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farfork_policy::placement::NodeFacts;
use farfork_policy::tiering::{Objective, TieringFacts};
use farfork_scheduler::Advice;
use farfork_types::Tiering;

use super::Function;
use crate::api::Parameters;
use crate::scheduler::instance::Instance;

impl Function {
    /// The tiering policy for an instance that starts on a node.
    pub(super) fn tiering_on(&mut self, node: Option<&NodeFacts>) -> Tiering {
        if let Some(node) = node {
            self.tiering = self.decide_tiering(node);
        }
        self.tiering
    }

    fn decide_tiering(&self, node: &NodeFacts) -> Tiering {
        let facts = TieringFacts {
            current: self.tiering,
            latency: self.latency.latency(),
            objective: objective(&self.action.annotations),
            memory: node.memory,
            pool_busy_permille: node.pool_busy_permille,
        };
        let advisor = &self.shared.advisor;
        advisor.decide(&self.about, &facts)
    }

    /// Promotes an idle instance that reads from the pool, if a new instance would start with local
    /// copies: a function near its objective need not wait until one has to start.
    pub(super) fn promote(&mut self, instance: &Instance, node: &NodeFacts) {
        let may_change = self.tiering != Tiering::Mow
            || objective(&self.action.annotations) != Objective::default();
        // An instance without calls has touched nothing. Without anything to decide, no decision is
        // recorded.
        if !may_change || instance.calls == 0 || !instance.reads_from_pool() {
            return;
        }
        // Without `hybrid` here, the function's policy stays: other nodes may have room.
        if self.decide_tiering(node) != Tiering::Hybrid {
            return;
        }
        self.tiering = Tiering::Hybrid;
        let is_local = Arc::clone(&instance.is_local);
        is_local.store(true, Ordering::Relaxed);
        let (about, promoting) = (self.about.clone(), self.shared.nodes.promote(instance.id));
        tokio::spawn(async move {
            match promoting.await {
                Ok(pages @ 1..) => tracing::info!(about, pages, "promoted"),
                // Its pages are not known yet, or the node has no room: retried after a later call.
                Ok(0) => is_local.store(false, Ordering::Relaxed),
                Err(error) => {
                    is_local.store(false, Ordering::Relaxed);
                    tracing::debug!(about, %error, "not promoted");
                }
            }
        });
    }
}

/// The objective in an action's annotations, which are in milliseconds.
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
    fn objectives_are_read_from_annotations() {
        let all = Parameters::from_iter([("slo-p99-ms", json!(2.5)), ("slo-mean-ms", json!("1"))]);
        let expected = Objective { mean_us: None, p99_us: Some(2500) };
        assert_eq!(objective(&all), expected);
        let none = Parameters::from_iter([("slo-p99-ms", json!(-1))]);
        assert_eq!(objective(&none), Objective::default());
    }
}
