//! The protocol of the Python function runtime, for the sample functions.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answerer, Protocol};

/// Consecutive requests with the same input: at least as many as the cases of a round make.
pub const SAME_INPUT: u64 = 64;
const TOLERANCE: f64 = 1e-5;

/// A process that runs one of `functions/`. Its answers must equal those of a fresh process.
#[derive(Debug)]
pub struct Function {
    examples: Vec<Example>,
}

/// One call of a function.
#[derive(Clone, Debug, Deserialize)]
pub struct Example {
    /// The input.
    pub args: Value,
    /// The part of the answer that is the same in all processes. Some answers contain times.
    pub answer: Value,
}

impl Function {
    /// A function with these calls, at least one, which are repeated.
    pub fn new(examples: Vec<Example>) -> Function {
        Function { examples }
    }

    /// The bytes of an operation of the runtime.
    pub fn operation(name: &str) -> Vec<u8> {
        line(&json!({"id": name, "op": name}))
    }

    fn example(&self, number: u64) -> &Example {
        &self.examples[(number / SAME_INPUT) as usize % self.examples.len()]
    }
}

fn line(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}

impl Protocol for Function {
    fn request(&self, number: u64, _: Answerer) -> Vec<u8> {
        line(&json!({"id": number, "op": "run", "args": self.example(number).args}))
    }

    fn is_complete(&self, answer: &[u8]) -> bool {
        answer.ends_with(b"\n")
    }

    fn check(&self, number: u64, answer: &[u8]) -> Result<i32, String> {
        let answer: Value =
            serde_json::from_slice(answer).map_err(|error| format!("invalid JSON: {error}"))?;
        if answer["ok"] != true || answer["id"] != number {
            return Err(format!("request {number}: got {answer}"));
        }
        let example = self.example(number);
        if !example.is_answered_by(&answer["result"]) {
            return Err(format!(
                "request {number}: got {}, a fresh process answers {}",
                answer["result"], example.answer
            ));
        }
        answer["pid"].as_i64().map(|pid| pid as i32).ok_or_else(|| format!("no pid in {answer}"))
    }

    fn same_input(&self) -> u64 {
        SAME_INPUT
    }
}

impl Example {
    /// Whether `found` is the expected answer. Numbers may differ by rounding.
    pub fn is_answered_by(&self, found: &Value) -> bool {
        agrees(&self.answer, found)
    }
}

/// Whether an answer contains everything that is expected. Numbers may differ by rounding.
fn agrees(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|other| agrees(value, other))),
        (Value::Array(wanted), Value::Array(found)) => {
            wanted.len() == found.len() && wanted.iter().zip(found).all(|(a, b)| agrees(a, b))
        }
        (Value::Number(wanted), Value::Number(found)) => match (wanted.as_f64(), found.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(1.0),
            _ => false,
        },
        _ => wanted == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function() -> Function {
        let example = |x: f64| Example {
            args: json!({"x": x}),
            answer: json!({"vectors": [[x, 0.25]], "name": "n"}),
        };
        Function::new(vec![example(0.5), example(0.75)])
    }

    fn answer(number: u64, vector: [f64; 2]) -> Vec<u8> {
        let result = json!({"vectors": [vector], "name": "n", "mflops": 7.5});
        line(&json!({"id": number, "ok": true, "result": result, "pid": 9}))
    }

    #[test]
    fn answers_must_equal_those_of_a_fresh_process() {
        let function = function();
        let other = SAME_INPUT;
        assert_eq!(function.check(3, &answer(3, [0.5, 0.25])), Ok(9));
        assert_eq!(function.check(other, &answer(other, [0.750001, 0.25])), Ok(9));
        assert_eq!(function.check(2 * other, &answer(2 * other, [0.5, 0.25])), Ok(9));
        assert!(function.check(3, &answer(3, [0.5, 0.26])).is_err());
        assert!(function.check(3, &answer(3, [0.75, 0.25])).is_err(), "the answer to another");
        assert!(function.check(4, &answer(3, [0.5, 0.25])).is_err(), "an older answer");
        assert!(function.check(4, b"{\"id\": 4, \"ok\": false, \"error\": \"broken\"}\n").is_err());
        let result = json!({"vectors": [[0.5, 0.25]]});
        let lacking = line(&json!({"id": 3, "ok": true, "result": result, "pid": 9}));
        assert!(function.check(3, &lacking).is_err(), "a key is missing");
    }

    #[test]
    fn requests_in_a_row_have_the_same_input() {
        let function = function();
        let args = |number| {
            let request = function.request(number, Answerer::Itself);
            serde_json::from_slice::<Value>(&request).unwrap()["args"].clone()
        };
        assert_eq!(args(0), args(SAME_INPUT - 1));
        assert_ne!(args(0), args(SAME_INPUT));
        assert!(function.is_complete(&Function::operation("prepare")));
    }
}
