//! Shares of near memory: which instances get one, and what calls show of it.
//!
//! They are decided if the settings name a policy, or if the function's owner has declared by how much calls may be
//! slower (annotation `latency-tolerance`, in percent), or the share itself (`local-share`, in thousandths). Clones under `mow` get the share, and another one before a call if
//! one is better by then. An instance without an image has all its memory near.

use std::sync::Arc;

use farfork_policy::share::ALL;
use farfork_scheduler::{Declared, Sharing, StartOrder};
use farfork_types::{LocalShare, Tiering};

use super::Function;
use crate::api::{Action, Parameters};
use crate::scheduler::instance::Instance;
use crate::scheduler::outcome::QueuedCall;
use crate::scheduler::shared::Shared;

/// The annotation with the tolerance.
const TOLERANCE: &str = "latency-tolerance";
/// The annotation with the share.
const SHARE: &str = "local-share";

/// Bytes of a call's arguments, as text.
pub(super) fn payload_bytes(call: &QueuedCall) -> u64 {
    call.call.args.text().len() as u64
}

/// The state of a function with its shares, if they are decided.
pub(super) fn of_function(
    mut state: farfork_scheduler::Function,
    shared: &Shared,
    action: &Action,
) -> farfork_scheduler::Function {
    let declared = declared(&action.annotations);
    let are_decided = shared.advisor.decides_shares() || declared.is_any();
    let profiled = match are_decided {
        true => shared.advisor.profile(&action.path(), action.name.as_str()),
        false => Vec::new(),
    };
    state.decide_shares(are_decided, profiled, declared);
    state
}

fn declared(annotations: &Parameters) -> Declared {
    let share = annotations.get(SHARE).and_then(|value| u16::try_from(value.as_u64()?).ok());
    Declared {
        tolerance_permille: tolerance_permille(annotations),
        share: share.and_then(|permille| LocalShare::from_permille(permille).ok()),
    }
}

/// By how much calls may be slower than with all memory near, in thousandths.
fn tolerance_permille(annotations: &Parameters) -> Option<u64> {
    let percent = annotations.get(TOLERANCE)?.as_f64()?;
    (0.0..=1000.0).contains(&percent).then_some((percent * 10.0).round() as u64)
}

impl Function {
    /// Another version runs from now on: its owner may have declared something else.
    pub(super) fn decide_shares(&mut self) {
        let declared = declared(&self.action.annotations);
        let are_decided = self.shared.advisor.decides_shares() || declared.is_any();
        let path = self.action.path();
        let profiled = self.shared.advisor.profile(&path, self.action.name.as_str());
        self.state.decide_shares(are_decided, profiled, declared);
    }

    /// The share of the instance that was ordered last, for the call that it starts for, and the bytes of that call's
    /// arguments.
    pub(super) fn share_of(&mut self, order: &StartOrder) -> Option<(LocalShare, u64)> {
        if !self.state.has_shares() {
            return None;
        }
        if !order.is_clone {
            return Some((ALL, 0));
        }
        if order.tiering != Tiering::Mow {
            return None;
        }
        let call = self.state.scaling().starts_for();
        let waiting = call.and_then(|id| self.waiting.get(&id));
        let bytes = waiting.map_or(0, payload_bytes);
        let shared = Arc::clone(&self.shared);
        Some((self.state.share(self.clock.now_us(), bytes, &*shared.advisor)?, bytes))
    }

    /// The share that an instance gets before its next call, if it can have a better one by now.
    pub(super) fn share_change(&mut self, instance: &Instance) -> Option<LocalShare> {
        let share = instance.changeable_share()?;
        let can_shrink = self.shared.nodes.has_far_memory();
        let of = Sharing { payload_bytes: instance.started_for_bytes, share, can_shrink };
        let shared = Arc::clone(&self.shared);
        self.state.share_change(self.clock.now_us(), of, &*shared.advisor)
    }

    /// Notes how long a call has run in an instance that had a share when the call began.
    pub(super) fn learn_share(
        &mut self,
        instance: Option<&Instance>,
        (payload_bytes, share): (u64, Option<LocalShare>),
        run_us: Option<u64>,
    ) {
        let (Some(instance), Some(run_us)) = (instance, run_us) else { return };
        let Some(share) = share.filter(|_| self.state.has_shares()) else { return };
        let Some(usage) = self.shared.nodes.usage(instance.id) else { return };
        let now_us = self.clock.now_us();
        self.state.ran(now_us, payload_bytes, share, run_us, usage.local_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tolerances_are_read_from_annotations() {
        let of = |value| tolerance_permille(&Parameters::from_iter([(TOLERANCE, value)]));
        assert_eq!([of(json!(5)), of(json!(0)), of(json!(12.5))], [Some(50), Some(0), Some(125)]);
        assert_eq!([of(json!(-1)), of(json!("5")), of(json!(1001))], [None; 3]);
        assert_eq!(tolerance_permille(&Parameters::default()), None);
    }

    #[test]
    fn shares_are_read_from_annotations() {
        let of = |value| declared(&Parameters::from_iter([(SHARE, value)])).share;
        let permille = |value| of(value).map(LocalShare::permille);
        assert_eq!(
            [0, 300, 1000].map(|share| permille(json!(share))),
            [Some(0), Some(300), Some(1000)]
        );
        assert_eq!([of(json!(-1)), of(json!("5")), of(json!(1001)), of(json!(65_836))], [None; 4]);
        assert!(!declared(&Parameters::default()).is_any());
    }
}
