//! Figure 6: creation of a container, and a cold start in it.

use farfork_node::client::Client;

use super::starts;
use crate::cases::{Bench, Calls, Lane, Started, pause};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::usage;

const START: &str = "container";

/// Creates a container as for a ghost, and starts the function in its namespaces by exec.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    pause();
    lane.next_round();
    let (numbers, subject) = (lane.numbers(), &lane.subject);
    let case = subject.case(START);
    let begun_ns = now_ns();
    let ghost = starts::ghost(bench.testbed, None)?;
    bench.samples.add(&case, "container creation", "us", us_since(begun_ns));
    for (phase, us) in &ghost.phases_us {
        bench.samples.add(&case, creation_metric(phase), "us", *us);
    }
    let socket = bench.testbed.socket("container.sock");
    let requested_ns = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong(START, &error))?;
    let server = subject.start_by(&entering(ghost.init_pid), listener, &socket)?;
    let pid_of = |_| {
        let child = usage::child_of(server.pid());
        child.ok_or_else(|| subject.wrong(START, &"it is not a child of nsenter"))
    };
    let started = Started { subject, start: START, numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, pid_of)?;
    calls.record(bench.samples, &case, Some(calls.local_bytes()));
    drop(connection);
    // The function is killed with its PID namespace.
    Ok(Client::connect(&bench.testbed.node)?.stop_ghosts(Some(ghost.id))?)
}

/// The command that executes another in the namespaces of a process.
fn entering(pid: i32) -> [String; 8] {
    let target = pid.to_string();
    let words = ["nsenter", "--target", &target, "--mount", "--pid", "--net", "--ipc", "--uts"];
    words.map(str::to_owned)
}

fn creation_metric(phase: &str) -> &'static str {
    match phase {
        "bundle" => "creation phase: bundle",
        "container" => "creation phase: container",
        _ => "creation phase: its first process",
    }
}
