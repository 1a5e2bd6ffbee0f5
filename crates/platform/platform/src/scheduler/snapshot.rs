//! What goes on, in one document: what the dashboard and `farfork top` show.
//!
//! Units stand at the end of names: `_ms` is milliseconds, `_bytes` bytes, `_per_s` calls in a second.
//! What is counted is counted since the platform began, unless it is called recent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::StartKind;

/// What there is, and what has been since the platform began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The version of farfork.
    pub version: String,
    /// When this was seen, in milliseconds since 1970.
    pub at_ms: u64,
    /// When the platform began, in milliseconds since 1970.
    pub began_ms: u64,
    /// Whether anybody has deployed a function, called or not.
    pub has_functions: bool,
    /// Calls that wait or are being made.
    pub calls_in_flight: u64,
    /// Of these, calls that wait for an instance.
    pub calls_waiting: u64,
    /// Calls of the last seconds, of all functions.
    pub recent: Recent,
    /// Calls by how they came to their instance; each kind is there.
    pub starts: BTreeMap<StartKind, Starts>,
    /// Calls that came to no instance, or whose instance failed, or that say themselves that they failed.
    pub calls_failed: u64,
    /// Room of the pool that is in use, by images above all.
    pub pool_used_bytes: u64,
    /// Room of the pool.
    pub pool_size_bytes: u64,
    /// Images in the pool.
    pub pool_images: u64,
    /// By their names.
    pub nodes: BTreeMap<String, Node>,
    /// By `NAMESPACE/NAME`; those that were called.
    pub functions: BTreeMap<String, Function>,
    /// Functions that were called and are left out, as there are so many.
    pub functions_omitted: u64,
}

/// Calls that have ended in the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// How many.
    pub calls: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// In a second.
    pub per_s: f64,
    /// Half of them took no longer, from when the platform had them until their answer was kept;
    /// nothing without any.
    pub p50_ms: Option<f64>,
    /// 99 of 100 took no longer.
    pub p99_ms: Option<f64>,
}

/// Calls that came to their instance in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Starts {
    /// How many.
    pub calls: u64,
    /// Median of the last ones: from when the platform had the call until the function's own code ran.
    pub wait_ms: Option<f64>,
    /// Median of the last ones: all of the call.
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
    /// What its instances hold of its budget, or are promised.
    pub memory_bytes: u64,
    /// What its instances may take together.
    pub budget_bytes: u64,
    /// Those that have started.
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
    /// Whether there is an image that new instances are clones of.
    pub image: Image,
    /// Why the last one was not made, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_error: Option<String>,
    /// Calls by how they came to their instance.
    pub starts: BTreeMap<StartKind, u64>,
    /// Mean of what the calls took in their instances; nothing without any.
    pub duration_ms: Option<f64>,
    /// Calls of the last seconds.
    pub recent: Recent,
    /// All that have started.
    #[serde(flatten)]
    pub instances: Instances,
    /// The same by node.
    pub nodes: BTreeMap<String, Instances>,
}

/// Instances, and the memory that they were last seen to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instances {
    /// Those that have nothing to do.
    pub idle: u64,
    /// Those that have.
    pub busy: u64,
    /// Their own memory.
    pub local_bytes: u64,
    /// What they have touched of what they map of the pool; what several map counts for each.
    pub pool_bytes: u64,
}

/// Whether a function has an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Image {
    /// It has none: new instances load the function's code.
    #[default]
    None,
    /// An instance is being checkpointed.
    Making,
    /// It has one: new instances are clones.
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
    /// Leaves functions out beyond so many: those that were called least of late, and of these those that
    /// were called least ever.
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
    fn the_busiest_functions_are_told_where_there_are_many() {
        let recent = |calls: u64| Recent { calls, ..Recent::default() };
        let of = |calls: u64, lately: u64, waiting: u64| Function {
            calls,
            waiting,
            recent: recent(lately),
            ..Function::default()
        };
        let functions = [
            ("g/much", of(900, 0, 0)),
            ("g/little", of(1, 0, 0)),
            ("g/lately", of(5, 5, 0)),
            ("g/waits", of(0, 0, 1)),
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
    fn a_document_is_read_as_it_is_written() {
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
