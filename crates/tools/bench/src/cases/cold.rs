//! Cold start: from `exec` to the first answer.

use super::{Bench, Calls, Lane, Started};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns};
use crate::protocol::Answerer;

const START: &str = "cold";

/// Measures a cold start once.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (numbers, subject) = (lane.numbers(), &lane.subject);
    let case = subject.case(START);
    let socket = bench.testbed.socket("cold.sock");
    let requested_ns = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong(START, &error))?;
    let server = subject.start(listener, &socket)?;
    let started = Started { subject, start: START, numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, |_| Ok(server.pid()))?;
    calls.record(bench.samples, &case, Some(calls.local_bytes()));
    bench.samples.add(&case, "resident memory", "bytes", calls.used.resident as f64);
    Ok(())
}
