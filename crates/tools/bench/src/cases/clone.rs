//! A clone, asked of the agent as any client asks.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use farfork_node::client::{Client, StartedClone};
use farfork_types::wire::{InheritedFd, RestoreCall};
use farfork_types::{Cid, Tiering};

use super::{Bench, Calls, Lane, metric};
use crate::clones::{self, phase_metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns};
use crate::protocol::Answerer;
use crate::subject::{LISTEN_FD, Subject, WARM_CALLS};
use crate::testbed::Testbed;

/// What clone is asked for.
#[derive(Clone, Debug)]
pub struct Way {
    /// Its image.
    pub cid: Cid,
    /// Where that is, if not in the testbed's pool.
    pub pool: Option<PathBuf>,
    /// When its pages become local.
    pub tiering: Tiering,
    /// The ghost that it is started in.
    pub ghost: Option<String>,
    /// Whether it is watched, to tell which pages it touches.
    pub is_profiled: bool,
    /// Whether it outlives the connection to the agent.
    pub is_detached: bool,
    /// Page faults that it had while its ghost was made, before it was asked for.
    pub faults_before: u64,
}

/// A clone with a request on its way to it.
pub struct Asked {
    /// Where the answer comes.
    pub connection: Connection,
    /// The clone.
    pub clone: StartedClone,
}

impl Way {
    /// A clone from scratch of `cid`.
    pub fn new(cid: Cid, tiering: Tiering) -> Way {
        Way {
            cid,
            pool: None,
            tiering,
            ghost: None,
            is_profiled: false,
            is_detached: false,
            faults_before: 0,
        }
    }

    /// Starts the clone, its listening socket being `listener`.
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
            profile: self.is_profiled,
            requested_ns: now_ns(),
            timeout_s: farfork_types::wire::DEFAULT_TIMEOUT_S,
        };
        let fds = [null.as_fd(), null.as_fd(), null.as_fd(), listener.as_fd()];
        Ok(Client::connect(&testbed.node)?.restore(call, &fds)?)
    }

    /// Sends request `number` to a socket whose accepting end goes to the new clone.
    pub fn ask(
        &self,
        subject: &Subject,
        testbed: &Testbed,
        number: u64,
        socket: &str,
    ) -> Result<Asked, BenchError> {
        let socket = testbed.socket(socket);
        let (listener, mut connection) =
            Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
        connection
            .send(&*subject.protocol, number, Answerer::Itself)
            .map_err(|error| subject.wrong("clone", &error))?;
        let clone = self.start(subject, testbed, &listener)?;
        Ok(Asked { connection, clone })
    }
}

/// Has a watched clone make different calls, as many as the parent had, so that it is known which pages
/// clones touch.
pub fn learn(lane: &mut Lane, testbed: &Testbed) -> Result<(), BenchError> {
    let way = Way { is_profiled: true, ..Way::new(lane.warm.cid, Tiering::Mow) };
    lane.next_round();
    let (number, subject) = (lane.number(), &lane.subject);
    let Asked { mut connection, clone } = way.ask(subject, testbed, number, "learn.sock")?;
    connection.receive(&*subject.protocol).map_err(|error| subject.wrong("learning", &error))?;
    subject.check(&connection, number, "learning")?;
    for call in 0..WARM_CALLS {
        let number = call * subject.protocol.same_input();
        subject.call(&mut connection, number, "learning", Answerer::Itself)?;
    }
    drop(connection);
    // The agent looks at its pages before it ends it.
    clones::end(clone, testbed)
}

/// A clone as farfork starts it by default. Its memory is taken of many that live at the same time.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = Way::new(lane.warm.cid, Tiering::Mow);
    measure_as(lane, bench, &way, "clone", Memory::Elsewhere)
}

/// A clone that has copies of all its pages before it runs, as if it came from a file: the same plan
/// and the same agent, so that only the copying differs.
pub fn measure_copied(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = Way::new(lane.warm.cid, Tiering::Copy);
    measure_as(lane, bench, &way, "clone-copy", Memory::Here)
}

/// A clone that gets a copy of every page that it touches, when it does: what MITOSIS (Wei et al.,
/// OSDI '23) does with pages of its parent.
pub fn measure_on_access(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let way = Way::new(lane.warm.cid, Tiering::Moa);
    measure_as(lane, bench, &way, "clone-moa", Memory::Here)
}

/// Where a clone's local memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Of the clones whose time is measured.
    Here,
    /// Of others, that live at the same time.
    Elsewhere,
}

/// Measures any clone once, under the name of a case.
pub fn measure_as(
    lane: &mut Lane,
    bench: &mut Bench<'_>,
    way: &Way,
    start: &str,
    memory: Memory,
) -> Result<(), BenchError> {
    let case = lane.subject.case(start);
    let numbers = lane.numbers();
    let subject = &lane.subject;
    let started = now_ns();
    let asked = way.ask(subject, bench.testbed, numbers.first, "clone.sock")?;
    let Asked { mut connection, clone } = asked;
    let pid = |_| Ok(clone.running.pid);
    let calls = Calls::make((subject, start), &mut connection, numbers, started, pid)?
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
