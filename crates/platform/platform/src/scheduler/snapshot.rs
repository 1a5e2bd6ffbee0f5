//! The platform's state in one document, for the dashboard and `farfork top`.
//!
//! Names end with their unit: `_ms` is milliseconds, `_bytes` bytes, `_per_s` calls per second.
//! Counts are since the platform began, unless they are recent ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::StartKind;

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of farfork.
    pub version: String,
    /// When it was taken, in milliseconds since 1970.
    pub at_ms: u64,
    /// When the platform began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Whether a function is deployed, called or not.
    pub has_functions: bool,
    /// Calls that wait or run.
    pub calls_in_flight: u64,
    /// Of these, calls that wait for an instance.
    pub calls_waiting: u64,
    /// Calls of the last seconds, of all functions.
    pub recent: Recent,
    /// Calls by how they got their instance; all kinds are present.
    pub starts: BTreeMap<StartKind, Starts>,
    /// Calls that got no instance, whose instance failed, or that returned an error.
    pub calls_failed: u64,
    /// Bytes of the pool in use, mostly by images.
    pub pool_used_bytes: u64,
    /// Size of the pool.
    pub pool_size_bytes: u64,
    /// Images in the pool.
    pub pool_images: u64,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// Functions that were called, by `NAMESPACE/NAME`.
    pub functions: BTreeMap<String, Function>,
    /// Number of called functions that are left out.
    pub functions_omitted: u64,
}

/// Calls that ended in the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// How many.
    pub calls: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Calls per second.
    pub per_s: f64,
    /// P50, from the platform's receipt of a call until its activation was stored; `None` without
    /// calls.
    pub p50_ms: Option<f64>,
    /// P99 of the same.
    pub p99_ms: Option<f64>,
}

/// Calls that got their instance in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Starts {
    /// How many.
    pub calls: u64,
    /// Median of the last ones, from the call's receipt until the function's code ran.
    pub wait_ms: Option<f64>,
    /// Median of the last ones, for the whole call.
    pub whole_ms: Option<f64>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Whether it answers.
    pub is_up: bool,
    /// Empty ghosts that wait.
    pub ghosts: u64,
    /// Ghosts that wait with an image of a function.
    pub attached_ghosts: u64,
    /// Instances that are being started.
    pub starting: u64,
    /// Memory that its instances hold or are promised.
    pub memory_bytes: u64,
    /// Memory that its instances may take together.
    pub budget_bytes: u64,
    /// Started instances.
    #[serde(flatten)]
    pub instances: Instances,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Calls that have ended.
    pub calls: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Calls that wait for an instance.
    pub waiting: u64,
    /// The state of its image.
    pub image: Image,
    /// Why its last image was not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_error: Option<String>,
    /// Calls by how they got their instance.
    pub starts: BTreeMap<StartKind, u64>,
    /// Mean duration of calls in their instances; `None` without calls.
    pub duration_ms: Option<f64>,
    /// Calls of the last seconds.
    pub recent: Recent,
    /// All started instances.
    #[serde(flatten)]
    pub instances: Instances,
    /// The same by node.
    pub nodes: BTreeMap<String, Instances>,
}

/// Instances, and the memory that was last measured of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// Idle instances.
    pub idle: u64,
    /// Busy instances.
    pub busy: u64,
    /// Their local memory.
    pub local_bytes: u64,
    /// Touched pages that they map from the pool, counted for each instance.
    pub pool_bytes: u64,
}

/// The state of a function's image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Image {
    /// None: new instances load the function's code.
    #[default]
    None,
    /// An instance is being checkpointed.
    Making,
    /// Ready: new instances are clones.
    Ready,
}

impl Instances {
    /// Adds others to these.
    pub fn add(&mut self, others: Instances) {
        self.idle += others.idle;
        self.busy += others.busy;
        self.local_bytes += others.local_bytes;
        self.pool_bytes += others.pool_bytes;
    }
}

impl Snapshot {
    /// Leaves out functions beyond `most`: the least busy, then those with fewest recent calls,
    /// then those with fewest calls.
    pub fn shorten(&mut self, most: usize) {
        let surplus = self.functions.len().saturating_sub(most);
        if surplus == 0 {
            return;
        }
        let weight = |function: &Function| {
            (function.instances.busy + function.waiting, function.recent.calls, function.calls)
        };
        let mut all: Vec<_> =
            self.functions.iter().map(|(name, function)| (weight(function), name)).collect();
        all.sort_unstable();
        let least: Vec<String> = all[..surplus].iter().map(|(_, name)| (*name).clone()).collect();
        least.iter().for_each(|name| drop(self.functions.remove(name)));
        self.functions_omitted += surplus as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_functions_are_kept() {
        let recent = |calls: u64| Recent { calls, ..Recent::default() };
        let function = |calls: u64, lately: u64, waiting: u64| Function {
            calls,
            waiting,
            recent: recent(lately),
            ..Function::default()
        };
        let functions = [
            ("g/much", function(900, 0, 0)),
            ("g/little", function(1, 0, 0)),
            ("g/lately", function(5, 5, 0)),
            ("g/waits", function(0, 0, 1)),
        ];
        let functions = functions.map(|(name, function)| (name.to_owned(), function));
        let whole = Snapshot { functions: functions.into(), ..Snapshot::default() };
        let shortened = |most: usize| {
            let mut snapshot = whole.clone();
            snapshot.shorten(most);
            let names: Vec<String> = snapshot.functions.into_keys().collect();
            (names.join(" "), snapshot.functions_omitted)
        };
        assert_eq!(shortened(4).1, 0);
        assert_eq!(shortened(3), ("g/lately g/much g/waits".to_owned(), 1));
        assert_eq!(shortened(2), ("g/lately g/waits".to_owned(), 2));
        assert_eq!(shortened(1), ("g/waits".to_owned(), 3));
    }

    #[test]
    fn a_snapshot_survives_a_round_trip() {
        let mut snapshot = Snapshot::default();
        let starts = Starts { calls: 3, wait_ms: Some(0.25), whole_ms: None };
        snapshot.starts.insert(StartKind::Clone, starts);
        let instances = Instances { idle: 1, busy: 2, local_bytes: 3, pool_bytes: 4 };
        let node = Node { is_up: true, instances, ..Node::default() };
        snapshot.nodes.insert("n".to_owned(), node);
        let image = Image::Making;
        let function = Function { image, instances, ..Function::default() };
        snapshot.functions.insert("g/f".to_owned(), function);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
        for part in [r#""clone":{"calls":3,"#, r#""image":"making""#, r#""idle":1,"busy":2,"#] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
