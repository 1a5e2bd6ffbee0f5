//! Starts by CRIU.

use std::fs;

use super::{Bench, Calls, Lane, Started, metric};
use crate::criu::{Restored, dump};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns};
use crate::protocol::Answerer;
use crate::samples::Samples;
use crate::usage;

pub use crate::criu::Program;

const PAGE: f64 = 4096.0;

/// Adds rows with the reason why CRIU was not measured. Returns notes: its version, or the reasons.
pub fn note<'a>(lanes: impl IntoIterator<Item = &'a Lane>, samples: &mut Samples) -> Vec<String> {
    let mut notes = Vec::new();
    for lane in lanes {
        let (case, note) = match &lane.criu {
            Ok(images) => {
                notes.push(format!("Compared with CRIU {}.", images.program.version));
                continue;
            }
            Err(reason) => (lane.subject.case("criu"), reason),
        };
        samples.note(&case, metric::RESPONSE, "us", note);
        notes.push(format!("{} was not compared with CRIU: {note}.", lane.subject.name));
    }
    notes.dedup();
    notes
}

/// Restores the images once, for one request and the next.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let numbers = lane.numbers();
    let (subject, Ok(images)) = (&lane.subject, &lane.criu) else { return Ok(()) };
    let socket = bench.testbed.socket("criu.sock");
    let requested_ns = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong("criu", &error))?;
    let restored = Restored::start(images, listener, subject)?;
    let mut child = 0;
    let pid_of = |_| {
        child = restored.pid().ok_or_else(|| subject.wrong("criu", &"cannot find its process"))?;
        Ok(child)
    };
    let started = Started { subject, start: "criu", numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, pid_of)?;
    drop(connection);
    drop(restored);
    usage::await_end(child);
    images.relink_socket(&lane.warm.parent)?;
    calls.record(bench.samples, &subject.case("criu"), Some(calls.local_bytes()));
    Ok(())
}

/// Dumps the warm process again, to measure the time.
pub fn measure_dump(lane: &Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (subject, Ok(images)) = (&lane.subject, &lane.criu) else { return Ok(()) };
    let directory = images.program.images.join("again");
    let dump = dump(&images.program, &directory, lane.warm.parent.pid());
    let dump = dump.map_err(|reason| subject.wrong("criu-dump", &reason))?;
    fs::remove_dir_all(&directory).map_err(io("remove", &directory))?;
    let (case, bytes) = (subject.case("criu-dump"), dump.stats.pages as f64 * PAGE);
    let samples = &mut *bench.samples;
    samples.add(&case, "bytes copied", "bytes", bytes);
    samples.add(&case, "whole checkpoint", "bytes/s", bytes * 1e6 / dump.us);
    samples.add(&case, "time frozen", "us", dump.stats.frozen_us as f64);
    Ok(())
}
