//! The language of the Python function runtime, spoken to the sample function `embed`.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::{Answerer, Protocol};

/// Different requests; more of them start over.
pub const TEXTS: u64 = 64;
const TOLERANCE: f64 = 1e-5;

/// A process that runs `functions/embed`. What it answered first, a process started afresh must
/// answer too, and so must every clone.
#[derive(Debug)]
pub struct Runtime {
    references: [OnceLock<Vec<f64>>; TEXTS as usize],
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime { references: [const { OnceLock::new() }; TEXTS as usize] }
    }
}

impl Runtime {
    /// What the function is called with in request `number`; all have as many tokens.
    pub fn arguments(number: u64) -> Value {
        let (first, second) = (number % 8, number / 8 % 8);
        json!({"texts": [format!("{} is a word and {} is one too", WORDS[first as usize],
            WORDS[second as usize])]})
    }

    /// The bytes of an operation that is no call of the function.
    pub fn operation(name: &str) -> Vec<u8> {
        line(&json!({"id": name, "op": name}))
    }
}

const WORDS: [&str; 8] = ["house", "water", "music", "winter", "window", "paper", "river", "stone"];

fn line(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}

impl Protocol for Runtime {
    fn request(&self, number: u64, _: Answerer) -> Vec<u8> {
        line(&json!({"id": number, "op": "run", "args": Runtime::arguments(number)}))
    }

    fn is_complete(&self, answer: &[u8]) -> bool {
        answer.ends_with(b"\n")
    }

    fn check(&self, number: u64, answer: &[u8]) -> Result<i32, String> {
        let answer: Value =
            serde_json::from_slice(answer).map_err(|error| format!("no JSON: {error}"))?;
        if answer["ok"] != true || answer["id"] != number {
            return Err(format!("request {number} was answered {answer}"));
        }
        let vector: Option<Vec<f64>> = answer["result"]["embeddings"][0]
            .as_array()
            .and_then(|numbers| numbers.iter().map(Value::as_f64).collect());
        let vector = vector.ok_or_else(|| format!("no embedding in {answer}"))?;
        let reference = self.references[(number % TEXTS) as usize].get_or_init(|| vector.clone());
        if !are_close(reference, &vector) {
            return Err(format!("request {number} was answered by another vector than before"));
        }
        answer["pid"].as_i64().map(|pid| pid as i32).ok_or_else(|| format!("no pid in {answer}"))
    }
}

fn are_close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() <= TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(number: u64, vector: [f64; 2]) -> Vec<u8> {
        let result = json!({"embeddings": [vector]});
        line(&json!({"id": number, "ok": true, "result": result, "pid": 9}))
    }

    #[test]
    fn later_answers_are_held_against_the_first() {
        let runtime = Runtime::default();
        assert_eq!(runtime.check(3, &answer(3, [0.5, 0.25])), Ok(9));
        assert_eq!(runtime.check(3 + TEXTS, &answer(3 + TEXTS, [0.500001, 0.25])), Ok(9));
        assert!(runtime.check(3, &answer(3, [0.5, 0.26])).is_err());
        assert!(runtime.check(4, &answer(3, [0.5, 0.25])).is_err(), "the answer to another");
        assert!(runtime.check(4, b"{\"id\": 4, \"ok\": false, \"error\": \"broken\"}\n").is_err());
    }

    #[test]
    fn requests_differ() {
        let texts: std::collections::BTreeSet<String> =
            (0..TEXTS).map(|number| Runtime::arguments(number).to_string()).collect();
        assert_eq!(texts.len() as u64, TEXTS);
        assert!(Runtime::default().is_complete(&Runtime::operation("prepare")));
    }
}
