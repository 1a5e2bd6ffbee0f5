//! The memory of clones before their first call.

use super::{GRACE, WHOLE, end, metric};
use crate::cases::clone::CloneOptions;
use crate::cases::{Bench, metric as common};
use crate::error::{BenchError, io};
use crate::exchange::listen;
use crate::subject::Subject;
use crate::usage;

/// Starts clones that are not called, and measures the memory of each.
pub fn before_first_call(
    subject: &Subject,
    bench: &mut Bench<'_>,
    way: &CloneOptions,
    count: usize,
) -> Result<(), BenchError> {
    let (testbed, case) = (bench.testbed, subject.case(WHOLE));
    std::thread::sleep(GRACE);
    let kernel = || testbed.cgroup.as_ref().and_then(|group| group.kernel_bytes());
    let before = kernel();
    // No client connects, so that all clones stay idle.
    let socket = testbed.socket("quiet.sock");
    let quiet = |_| {
        let listener = listen(&socket).map_err(io("listen at", &socket))?;
        way.start(subject, testbed, &listener)
    };
    let clones = (0..count).map(quiet).collect::<Result<Vec<_>, BenchError>>()?;
    std::thread::sleep(GRACE);
    let after = kernel();
    let samples = &mut *bench.samples;
    for clone in &clones {
        let used = usage::of(clone.running.pid);
        let shared = usage::shared_anonymous(clone.running.pid);
        let local = used.anonymous + used.page_tables;
        samples.add(&case, metric::LOCAL, "bytes", local as f64);
        samples.add(&case, metric::TABLES, "bytes", used.page_tables as f64);
        samples.add(&case, metric::SHARED, "bytes", shared as f64);
        if let Some(init) = usage::parent_of(clone.running.pid) {
            let (used, shared) = (usage::of(init), usage::shared_anonymous(init));
            let local = used.anonymous + used.page_tables;
            samples.add(&case, metric::INIT, "bytes", local as f64);
            samples.add(&case, metric::INIT_SHARED, "bytes", shared as f64);
        }
    }
    match (before, after) {
        (Some(before), Some(after)) => {
            let each = after.saturating_sub(before) as f64 / count as f64;
            samples.add(&case, common::KERNEL, "bytes", each);
            let note = "mean of a herd before its first call, with page tables and inits";
            samples.note(&case, common::KERNEL, "bytes", note);
        }
        _ => samples.note(&case, common::KERNEL, "bytes", "no memory cgroup could be created"),
    }
    end(clones, testbed)
}
