//! Traces are read as they are published, and simulated by the platform's own scheduler.

mod bounded;
mod conservation;
mod formats;
mod oracle;
mod paper;
mod runs;
mod shares;
mod starts;
mod synthetic;
mod theory;

use std::path::{Path, PathBuf};

use farfork_sim::Settings;
use farfork_sim::trace::{Function, Request, Trace};

/// A file of the samples.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Two nodes of 4 GiB, a pool of 4 GiB, and the platform's own policies.
fn settings() -> Settings {
    Settings { nodes: 2, node_bytes: 4 << 30, pool_bytes: 4 << 30, ..Settings::default() }
}

/// A trace of calls: function, arrival and duration.
fn trace(functions: usize, calls: &[(u32, u64, u64)]) -> Trace {
    let function = |index: usize| Function {
        name: format!("function-{index}"),
        owner: String::new(),
        memory_bytes: None,
    };
    let request = |(function, arrival_us, duration_us): &(u32, u64, u64)| Request {
        arrival_us: *arrival_us,
        function: *function,
        duration_us: Some(*duration_us),
        payload_bytes: 0,
    };
    let mut requests: Vec<Request> = calls.iter().map(request).collect();
    requests.sort_by_key(|request| request.arrival_us);
    Trace {
        functions: (0..functions).map(function).collect(),
        requests,
        rows_malformed: 0,
        malformed: Vec::new(),
        notes: Vec::new(),
        utilisation: Default::default(),
        sha256: String::new(),
    }
}
