//! Replays a trace: calls go out when they are due, whether others have been answered or not.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::client::{Answer, Client};
use super::functions::Functions;
use super::look::Look;
use super::processors::{Load, Ticks};
use super::trace::Trace;
use crate::error::BenchError;

/// How often the platform is looked at.
pub const LOOK: Duration = Duration::from_millis(500);

/// What came of a trace.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Calls, in the order of their ends.
    pub calls: Vec<Call>,
    /// What was seen of the platform until the last call of the trace came.
    pub looks: Vec<Look>,
    /// What processors did until the last look.
    pub load: Load,
}

impl Replayed {
    /// How many calls were not answered rightly, and what was answered to one of them; nothing of none.
    pub fn failures(&self) -> Option<String> {
        let mut all = self.calls.iter().filter_map(|call| call.outcome.as_ref().err());
        let first = all.next()?;
        Some(format!("{} calls failed, one with: {first}", 1 + all.count()))
    }
}

/// What came of a call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of which function.
    pub function: String,
    /// From when it was due until its answer was here.
    pub took: Duration,
    /// When its answer was here, after the trace's beginning.
    pub ended: Duration,
    /// What the platform has on record of it, if it was answered rightly; else what was answered.
    pub outcome: Result<Record, String>,
}

/// What the platform has on record of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How it came to its instance.
    pub start: String,
    /// Until it had an instance.
    pub waited: Duration,
    /// In the instance, with loading the code where that was done.
    pub ran: Duration,
}

/// Replays; an answer that is wrong ends it, and one that fails does not.
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
            continue; // The trace's functions are known.
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
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let first = Ticks::now()?;
    let mut last = first;
    loop {
        tokio::select! {
            ended = calls.join_next() => {
                let Some(ended) = ended else { return Ok(replayed) };
                let (function, took, ended, answered, example) = ended.map_err(|_| super::lost("calling"))?;
                let outcome = understood(answered);
                if let Ok((_, result)) = &outcome && !example.is_answered_by(result) {
                    let reason = format!("{} was answered by {result}", example.args);
                    return Err(BenchError::Answer { case: function, reason });
                }
                let outcome = outcome.map(|(record, _)| record);
                replayed.calls.push(Call { function, took, ended, outcome });
            }
            _ = looks.tick(), if began.elapsed() < trace.span() => {
                let now = Ticks::now()?;
                let load = now.since(last);
                (last, replayed.load) = (now, now.since(first));
                replayed.looks.push(Look::at(&client.snapshot().await?, load));
            }
        }
    }
}

/// What is on record of a call, and its result; or what was answered instead.
fn understood(answered: Result<Answer, String>) -> Result<(Record, Value), String> {
    let answer = answered?;
    if answer.status != 200 {
        return Err(answer.in_words());
    }
    let mut activation = answer.document();
    if activation["response"]["success"] != true {
        return Err(answer.in_words());
    }
    let annotation = |key: &str| {
        let mut all = activation["annotations"].as_array().into_iter().flatten();
        all.find(|one| one["key"] == key).map_or(&Value::Null, |one| &one["value"])
    };
    let millis = |told: &Value| Duration::from_millis(told.as_u64().unwrap_or_default());
    let start = annotation("startKind").as_str().unwrap_or("unknown").to_owned();
    let (waited, ran) = (millis(annotation("waitTime")), millis(&activation["duration"]));
    Ok((Record { start, waited, ran }, activation["response"]["result"].take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_result_or_told_in_words() {
        let answer = |status: u16, body: &'static str| Ok(Answer { status, body: body.into() });
        let good = r#"{"annotations": [{"key": "waitTime", "value": 7}, {"key": "startKind", "value": "warm"}],
                       "duration": 30, "response": {"success": true, "result": {"n": 1}}}"#;
        let bad = r#"{"response": {"success": false, "result": {"error": "it is tired"}}}"#;
        let [waited, ran] = [7, 30].map(Duration::from_millis);
        let record = Record { start: "warm".to_owned(), waited, ran };
        assert_eq!(understood(answer(200, good)), Ok((record, serde_json::json!({"n": 1}))));
        assert_eq!(understood(answer(502, "{}")), Err("status 502: {}".to_owned()));
        assert_eq!(understood(Err("it is gone".to_owned())), Err("it is gone".to_owned()));
        for wrong in [bad, "<"] {
            let words = format!("status 200: {wrong}");
            assert_eq!(understood(answer(200, wrong)), Err(words), "a record of a call");
        }
    }
}
