//! Figure 6: making a container, and a cold start in it.

use farfork_node::client::Client;

use super::starts;
use crate::cases::{Bench, Calls, Lane, pause};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::usage;

const START: &str = "container";

/// Makes one as ghosts are made, and starts the function in its namespaces as one would without
/// farfork.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    pause();
    lane.next_round();
    let (numbers, subject) = (lane.numbers(), &lane.subject);
    let case = subject.case(START);
    let asked = now_ns();
    let ghost = starts::ghost(bench.testbed, None)?;
    bench.samples.add(&case, "container creation", "us", us_since(asked));
    for (phase, us) in &ghost.phases_us {
        bench.samples.add(&case, creation_metric(phase), "us", *us);
    }
    let socket = bench.testbed.socket("container.sock");
    let started = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong(START, &error))?;
    let server = subject.start_by(&entering(ghost.init_pid), listener, &socket)?;
    let of_itself = |_| {
        let child = usage::child_of(server.pid());
        child.ok_or_else(|| subject.wrong(START, &"it is not a child of nsenter"))
    };
    let calls = Calls::make((subject, START), &mut connection, numbers, started, of_itself)?;
    calls.record(bench.samples, &case, Some(calls.local_bytes()));
    drop(connection);
    // The function ends with its namespaces.
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
