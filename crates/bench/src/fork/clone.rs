//! A clone from scratch, asked of the agent as any client asks.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use farfork_node::client::{Client, StartedClone};
use farfork_types::Tiering;
use farfork_types::wire::{InheritedFd, RestoreCall};

use super::{Bench, Lane, metric};
use crate::clones::{self, phase_metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::subject::LISTEN_FD;
use crate::testbed::Testbed;
use crate::usage;

/// A clone with a request on its way to it.
pub struct Asked {
    pub connection: Connection,
    pub clone: StartedClone,
}

/// A clone as farfork starts it by default.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    measure_under(lane, bench, Tiering::Mow, "clone")
}

/// A clone that has copies of all its pages before it runs, as if it came from a file: the same plan
/// and the same agent, so that only the copying differs.
pub fn measure_copied(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    measure_under(lane, bench, Tiering::Copy, "clone-copy")
}

/// A clone that gets a copy of every page that it touches, when it does: what MITOSIS (Wei et al.,
/// OSDI '23) does with pages of its parent.
pub fn measure_on_access(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    measure_under(lane, bench, Tiering::Moa, "clone-moa")
}

fn measure_under(
    lane: &mut Lane,
    bench: &mut Bench<'_>,
    tiering: Tiering,
    start: &str,
) -> Result<(), BenchError> {
    let case = lane.subject.case(start);
    let (first, second) = (lane.number(), lane.number());
    let subject = &lane.subject;
    let wrong = |error: std::io::Error| subject.wrong(start, &error);
    let started = now_ns();
    let Asked { mut connection, clone } = ask(lane, bench.testbed, first, "clone.sock", tiering)?;
    connection.receive(&*subject.protocol).map_err(wrong)?;
    let response = us_since(started);
    subject.check(&connection, first, start)?;
    let used = usage::of(clone.running.pid);
    let started = now_ns();
    connection.send(&*subject.protocol, second, Answerer::Itself).map_err(wrong)?;
    connection.receive(&*subject.protocol).map_err(wrong)?;
    let again = us_since(started);
    subject.check(&connection, second, start)?;
    let faults = usage::of(clone.running.pid).faults;
    let samples = &mut *bench.samples;
    samples.add(&case, metric::RESTORE, "us", clone.running.restore_us);
    for (phase, us) in &clone.running.phases_us {
        samples.add(&case, phase_metric(phase), "us", *us);
    }
    if tiering != Tiering::Mow {
        // That of clones by default is taken of many that live at the same time.
        samples.add(&case, metric::LOCAL, "bytes", (used.anonymous + used.page_tables) as f64);
    }
    samples.add(&case, metric::RESPONSE, "us", response);
    samples.add(&case, metric::WARM, "us", again);
    samples.add(&case, metric::EXCESS, "us", response - again);
    samples.add(&case, metric::FAULTS, "count", faults as f64);
    drop(connection);
    clones::end(clone, bench.testbed)
}

/// Sends request `number` to a socket whose accepting end goes to a new clone.
pub fn ask(
    lane: &Lane,
    testbed: &Testbed,
    number: u64,
    socket: &str,
    tiering: Tiering,
) -> Result<Asked, BenchError> {
    let (subject, socket) = (&lane.subject, testbed.path(socket));
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, number, Answerer::Itself)
        .map_err(|error| subject.wrong("clone", &error))?;
    let clone = start(lane, testbed, &listener, tiering)?;
    Ok(Asked { connection, clone })
}

fn start(
    lane: &Lane,
    testbed: &Testbed,
    listener: &OwnedFd,
    tiering: Tiering,
) -> Result<StartedClone, BenchError> {
    let null = File::open("/dev/null").map_err(io("open", "/dev/null"))?;
    let call = RestoreCall {
        pool: testbed.pool.path().to_owned(),
        cid: lane.warm.cid.to_string(),
        name: lane.subject.name.clone(),
        detach: false,
        same_pid: false,
        ghost: None,
        inherit: vec![InheritedFd { process: None, fd: LISTEN_FD as u32 }],
        tiering,
        profile: false,
        requested_ns: now_ns(),
        timeout_s: farfork_types::wire::DEFAULT_TIMEOUT_S,
    };
    let fds = [null.as_fd(), null.as_fd(), null.as_fd(), listener.as_fd()];
    Ok(Client::connect(&testbed.node)?.restore(call, &fds)?)
}
