//! Local fork: the warm process forks a child that answers.

use super::{Bench, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::subject::Forking;
use crate::usage;

pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let case = lane.subject.case("local-fork");
    if let Forking::Impossible(reason) = lane.subject.forking {
        bench.samples.note(&case, metric::RESPONSE, "us", reason);
        return Ok(());
    }
    let (first, second) = (lane.number(), lane.number());
    let (subject, warm) = (&lane.subject, &lane.warm);
    let socket = &warm.forker.as_ref().unwrap_or(&warm.parent).socket;
    let wrong = |error: std::io::Error| subject.wrong("local-fork", &error);
    let started = now_ns();
    let mut connection = Connection::open(socket).map_err(io("connect to", socket))?;
    connection.send(&*subject.protocol, first, Answerer::ForkedChild).map_err(wrong)?;
    connection.receive(&*subject.protocol).map_err(wrong)?;
    let response = us_since(started);
    let pid = subject.check(&connection, first, "local-fork")?;
    let started = now_ns();
    connection.send(&*subject.protocol, second, Answerer::Itself).map_err(wrong)?;
    connection.receive(&*subject.protocol).map_err(wrong)?;
    let again = us_since(started);
    subject.check(&connection, second, "local-fork")?;
    if pid == warm.parent.pid() {
        return Err(subject.wrong("local-fork", &"the parent answered instead of its child"));
    }
    let used = usage::of(pid);
    drop(connection);
    usage::await_end(pid);
    let samples = &mut *bench.samples;
    samples.add(&case, metric::RESPONSE, "us", response);
    samples.add(&case, metric::WARM, "us", again);
    samples.add(&case, metric::EXCESS, "us", response - again);
    samples.add(&case, metric::LOCAL, "bytes", (used.private + used.page_tables) as f64);
    samples.add(&case, metric::FAULTS, "count", used.faults as f64);
    Ok(())
}
