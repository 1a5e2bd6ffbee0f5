//! Parameters and annotations: lists of keys and values, as in OpenWhisk.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ApiError;

/// Most bytes of an action's parameters, and of its annotations. Each call carries them.
pub const MOST_PARAMETERS_BYTES: u64 = 1 << 20;

/// Keys and values in the given order; of equal keys the last counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    key: String,
    #[serde(default)]
    value: Value,
}

impl Parameters {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().rev().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Whether the value of a key is `true`.
    pub fn is_set(&self, key: &str) -> bool {
        self.get(key) == Some(&Value::Bool(true))
    }

    /// Whether a key has a value other than null.
    pub fn binds(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_null())
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.retain(|entry| entry.key != key);
        self.0.push(Entry { key: key.to_owned(), value: value.into() });
    }

    /// Refuses parameters above the limit; `what` names them in the message.
    pub fn check(&self, what: &'static str) -> Result<(), ApiError> {
        let mut counted = Counted(0);
        let written = serde_json::to_writer(&mut counted, self);
        written.map_err(|wrong| ApiError::BadRequest(wrong.to_string()))?;
        let (Counted(bytes), most) = (counted, MOST_PARAMETERS_BYTES);
        match bytes > most {
            true => Err(ApiError::PartTooLarge { what, bytes, most }),
            false => Ok(()),
        }
    }

    /// The arguments of a call: these parameters, overridden by the caller's.
    pub fn merged(&self, given: Map<String, Value>) -> Map<String, Value> {
        let mut all: Map<String, Value> =
            self.0.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
        all.extend(given);
        all
    }
}

/// Counts bytes and discards them.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Parameters {
        let entry = |(key, value): (K, V)| Entry { key: key.into(), value: value.into() };
        Parameters(all.into_iter().map(entry).collect())
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
    fn the_callers_arguments_override_parameters() {
        let bound: Parameters =
            serde_json::from_value(json!([{"key": "a", "value": 1}, {"key": "b", "value": [2]}]))
                .unwrap();
        let Value::Object(given) = json!({"b": 3, "c": null}) else { unreachable!() };
        assert_eq!(Value::Object(bound.merged(given)), json!({"a": 1, "b": 3, "c": null}));
        let text = serde_json::to_value(&bound).unwrap();
        assert_eq!(text, json!([{"key": "a", "value": 1}, {"key": "b", "value": [2]}]));
    }

    #[test]
    fn of_equal_keys_the_last_counts() {
        let mut all = Parameters::from_iter([("final", false), ("final", true)]);
        assert!(all.is_set("final"));
        all.set("final", "yes");
        assert!(!all.is_set("final") && all.get("final") == Some(&json!("yes")));
        assert_eq!(serde_json::to_value(&all).unwrap(), json!([{"key": "final", "value": "yes"}]));
    }
}
