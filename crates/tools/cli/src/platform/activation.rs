//! Activations as text.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

/// An activation, as the platform sends it.
pub(crate) struct Activation(pub(crate) Value);

impl Activation {
    /// Its id.
    pub(crate) fn id(&self) -> &str {
        self.0["activationId"].as_str().unwrap_or_default()
    }

    /// When it began, in milliseconds since 1970.
    pub(crate) fn start_ms(&self) -> u64 {
        self.0["start"].as_u64().unwrap_or_default()
    }

    /// What the function printed, by lines.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &str> {
        self.0["logs"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// The JSON of `farfork logs --json`.
    pub(crate) fn with_logs(&self) -> Value {
        let whole = &self.0;
        json!({
            "activationId": whole["activationId"],
            "name": whole["name"],
            "start": whole["start"],
            "end": whole["end"],
            "status": whole["response"]["status"],
            "logs": whole["logs"],
        })
    }

    /// One line: `2026-11-21T22:01:02.003Z hello ID success, 12 ms, cold`.
    pub(crate) fn head(&self) -> String {
        let time = UNIX_EPOCH + Duration::from_millis(self.start_ms());
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        format!(
            "{} {} {} {}, {} ms, {}",
            humantime::format_rfc3339_millis(time),
            text(&self.0["name"]),
            self.id(),
            text(&self.0["response"]["status"]),
            self.0["duration"],
            annotation(&self.0, "startKind").map_or_else(|| "?".to_owned(), text),
        )
    }
}

/// The value of an annotation in a document of the platform.
pub(crate) fn annotation<'a>(document: &'a Value, key: &str) -> Option<&'a Value> {
    let all = document["annotations"].as_array()?;
    Some(&all.iter().rev().find(|one| one["key"] == key)?["value"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_name_id_and_status() {
        let whole = Activation(json!({
            "activationId": "ab", "name": "hello", "start": 1_792_000_000_123_u64, "duration": 12,
            "response": {"status": "success"}, "logs": ["one", "two"],
            "annotations": [{"key": "kind", "value": "x"}, {"key": "startKind", "value": "cold"}],
        }));
        assert_eq!(whole.head(), "2026-10-14T17:46:40.123Z hello ab success, 12 ms, cold");
        assert_eq!(whole.logs().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(Activation(json!({})).head(), "1970-01-01T00:00:00.000Z ?  ?, null ms, ?");
        assert_eq!(annotation(&whole.0, "initTime"), None);
    }
}
