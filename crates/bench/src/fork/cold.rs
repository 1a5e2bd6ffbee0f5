//! Cold start: from `exec` to the first answer.

use super::{Bench, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::usage;

pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (number, subject) = (lane.number(), &lane.subject);
    let case = subject.case("cold");
    let socket = bench.testbed.path("cold.sock");
    let started = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, number, Answerer::Itself)
        .map_err(|error| subject.wrong("cold", &error))?;
    let server = subject.start(listener, &socket)?;
    connection.receive(&*subject.protocol).map_err(|error| subject.wrong("cold", &error))?;
    bench.samples.add(&case, metric::RESPONSE, "us", us_since(started));
    subject.check(&connection, number, "cold")?;
    let used = usage::of(server.pid());
    let local = (used.anonymous + used.page_tables) as f64;
    bench.samples.add(&case, metric::LOCAL, "bytes", local);
    bench.samples.add(&case, "resident memory", "bytes", used.resident as f64);
    Ok(())
}
