//! What happens to machines, as JSON.

use farfork_pageserver::{Counters, Event};
use serde_json::{Value, json};

/// One document: `event`, and what belongs to it. Times are milliseconds.
pub(super) fn json(event: &Event) -> Value {
    match event {
        Event::Listening { path } => json!({ "event": "listening", "path": path }),
        Event::Started { machine, pid, bytes } => {
            json!({ "event": "started", "machine": machine, "pid": pid, "bytes": bytes })
        }
        Event::Filled { machine, pid, pages, took } => {
            let took_ms = took.as_secs_f64() * 1e3;
            json!({
                "event": "filled", "machine": machine, "pid": pid, "pages": pages, "took_ms": took_ms,
            })
        }
        Event::Adapted { pages, forgotten } => {
            json!({ "event": "adapted", "pages": pages, "forgotten": forgotten })
        }
        Event::Ended { machine, pid, counters } => ended(*machine, *pid, counters),
        Event::Refused { pid, why, is_stopped } => {
            let why = why.to_string();
            json!({ "event": "refused", "pid": pid, "why": why, "is_stopped": is_stopped })
        }
        Event::Failed { machine, pid, why } => {
            json!({ "event": "failed", "machine": machine, "pid": pid, "why": why })
        }
        Event::Replaced { status, machines, took } => {
            let status = status.map(|status| status.to_string());
            let took_ms = took.as_secs_f64() * 1e3;
            json!({
                "event": "replaced", "status": status, "machines": machines, "took_ms": took_ms,
            })
        }
        Event::Stopping { machines } => json!({ "event": "stopping", "machines": machines }),
        Event::Killed { machine, pid, is_killed } => {
            json!({ "event": "killed", "machine": machine, "pid": pid, "is_killed": is_killed })
        }
    }
}

fn ended(machine: u64, pid: Option<i32>, counters: &Counters) -> Value {
    let mut document = json!(counters);
    document["event"] = "ended".into();
    document["machine"] = machine.into();
    document["pid"] = pid.into();
    document
}
