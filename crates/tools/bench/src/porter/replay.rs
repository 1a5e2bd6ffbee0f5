//! Replays a trace: calls are sent when they are due, whether others have been answered or not.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::client::{Answer, Client};
use super::functions::Functions;
use super::processors::{Load, Ticks};
use super::state::PlatformState;
use super::trace::Trace;
use crate::error::BenchError;

/// Interval of samples of the platform's state.
pub const STATE_INTERVAL: Duration = Duration::from_millis(500);

/// The results of a replayed trace.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Calls, in the order of their ends.
    pub calls: Vec<Call>,
    /// The platform's states until the last arrival of the trace.
    pub states: Vec<PlatformState>,
    /// Load of the processors until the last sample.
    pub load: Load,
}

impl Replayed {
    /// The number of failed calls, and the answer to one of them. `None` if none failed.
    pub fn failures(&self) -> Option<String> {
        let mut all = self.calls.iter().filter_map(|call| call.outcome.as_ref().err());
        let first = all.next()?;
        Some(format!("{} calls failed, one with: {first}", 1 + all.count()))
    }
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function.
    pub function: String,
    /// Time from its arrival to its answer.
    pub took: Duration,
    /// When its answer arrived, since the beginning of the trace.
    pub ended: Duration,
    /// The platform's record of it; the answer, if it failed.
    pub outcome: Result<Record, String>,
}

/// The platform's record of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How its instance was started.
    pub start: String,
    /// Time until it had an instance.
    pub waited: Duration,
    /// Time in the instance, including loading of code.
    pub ran: Duration,
}

/// Replays a trace. A wrong answer is an error; a failed call is not.
pub async fn replay(
    client: &Client,
    trace: &Trace,
    functions: &Functions,
) -> Result<Replayed, BenchError> {
    let began = Instant::now();
    let mut replayed = Replayed::default();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut calls = JoinSet::new();
    for arrival in &trace.arrivals {
        let number = numbers.entry(&arrival.function).or_default();
        let Some(example) = functions.example(&arrival.function, *number).cloned() else {
            continue; // Cannot happen: the functions of a trace are known.
        };
        *number += 1;
        let (client, function, at) = (client.clone(), arrival.function.clone(), arrival.at);
        calls.spawn(async move {
            sleep_until(began + at).await;
            let answered = client.call(&function, &example.args).await;
            let ended = began.elapsed();
            (function, ended - at, ended, answered, example)
        });
    }
    let mut states = interval(STATE_INTERVAL);
    states.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let first = Ticks::now()?;
    let mut last = first;
    loop {
        tokio::select! {
            ended = calls.join_next() => {
                let Some(ended) = ended else { return Ok(replayed) };
                let (function, took, ended, answered, example) = ended.map_err(|_| super::task_failed("calling"))?;
                let outcome = parse_answer(answered);
                if let Ok((_, result)) = &outcome && !example.is_answered_by(result) {
                    let reason = format!("{} was answered by {result}", example.args);
                    return Err(BenchError::Answer { case: function, reason });
                }
                let outcome = outcome.map(|(record, _)| record);
                replayed.calls.push(Call { function, took, ended, outcome });
            }
            _ = states.tick(), if began.elapsed() < trace.span() => {
                let now = Ticks::now()?;
                let load = now.since(last);
                (last, replayed.load) = (now, now.since(first));
                replayed.states.push(PlatformState::from_snapshot(&client.snapshot().await?, load));
            }
        }
    }
}

/// The record of a call and its result; the answer, if it failed.
fn parse_answer(answered: Result<Answer, String>) -> Result<(Record, Value), String> {
    let answer = answered?;
    if answer.status != 200 {
        return Err(answer.describe());
    }
    let mut activation = answer.document();
    if activation["response"]["success"] != true {
        return Err(answer.describe());
    }
    let annotation = |key: &str| {
        let mut all = activation["annotations"].as_array().into_iter().flatten();
        all.find(|one| one["key"] == key).map_or(&Value::Null, |one| &one["value"])
    };
    let millis = |value: &Value| Duration::from_millis(value.as_u64().unwrap_or_default());
    let start = annotation("startKind").as_str().unwrap_or("unknown").to_owned();
    let (waited, ran) = (millis(annotation("waitTime")), millis(&activation["duration"]));
    Ok((Record { start, waited, ran }, activation["response"]["result"].take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_return_the_answer() {
        let answer = |status: u16, body: &'static str| Ok(Answer { status, body: body.into() });
        let good = r#"{"annotations": [{"key": "waitTime", "value": 7}, {"key": "startKind", "value": "warm"}],
                       "duration": 30, "response": {"success": true, "result": {"n": 1}}}"#;
        let bad = r#"{"response": {"success": false, "result": {"error": "it is tired"}}}"#;
        let [waited, ran] = [7, 30].map(Duration::from_millis);
        let record = Record { start: "warm".to_owned(), waited, ran };
        assert_eq!(parse_answer(answer(200, good)), Ok((record, serde_json::json!({"n": 1}))));
        assert_eq!(parse_answer(answer(502, "{}")), Err("status 502: {}".to_owned()));
        assert_eq!(parse_answer(Err("it is gone".to_owned())), Err("it is gone".to_owned()));
        for wrong in [bad, "<"] {
            let answer_text = format!("status 200: {wrong}");
            assert_eq!(parse_answer(answer(200, wrong)), Err(answer_text), "a failed call");
        }
    }
}
