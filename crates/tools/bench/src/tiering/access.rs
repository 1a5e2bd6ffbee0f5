//! Figure 1: the pages of a warm process that calls read and write.
//!
//! ```text
//!  fresh process, one call ─► image ─► profiling clone: the parent, more calls ─► image of it
//!    ─► one profiling child, all calls         pages that any call touches
//!    ─► a profiling child for each call        pages that one call touches
//! ```
//! The parent is a profiling clone, because reads and writes of each page are known only for these.

use std::fs::File;
use std::ops::Range;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};
use farfork_image::format::Image;
use farfork_image::model::Model;
use farfork_node::profile::Watched;
use farfork_pages::{Observed, PageSet};
use farfork_sys::memory::pages_with_content;
use farfork_types::{Cid, PAGE_BYTES, Tiering};

use super::pages::{Layout, common, windows};
use crate::cases::Bench;
use crate::cases::clone::{CloneOptions, PendingClone};
use crate::clones;
use crate::error::{BenchError, io};
use crate::exchange::Connection;
use crate::protocol::Answerer;
use crate::subject::{Subject, WARM_CALLS};
use crate::testbed::Testbed;
use crate::usage;

/// Metrics of this figure.
mod metric {
    pub const FOOTPRINT: &str = "footprint";
    pub const INIT: &str = "never touched";
    pub const READ: &str = "only read";
    pub const WRITTEN: &str = "written";
    pub const AGAIN: &str = "of the parent's written pages, written again";
    pub const BEYOND: &str = "own memory beyond the footprint";
    pub const WINDOWS: &str = "windows of 2 MiB with pages that were touched";
    pub const MIXED: &str = "windows of 2 MiB with pages that were only read and that were written";
}

const START: &str = "access";

/// The image of the parent, and what the parent touched before.
struct Parent {
    cid: Cid,
    /// The pages that it had present, of those that its clones map from the pool.
    footprint: PageSet,
    written: PageSet,
}

/// Measures the pages that `calls` different calls of a function touch.
pub fn measure(subject: &Subject, bench: &mut Bench<'_>, calls: u64) -> Result<(), BenchError> {
    let testbed = bench.testbed;
    let first = young(subject, testbed)?;
    let parent = grown(subject, testbed, &first)?;
    let numbers: Vec<u64> = (0..calls).map(|call| call * subject.protocol.same_input()).collect();
    let Accesses { observed, anonymous } = observe(subject, testbed, parent.cid, &numbers)?;
    let case = subject.case("access-of-all-calls");
    parent.record(bench, &case, &observed);
    let own = common(&observed.written, &parent.footprint) * PAGE_BYTES;
    let beyond = anonymous.saturating_sub(own) as f64;
    bench.samples.add(&case, metric::BEYOND, "bytes", beyond);
    let bytes = (parent.footprint.len() * PAGE_BYTES) as f64;
    bench.samples.add(&case, metric::FOOTPRINT, "bytes", bytes);
    let (read, written) = (windows(&observed.read), windows(&observed.written));
    for (metric, count) in
        [(metric::WINDOWS, read.union(&written).count()), (metric::MIXED, (&read & &written).len())]
    {
        bench.samples.add(&case, metric, "count", count as f64);
    }
    let case = subject.case("access-of-one-call");
    for number in numbers {
        let accesses = observe(subject, testbed, parent.cid, &[number])?;
        parent.record(bench, &case, &accesses.observed);
    }
    testbed.pool().remove(parent.cid)?;
    Ok(())
}

impl Parent {
    /// Adds the shares of one child.
    fn record(&self, bench: &mut Bench<'_>, case: &str, observed: &Observed) {
        let share = |part: u64, of: &PageSet| 100.0 * part as f64 / of.len().max(1) as f64;
        let written = common(&observed.written, &self.footprint);
        let read = common(&observed.read, &self.footprint);
        let untouched = observed.untouched(&self.footprint).len();
        let again = common(&self.written, &observed.written);
        let samples = &mut *bench.samples;
        samples.add(case, metric::INIT, "%", share(untouched, &self.footprint));
        samples.add(case, metric::READ, "%", share(read, &self.footprint));
        samples.add(case, metric::WRITTEN, "%", share(written, &self.footprint));
        samples.add(case, metric::AGAIN, "%", share(again, &self.written));
    }
}

/// A process after one call.
struct Young {
    cid: Cid,
    /// The addresses of its present pages.
    present: Vec<Range<u64>>,
}

