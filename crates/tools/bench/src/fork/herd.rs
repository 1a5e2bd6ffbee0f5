//! Many clones at once: the memory of each after one call, and how many answer per second.

use std::time::Duration;

use farfork_types::Tiering;

use crate::cases::clone::{CloneOptions, PendingClone};
use crate::cases::{Bench, Lane, metric};
use crate::clones;
use crate::error::BenchError;
use crate::exchange::{now_ns, us_since};
use crate::usage;

const GRACE: Duration = Duration::from_millis(100);

pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>, count: usize) -> Result<(), BenchError> {
    let case = lane.subject.case("herd");
    // The kernel frees memory of the previous herd after a grace period.
    std::thread::sleep(GRACE);
    let kernel_before = bench.testbed.cgroup.as_ref().and_then(|group| group.kernel_bytes());
    let numbers: Vec<u64> = (0..count).map(|_| lane.number()).collect();
    let way = CloneOptions::new(lane.warm.cid, Tiering::Mow);
    let started = now_ns();
    let mut herd = numbers
        .iter()
        .map(|number| {
            way.start_with_request(
                &lane.subject,
                bench.testbed,
                *number,
                &format!("herd-{number}.sock"),
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    for asked in &mut herd {
        let received = asked.connection.receive(&*lane.subject.protocol);
        received.map_err(|error| lane.subject.wrong("herd", &error))?;
    }
    let us = us_since(started);
    // A wrong answer fails the benchmark, so all counted clones have answered correctly.
    for (asked, number) in herd.iter().zip(&numbers) {
        lane.subject.check(&asked.connection, *number, "herd")?;
    }
    bench.samples.add(&case, "clones that answered", "1/s", count as f64 * 1e6 / us);
    memory(lane, bench, &herd);
    let kernel = bench.testbed.cgroup.as_ref().and_then(|group| group.kernel_bytes());
    if let (Some(before), Some(now)) = (kernel_before, kernel) {
        let each = now.saturating_sub(before) as f64 / count as f64;
        bench.samples.add(&case, metric::KERNEL, "bytes", each);
        bench.samples.note(
            &case,
            metric::KERNEL,
            "bytes",
            "mean of a herd, with page tables; counted in batches, so precise to about 20 kB",
        );
    } else {
        let note = "no memory cgroup could be created";
        bench.samples.note(&case, metric::KERNEL, "bytes", note);
    }
    for (asked, number) in herd.into_iter().zip(numbers) {
        drop(asked.connection);
        clones::end(asked.clone, bench.testbed)?;
        let _ = std::fs::remove_file(bench.testbed.socket(&format!("herd-{number}.sock")));
    }
    Ok(())
}

fn memory(lane: &Lane, bench: &mut Bench<'_>, herd: &[PendingClone]) {
    let case = lane.subject.case("clone");
    for asked in herd {
        let used = usage::of(asked.clone.running.pid);
        let local = (used.anonymous + used.page_tables) as f64;
        let shared = used.resident.saturating_sub(used.anonymous) as f64;
        bench.samples.add(&case, metric::LOCAL, "bytes", local);
        bench.samples.add(&case, "page tables", "bytes", used.page_tables as f64);
        bench.samples.add(&case, "pool memory shared", "bytes", shared);
    }
}
