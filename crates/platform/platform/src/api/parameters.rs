//! Parameters and annotations: lists of keys and values, as in OpenWhisk.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::ApiError;
use super::checked::Checked;

/// Most bytes of an action's parameters, and of its annotations. Each call carries them.
pub const MOST_PARAMETERS_BYTES: u64 = 1 << 20;

/// Keys and values in the given order; of equal keys the last counts. They are kept as JSON, which
/// copies share: as a tree of values they could take a hundred times as much memory.
#[derive(Clone, Debug)]
pub struct Parameters(Arc<Box<RawValue>>);

/// A key and the text of its value.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry<'a> {
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    #[serde(borrow, default = "null")]
    pub value: &'a RawValue,
}

fn null<'a>() -> &'a RawValue {
    RawValue::NULL
}

impl Parameters {
    fn of(entries: &[Entry<'_>]) -> Parameters {
        // Writing texts to memory does not fail.
        Parameters(Arc::new(to_raw_value(entries).unwrap_or_default()))
    }

    /// The entries. Reading them takes memory by their number, so they are not kept.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        // The text was written by `of`.
        serde_json::from_str(self.0.get()).unwrap_or_default()
    }

    /// Bytes of the JSON.
    pub fn bytes(&self) -> usize {
        self.0.get().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.get() == "[]"
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value> {
        let entries = self.entries();
        let found = entries.iter().rev().find(|entry| entry.key == key)?;
        serde_json::from_str(found.value.get()).ok()
    }

    /// Whether the value of a key is `true`.
    pub fn is_set(&self, key: &str) -> bool {
        self.get(key) == Some(Value::Bool(true))
    }

    /// Whether any of these keys has a value other than null.
    pub fn binds_any<'k>(&self, mut keys: impl Iterator<Item = &'k str>) -> bool {
        let entries = self.entries();
        let all: HashMap<&str, &str> =
            entries.iter().map(|entry| (&*entry.key, entry.value.get())).collect();
        keys.any(|key| all.get(key).is_some_and(|value| *value != "null"))
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = to_raw_value(&value.into()).unwrap_or_default();
        let mut entries = self.entries();
        entries.retain(|entry| entry.key != key);
        entries.push(Entry { key: key.into(), value: &value });
        let all = Parameters::of(&entries);
        *self = all;
    }

    /// Refuses parameters above the limit; `what` names them in the message.
    pub fn check(&self, what: &'static str) -> Result<(), ApiError> {
        let (bytes, most) = (self.bytes() as u64, MOST_PARAMETERS_BYTES);
        match bytes > most {
            true => Err(ApiError::PartTooLarge { what, bytes, most }),
            false => Ok(()),
        }
    }
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters::of(&[])
    }
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Parameters) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parameters, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        serde_json::from_str::<Checked>(text.get()).map_err(D::Error::custom)?;
        let text = compact(text.get());
        let entries: Vec<Entry<'_>> = serde_json::from_str(&text).map_err(D::Error::custom)?;
        Ok(Parameters::of(&entries))
    }
}

/// Valid JSON without space between its parts, which would count for the limit.
fn compact(text: &str) -> String {
    let (mut in_text, mut is_escaped) = (false, false);
    let is_kept = |letter: &char| {
        let is_space = !in_text && letter.is_ascii_whitespace();
        match *letter {
            '"' if !is_escaped => in_text = !in_text,
            _ => {}
        }
        is_escaped = in_text && *letter == '\\' && !is_escaped;
        !is_space
    };
    text.chars().filter(is_kept).collect()
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Parameters {
        let raw = |value: V| to_raw_value(&value.into()).unwrap_or_default();
        let all: Vec<(String, Box<RawValue>)> =
            all.into_iter().map(|(key, value)| (key.into(), raw(value))).collect();
        let entries: Vec<Entry<'_>> =
            all.iter().map(|(key, value)| Entry { key: key.into(), value }).collect();
        Parameters::of(&entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_their_text() {
        for number in ["3728702.460414558", "0.1", "-1e-300", "18446744073709551615"] {
            let value: Value = serde_json::from_str(number).unwrap();
            assert_eq!(value.to_string(), number);
        }
    }

    #[test]
    fn documents_are_read_as_they_are_written() {
        let list = json!([{"key": "a", "value": 1}, {"key": "b", "value": [2]}]);
        let bound: Parameters = serde_json::from_value(list.clone()).unwrap();
        assert_eq!(serde_json::to_value(&bound).unwrap(), list);
        let loose: Parameters =
            serde_json::from_str("[ {\"key\": \"a\", \"init\": true} ]").unwrap();
        assert_eq!(serde_json::to_string(&loose).unwrap(), r#"[{"key":"a","value":null}]"#);
        let spaced = r#"[ {"key": "a b", "value": [ 1, " \" \\", { "c" : 2 } ] } ]"#;
        let read: Parameters = serde_json::from_str(spaced).unwrap();
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(text, r#"[{"key":"a b","value":[1," \" \\",{"c":2}]}]"#);
        for bad in ["{}", "[1]", "[{\"value\":1}]", "[{\"key\":\"a\",\"value\":\"\\ud800\"}]"] {
            assert!(serde_json::from_str::<Parameters>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_bound_by_values_other_than_null() {
        let all = Parameters::from_iter([("a", json!(1)), ("b", json!(1)), ("b", json!(null))]);
        assert!(all.binds_any(["b", "a"].into_iter()));
        assert!(!all.binds_any(["b", "c"].into_iter()));
    }

    #[test]
    fn of_equal_keys_the_last_counts() {
        let mut all = Parameters::from_iter([("final", false), ("final", true)]);
        assert!(all.is_set("final"));
        all.set("final", "yes");
        assert!(!all.is_set("final") && all.get("final") == Some(json!("yes")));
        assert_eq!(serde_json::to_value(&all).unwrap(), json!([{"key": "final", "value": "yes"}]));
    }
}
