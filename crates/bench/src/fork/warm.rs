//! The warm process itself, back to back and after a time of idleness.

use std::time::Duration;

use super::{Bench, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;

/// So long a warm process has had nothing to do before the call that counts.
const IDLE: Duration = Duration::from_millis(10);

pub fn busy(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    call(lane, bench, "warm", None)
}

pub fn idle(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    call(lane, bench, "warm-idle-10ms", Some(IDLE))
}

/// An uncounted call comes first: after a fork the parent pays for its own pages once more.
fn call(
    lane: &mut Lane,
    bench: &mut Bench<'_>,
    name: &str,
    idle: Option<Duration>,
) -> Result<(), BenchError> {
    let (uncounted, number) = (lane.number(), lane.number());
    let (subject, socket) = (&lane.subject, &lane.warm.parent.socket);
    let mut connection = Connection::open(socket).map_err(io("connect to", socket))?;
    subject.call(&mut connection, uncounted, name, Answerer::Itself)?;
    if let Some(idle) = idle {
        std::thread::sleep(idle);
    }
    let started = now_ns();
    connection
        .send(&*subject.protocol, number, Answerer::Itself)
        .and_then(|()| connection.receive(&*subject.protocol))
        .map_err(|error| subject.wrong(name, &error))?;
    let response = us_since(started);
    subject.check(&connection, number, name)?;
    bench.samples.add(&subject.case(name), metric::RESPONSE, "us", response);
    Ok(())
}
