//! A clone, requested from the agent as by any client.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use farfork_node::client::{Client, StartedClone};
use farfork_types::wire::{InheritedFd, RestoreCall};
use farfork_types::{Cid, Tiering};

use super::{Bench, Calls, Lane, Started, metric};
use crate::clones::{self, phase_metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns};
use crate::protocol::Answerer;
use crate::subject::{LISTEN_FD, Subject, WARM_CALLS};
use crate::testbed::Testbed;

/// How a clone is started.
#[derive(Clone, Debug)]
pub struct CloneOptions {
    /// The image.
    pub cid: Cid,
    /// Its pool, if not the testbed's.
    pub pool: Option<PathBuf>,
    /// The tiering policy.
    pub tiering: Tiering,
    /// The ghost that it is started in.
    pub ghost: Option<String>,
    /// Whether it is a profiling clone.
    pub is_profiled: bool,
    /// Whether it outlives the connection to the agent.
    pub is_detached: bool,
    /// Page faults that it had while its ghost was created, before it was requested.
    pub faults_before: u64,
}

/// A clone with a request on the way to it.
pub struct PendingClone {
    /// Where the answer arrives.
    pub connection: Connection,
    /// The clone.
    pub clone: StartedClone,
}

impl CloneOptions {
    /// A clone of `cid` from scratch: without a ghost.
    pub fn new(cid: Cid, tiering: Tiering) -> CloneOptions {
        CloneOptions {
            cid,
            pool: None,
            tiering,
            ghost: None,
            is_profiled: false,
            is_detached: false,
            faults_before: 0,
        }
    }

    /// Starts the clone with `listener` as its listening socket.
    pub fn start(
        &self,
        subject: &Subject,
        testbed: &Testbed,
        listener: &OwnedFd,
    ) -> Result<StartedClone, BenchError> {
        let null = File::open("/dev/null").map_err(io("open", "/dev/null"))?;
        let call = RestoreCall {
            pool: self.pool.clone().unwrap_or_else(|| testbed.pool().path().to_owned()),
            cid: self.cid.to_string(),
            name: subject.name.clone(),
            detach: self.is_detached,
            same_pid: false,
            ghost: self.ghost.clone(),
            inherit: vec![InheritedFd { process: None, fd: LISTEN_FD as u32 }],
            tiering: self.tiering,
            local_share: None,
            profile: self.is_profiled,
            requested_ns: now_ns(),
            timeout_s: farfork_types::wire::DEFAULT_TIMEOUT_S,
        };
        let fds = [null.as_fd(), null.as_fd(), null.as_fd(), listener.as_fd()];
        Ok(Client::connect(&testbed.node)?.restore(call, &fds)?)
    }

    /// Sends request `number` to a new socket, and starts a clone that listens on it.
    pub fn start_with_request(
        &self,
        subject: &Subject,
        testbed: &Testbed,
        number: u64,
        socket: &str,
    ) -> Result<PendingClone, BenchError> {
        let socket = testbed.socket(socket);
        let (listener, mut connection) =
            Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
        connection
            .send(&*subject.protocol, number, Answerer::Itself)
            .map_err(|error| subject.wrong("clone", &error))?;
        let clone = self.start(subject, testbed, &listener)?;
        Ok(PendingClone { connection, clone })
    }
}

/// Calls a profiling clone as often as the parent was called, with different inputs, to record which
/// pages clones touch.
pub fn learn(lane: &mut Lane, testbed: &Testbed) -> Result<(), BenchError> {
    learn_in(lane, testbed, None)
}

/// The same of the image in another pool than the testbed's.
pub fn learn_in(
    lane: &mut Lane,
    testbed: &Testbed,
    pool: Option<PathBuf>,
) -> Result<(), BenchError> {
    let new = CloneOptions::new(lane.warm.cid, Tiering::Mow);
    let way = CloneOptions { is_profiled: true, pool, ..new };
    lane.next_round();
    let (number, subject) = (lane.number(), &lane.subject);
    let PendingClone { mut connection, clone } =
        way.start_with_request(subject, testbed, number, "learn.sock")?;
    connection.receive(&*subject.protocol).map_err(|error| subject.wrong("learning", &error))?;
    subject.check(&connection, number, "learning")?;
    for call in 0..WARM_CALLS {
        let number = call * subject.protocol.same_input();
        subject.call(&mut connection, number, "learning", Answerer::Itself)?;
    }
    drop(connection);
    // The agent records its pages before it kills it.
    clones::end(clone, testbed)
}

/// A clone with the default policy. Its memory is measured in herds of clones.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = CloneOptions::new(lane.warm.cid, Tiering::Mow);
    measure_as(lane, bench, &way, "clone", Memory::Elsewhere)
}

/// A clone with copies of all its pages before it runs, as if it came from a file. Plan and agent are
/// the same, so that only the copying differs.
pub fn measure_copied(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = CloneOptions::new(lane.warm.cid, Tiering::Copy);
    measure_as(lane, bench, &way, "clone-copy", Memory::Here)
}

/// A clone that gets a copy of each page when it touches the page. MITOSIS (Wei et al., OSDI '23) does
/// so with pages of the parent.
pub fn measure_on_access(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = CloneOptions::new(lane.warm.cid, Tiering::Moa);
    measure_as(lane, bench, &way, "clone-moa", Memory::Here)
}

/// Where local memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In the clones whose time is measured.
    Here,
    /// In a herd of other clones.
    Elsewhere,
}

/// Measures a clone once, under the name `start`.
pub fn measure_as(
    lane: &mut Lane,
    bench: &mut Bench<'_>,
    way: &CloneOptions,
    start: &str,
    memory: Memory,
) -> Result<(), BenchError> {
    let case = lane.subject.case(start);
    let numbers = lane.numbers();
    let subject = &lane.subject;
    let requested_ns = now_ns();
    let PendingClone { mut connection, clone } =
        way.start_with_request(subject, bench.testbed, numbers.first, "clone.sock")?;
    let started = Started { subject, start, numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, |_| Ok(clone.running.pid))?
        .without_faults(way.faults_before);
    let samples = &mut *bench.samples;
    samples.add(&case, metric::RESTORE, "us", clone.running.restore_us);
    for (phase, us) in &clone.running.phases_us {
        samples.add(&case, phase_metric(phase), "us", *us);
    }
    if let Some(us) = clone.asked_us {
        samples.add(&case, metric::ASKED, "us", us);
    }
    let local = (memory == Memory::Here).then(|| calls.local_bytes());
    calls.record(samples, &case, local);
    drop(connection);
    clones::end(clone, bench.testbed)
}
