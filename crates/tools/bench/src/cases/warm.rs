//! The warm process itself, back to back and after idle time.

use std::time::Duration;

use super::{Bench, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;

/// Idle time of a warm process before the measured call.
pub const IDLE: Duration = Duration::from_millis(10);

/// Measures a call right after another one.
pub fn busy(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (uncounted, number) = (lane.number(), lane.number());
    let mut connection = first_call(lane, uncounted, "warm")?;
    let call = MeasuredCall { name: "warm", number, started_ns: now_ns() };
    call.measure(lane, bench, &mut connection)
}

/// Measures a call after idle time.
pub fn idle(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let name = "warm-idle-10ms";
    let (uncounted, number) = (lane.number(), lane.number());
    let mut connection = first_call(lane, uncounted, name)?;
    std::thread::sleep(IDLE);
    let call = MeasuredCall { name, number, started_ns: now_ns() };
    call.measure(lane, bench, &mut connection)
}

/// The same on a new connection, as with a process that is started.
pub fn idle_unconnected(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let name = "warm-unconnected-10ms";
    let (uncounted, number) = (lane.number(), lane.number());
    drop(first_call(lane, uncounted, name)?);
    std::thread::sleep(IDLE);
    let call = MeasuredCall { name, number, started_ns: now_ns() };
    let mut connection = connect(lane)?;
    call.measure(lane, bench, &mut connection)
}

fn connect(lane: &Lane) -> Result<Connection, BenchError> {
    let socket = &lane.warm.parent.socket;
    Connection::open(socket).map_err(io("connect to", socket))
}

/// An uncounted call: after a local fork the parent takes faults on its own pages.
fn first_call(lane: &Lane, number: u64, name: &str) -> Result<Connection, BenchError> {
    let mut connection = connect(lane)?;
    lane.subject.call(&mut connection, number, name, Answerer::Itself)?;
    Ok(connection)
}

/// A call whose clock runs.
struct MeasuredCall<'a> {
    name: &'a str,
    number: u64,
    started_ns: u64,
}

impl MeasuredCall<'_> {
    fn measure(
        &self,
        lane: &Lane,
        bench: &mut Bench<'_>,
        connection: &mut Connection,
    ) -> Result<(), BenchError> {
        let subject = &lane.subject;
        connection
            .send(&*subject.protocol, self.number, Answerer::Itself)
            .and_then(|()| connection.receive(&*subject.protocol))
            .map_err(|error| subject.wrong(self.name, &error))?;
        let response_us = us_since(self.started_ns);
        subject.check(connection, self.number, self.name)?;
        bench.samples.add(&subject.case(self.name), metric::RESPONSE, "us", response_us);
        Ok(())
    }
}