/// Starts and checkpoints such a process.
fn young(subject: &Subject, testbed: &Testbed) -> Result<Young, BenchError> {
    let socket = testbed.socket("young.sock");
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    let server = subject.start(listener, &socket)?;
    subject.call(&mut connection, 0, START, Answerer::Itself)?;
    drop(connection);
    subject.settle(&server)?;
    // Before the checkpoint, which makes untouched pages present by reading them.
    let present = present(server.pid())?;
    let target = Target::Process(server.pid());
    let cid =
        checkpoint(testbed.pool(), None, target, CheckpointOptions::default(), &mut |_, _| {})?.cid;
    Ok(Young { cid, present })
}

/// The addresses of a process's present pages.
fn present(pid: i32) -> Result<Vec<Range<u64>>, BenchError> {
    let path = format!("/proc/{pid}/pagemap");
    let looking = || io("look at the pages of", &path);
    let pagemap = File::open(&path).map_err(looking())?;
    let runs = pages_with_content(&pagemap, 0, USER_END).map_err(looking())?;
    Ok(runs.into_iter().map(|run| run.start..run.end).collect())
}

/// End of the user addresses.
const USER_END: u64 = 0x7fff_ffff_f000;

/// An image of a profiling clone of `young` after more calls. The image `young` is removed.
fn grown(subject: &Subject, testbed: &Testbed, young: &Young) -> Result<Parent, BenchError> {
    let way = CloneOptions { is_profiled: true, ..CloneOptions::new(young.cid, Tiering::Mow) };
    let before = Image::read(testbed.pool(), young.cid)?.model;
    let number = |call: u64| call * subject.protocol.same_input();
    let name = "parent.sock";
    let PendingClone { mut connection, clone } =
        way.start_with_request(subject, testbed, number(1), name)?;
    finish(subject, &mut connection, number(1))?;
    for call in 2..WARM_CALLS {
        subject.call(&mut connection, number(call), START, Answerer::Itself)?;
    }
    drop(connection);
    let pid = clone.running.pid;
    let observed = look(pid, &before)?;
    subject.settle_at(pid, &testbed.socket(name))?;
    let made = checkpoint(
        testbed.pool(),
        None,
        Target::Process(pid),
        CheckpointOptions::default(),
        &mut |_, _| {},
    )?;
    clones::end(clone, testbed)?;
    let after = Image::read(testbed.pool(), made.cid)?.model;
    let layout = Layout::from_model(&after);
    let moved = |pages| Layout::from_model(&before).moved(pages, &layout);
    let written = moved(&observed.written);
    let mut footprint = layout.pages(&young.present);
    footprint.merge(&written);
    footprint.merge(&moved(&observed.read));
    testbed.pool().remove(young.cid)?;
    Ok(Parent { cid: made.cid, footprint, written })
}

/// The accesses of a profiling clone.
struct Accesses {
    observed: Observed,
    /// Anonymous memory after the calls, in bytes.
    anonymous: u64,
}

/// Makes calls to a profiling clone, and returns its accesses.
fn observe(
    subject: &Subject,
    testbed: &Testbed,
    cid: Cid,
    numbers: &[u64],
) -> Result<Accesses, BenchError> {
    let way = CloneOptions { is_profiled: true, ..CloneOptions::new(cid, Tiering::Mow) };
    let model = Image::read(testbed.pool(), cid)?.model;
    let PendingClone { mut connection, clone } =
        way.start_with_request(subject, testbed, numbers[0], "child.sock")?;
    finish(subject, &mut connection, numbers[0])?;
    for number in &numbers[1..] {
        subject.call(&mut connection, *number, START, Answerer::Itself)?;
    }
    let observed = look(clone.running.pid, &model)?;
    let anonymous = usage::of(clone.running.pid).anonymous;
    drop(connection);
    clones::end(clone, testbed)?;
    Ok(Accesses { observed, anonymous })
}

/// Waits for the answer to a request that was sent.
fn finish(subject: &Subject, connection: &mut Connection, number: u64) -> Result<(), BenchError> {
    let received = connection.receive(&*subject.protocol);
    received.map_err(|error| subject.wrong(START, &error))?;
    subject.check(connection, number, START).map(drop)
}

fn look(pid: i32, model: &Model) -> Result<Observed, BenchError> {
    let looking = io("look at the pages of", format!("/proc/{pid}/pagemap"));
    Watched::open(pid, model).and_then(|watched| watched.look()).map_err(looking)
}
