//! Limits of actions.

use std::ops::RangeInclusive;

use farfork_policy::settings::{Disk, Requests};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ApiError;

const TIMEOUT_MS: RangeInclusive<u64> = 100..=300_000;
const MEMORY_MB: RangeInclusive<u64> = 32..=4096;
const LOGS_MB: RangeInclusive<u64> = 0..=10;
const CONCURRENCY: RangeInclusive<u64> = 1..=1;

/// Limits of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Milliseconds.
    #[serde(rename = "timeout")]
    pub timeout_ms: u64,
    /// Megabytes of memory.
    #[serde(rename = "memory")]
    pub memory_mb: u64,
    /// Megabytes of output.
    #[serde(rename = "logs")]
    pub logs_mb: u64,
    /// Concurrent activations of an instance.
    pub concurrency: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { timeout_ms: 60_000, memory_mb: 256, logs_mb: 10, concurrency: 1 }
    }
}

impl Limits {
    /// The limits of a namespace with this many concurrent calls, by OpenWhisk's names, of the
    /// memory of its requests, and of what it keeps. Calls per minute are not limited.
    pub fn of_namespace(concurrent_calls: usize, requests: Requests, disk: Disk) -> Value {
        json!({
            "concurrentInvocations": concurrent_calls,
            "requestMemoryMax": requests.namespace_bytes,
            "requestMemoryMaxOfAll": requests.all_bytes,
            "diskCodeMax": disk.namespace_code_bytes,
            "diskUnpackedMax": disk.namespace_unpacked_bytes,
            "diskRecordsMax": disk.namespace_record_bytes,
            "actionDurationMin": TIMEOUT_MS.start(),
            "actionDurationMax": TIMEOUT_MS.end(),
            "actionMemoryMin": MEMORY_MB.start(),
            "actionMemoryMax": MEMORY_MB.end(),
            "actionLogsMin": LOGS_MB.start(),
            "actionLogsMax": LOGS_MB.end(),
            "actionConcurrencyMin": CONCURRENCY.start(),
            "actionConcurrencyMax": CONCURRENCY.end(),
        })
    }
}

/// The limits of all actions, by the names that OpenWhisk's description of itself has: milliseconds and
/// bytes.
pub fn of_platform(concurrent_calls: usize) -> Value {
    json!({
        "actions_per_minute": 0,
        "triggers_per_minute": 0,
        "concurrent_actions": concurrent_calls,
        "sequence_length": 0,
        "min_action_duration": TIMEOUT_MS.start(),
        "max_action_duration": TIMEOUT_MS.end(),
        "min_action_memory": MEMORY_MB.start() << 20,
        "max_action_memory": MEMORY_MB.end() << 20,
        "min_action_logs": LOGS_MB.start() << 20,
        "max_action_logs": LOGS_MB.end() << 20,
    })
}

/// Limits as a client sends them. Fields left out stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LimitsPut {
    timeout: Option<u64>,
    memory: Option<u64>,
    logs: Option<u64>,
    concurrency: Option<u64>,
}

impl LimitsPut {
    /// The given limits with the client's changes.
    pub fn change(self, limits: Limits) -> Result<Limits, ApiError> {
        let changed = Limits {
            timeout_ms: self.timeout.unwrap_or(limits.timeout_ms),
            memory_mb: self.memory.unwrap_or(limits.memory_mb),
            logs_mb: self.logs.unwrap_or(limits.logs_mb),
            concurrency: self.concurrency.unwrap_or(limits.concurrency),
        };
        within("duration", " milliseconds", changed.timeout_ms, TIMEOUT_MS)?;
        within("memory", " MB", changed.memory_mb, MEMORY_MB)?;
        within("logs", " MB", changed.logs_mb, LOGS_MB)?;
        within("concurrency", "", changed.concurrency, CONCURRENCY)?;
        Ok(changed)
    }
}

/// Demands that a limit is within its own, with OpenWhisk's words, which its clients know.
fn within(what: &str, unit: &str, value: u64, limits: RangeInclusive<u64>) -> Result<(), ApiError> {
    let (least, most) = limits.into_inner();
    let (is, threshold) = match value {
        value if value < least => ("below", least),
        value if value > most => ("exceeds", most),
        _ => return Ok(()),
    };
    Err(ApiError::BadRequest(format!(
        "requirement failed: {what} {value}{unit} {is} allowed threshold of {threshold}{unit}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changed(put: serde_json::Value) -> Result<Limits, ApiError> {
        serde_json::from_value::<LimitsPut>(put).unwrap().change(Limits::default())
    }

    #[test]
    fn fields_left_out_stay() {
        assert_eq!(changed(json!({})).unwrap(), Limits::default());
        let seen = changed(json!({"memory": 512, "timeout": 100})).unwrap();
        assert_eq!(seen, Limits { memory_mb: 512, timeout_ms: 100, ..Limits::default() });
        let text = serde_json::to_value(Limits::default()).unwrap();
        let expected = json!({"timeout": 60_000, "memory": 256, "logs": 10, "concurrency": 1});
        assert_eq!(text, expected);
    }

    #[test]
    fn limits_have_limits() {
        for (bad, words) in [
            (
                json!({"timeout": 99}),
                "duration 99 milliseconds below allowed threshold of 100 milliseconds",
            ),
            (
                json!({"timeout": 300_001}),
                "duration 300001 milliseconds exceeds allowed threshold of 300000 milliseconds",
            ),
            (json!({"memory": 31}), "memory 31 MB below allowed threshold of 32 MB"),
            (json!({"memory": 5000}), "memory 5000 MB exceeds allowed threshold of 4096 MB"),
            (json!({"logs": 11}), "logs 11 MB exceeds allowed threshold of 10 MB"),
            (json!({"concurrency": 2}), "concurrency 2 exceeds allowed threshold of 1"),
        ] {
            let refused = changed(bad.clone()).unwrap_err().to_string();
            assert!(refused.contains(words), "{bad}: {refused}");
        }
    }
}
