//! Local fork: the warm process forks a child that answers.

use super::{Bench, Calls, Lane, Started, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns};
use crate::protocol::Answerer;
use crate::subject::Forking;
use crate::usage;

const START: &str = "local-fork";

/// Measures a local fork once.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let case = lane.subject.case(START);
    if let Forking::Impossible(reason) = lane.subject.forking {
        bench.samples.note(&case, metric::RESPONSE, "us", reason);
        return Ok(());
    }
    let numbers = lane.numbers();
    let (subject, warm) = (&lane.subject, &lane.warm);
    let socket = &warm.forker.as_ref().unwrap_or(&warm.parent).socket;
    let requested_ns = now_ns();
    let mut connection = Connection::open(socket).map_err(io("connect to", socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::ForkedChild)
        .map_err(|error| subject.wrong(START, &error))?;
    let mut child = 0;
    let pid_of = |pid| {
        if pid == warm.parent.pid() {
            return Err(subject.wrong(START, &"the parent answered instead of its child"));
        }
        child = pid;
        Ok(pid)
    };
    let started = Started { subject, start: START, numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, pid_of)?;
    drop(connection);
    usage::await_end(child);
    calls.record(bench.samples, &case, Some(calls.used.private + calls.used.page_tables));
    Ok(())
}
