//! Promotion of running instances, and objectives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farfork_policy::tiering::Objective;

use super::Function;
use crate::api::Parameters;
use crate::scheduler::instance::Instance;

impl Function {
    /// Promotes an idle instance that reads from the pool.
    pub(super) fn promote(&self, instance: &Instance) {
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
pub(super) fn objective(annotations: &Parameters) -> Objective {
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
