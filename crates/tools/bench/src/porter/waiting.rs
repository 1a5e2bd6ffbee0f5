//! Memory of the gateway for calls that wait with large arguments.

use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::platform::Platform;
use crate::error::BenchError;

/// How many platforms are measured.
pub const ROUNDS: usize = 6;
/// What is measured.
pub const EACH: &str = "memory of the gateway for each waiting call of 1 MiB";
/// At most half as much again as the arguments.
pub const MOST_BYTES_EACH: f64 = 1.5 * (1 << 20) as f64;
/// Calls that wait.
const CALLS: usize = 64;
/// Longer than the calls take to be queued.
const CODE: &str =
    "import time\ndef main(args):\n    time.sleep(5 if args else 0)\n    return {}\n";
const PATH: &str = "/api/v1/namespaces/_/actions/waits";

/// Queues calls of a function that sleeps; returns by how much each has made the gateway grow. The
/// platform has room for four instances, so that most of the calls wait.
pub async fn bytes_each(platform: &Platform) -> Result<f64, BenchError> {
    let client = &platform.client;
    let exec = json!({"kind": "python:default", "code": CODE});
    client.deploy("waits", &json!({"exec": exec, "limits": {"memory": 256}})).await?;
    let first = client.call("waits", &json!({})).await;
    first.map_err(|reason| failed("calling a function", reason))?;
    let before = platform.anonymous_bytes()?;
    let body = large();
    for _ in 0..CALLS {
        let path = format!("{PATH}?blocking=false");
        let answer = client.send(Method::POST, &path, body.clone()).await;
        let answer = answer.map_err(|reason| failed("queueing a call", reason))?;
        if answer.status != 202 {
            return Err(failed("queueing a call", answer.describe()));
        }
    }
    let grown = platform.anonymous_bytes()?.saturating_sub(before);
    Ok(grown as f64 / CALLS as f64)
}

fn failed(doing: &str, reason: String) -> BenchError {
    BenchError::Platform { doing: doing.to_owned(), reason }
}

/// Of 1 MiB, the arguments that as a tree of values would take most.
fn large() -> Bytes {
    let mut text = String::from("{\"a\":[");
    while text.len() < (1 << 20) - 16 {
        text.push_str("{\"\":0},");
    }
    text.push_str("0]}");
    text.into()
}
