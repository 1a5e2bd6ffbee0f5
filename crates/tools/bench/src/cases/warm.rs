//! The warm process itself, back to back and after a time of idleness.

use std::time::Duration;

use super::{Bench, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;

/// So long a warm process has had nothing to do before the call that counts.
pub const IDLE: Duration = Duration::from_millis(10);

/// Right after another call.
pub fn busy(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (uncounted, number) = (lane.number(), lane.number());
    let mut connection = first_call(lane, uncounted, "warm")?;
    let started = now_ns();
    call(lane, bench, &mut connection, number, ("warm", started))
}

/// After a time in which it had nothing to do.
pub fn idle(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let name = "warm-idle-10ms";
    let (uncounted, number) = (lane.number(), lane.number());
    let mut connection = first_call(lane, uncounted, name)?;
    std::thread::sleep(IDLE);
    let started = now_ns();
    call(lane, bench, &mut connection, number, (name, started))
}

/// The same, without a connection from before: whoever calls connects first, as to a process that is
/// started.
pub fn idle_unconnected(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let name = "warm-unconnected-10ms";
    let (uncounted, number) = (lane.number(), lane.number());
    drop(first_call(lane, uncounted, name)?);
    std::thread::sleep(IDLE);
    let started = now_ns();
    let mut connection = connect(lane)?;
    call(lane, bench, &mut connection, number, (name, started))
}

fn connect(lane: &Lane) -> Result<Connection, BenchError> {
    let socket = &lane.warm.parent.socket;
    Connection::open(socket).map_err(io("connect to", socket))
}

/// It does not count: after a fork the parent pays for its own pages once more.
fn first_call(lane: &Lane, number: u64, name: &str) -> Result<Connection, BenchError> {
    let mut connection = connect(lane)?;
    lane.subject.call(&mut connection, number, name, Answerer::Itself)?;
    Ok(connection)
}

fn call(
    lane: &Lane,
    bench: &mut Bench<'_>,
    connection: &mut Connection,
    number: u64,
    (name, started): (&str, u64),
) -> Result<(), BenchError> {
    let subject = &lane.subject;
    connection
        .send(&*subject.protocol, number, Answerer::Itself)
        .and_then(|()| connection.receive(&*subject.protocol))
        .map_err(|error| subject.wrong(name, &error))?;
    let response = us_since(started);
    subject.check(connection, number, name)?;
    bench.samples.add(&subject.case(name), metric::RESPONSE, "us", response);
    Ok(())
}
