//! Figure 1: what calls do to the memory that a process has when it is warm.
//!
//! ```text
//!  fresh process, one call ─► image ─► watched clone: the parent, more calls ─► image of it
//!    ─► one watched child, all calls          what any of them touches
//!    ─► a watched child for each call         what one of them touches
//! ```
//! The parent is a watched clone because only of processes that start as such is it known, page by
//! page, what they read and write.

use std::fs::File;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};
use farfork_image::format::Image;
use farfork_image::model::Model;
use farfork_node::profile::Watched;
use farfork_pages::{Observed, PageSet};
use farfork_sys::memory::pages_with_content;
use farfork_types::{Cid, PAGE_BYTES, Tiering};

use super::pages::{Layout, common, windows};
use crate::cases::Bench;
use crate::cases::clone::{Asked, Way};
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

/// The image of the parent, and what the parent did before.
struct Parent {
    cid: Cid,
    /// What it has had present of the memory that its clones map from the pool.
    footprint: PageSet,
    written: PageSet,
}

/// Looks at `calls` different calls of a function.
pub fn measure(subject: &Subject, bench: &mut Bench<'_>, calls: u64) -> Result<(), BenchError> {
    let testbed = bench.testbed;
    let first = young(subject, testbed)?;
    let parent = grown(subject, testbed, &first)?;
    let numbers: Vec<u64> = (0..calls).map(|call| call * subject.protocol.same_input()).collect();
    let (observed, anonymous) = observe(subject, testbed, parent.cid, &numbers)?;
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
        let (observed, _) = observe(subject, testbed, parent.cid, &[number])?;
        parent.record(bench, &case, &observed);
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

/// A process that has been called once.
struct Young {
    cid: Cid,
    /// The addresses of pages that it has had present, from and to.
    present: Vec<(u64, u64)>,
}

/// Makes it.
fn young(subject: &Subject, testbed: &Testbed) -> Result<Young, BenchError> {
    let socket = testbed.socket("young.sock");
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    let server = subject.start(listener, &socket)?;
    subject.call(&mut connection, 0, START, Answerer::Itself)?;
    drop(connection);
    subject.settle(&server)?;
    // Before the checkpoint, which has pages read that the process has not touched.
    let present = present(server.pid())?;
    let target = Target::Process(server.pid());
    let cid = checkpoint(testbed.pool(), target, CheckpointOptions::default(), &mut |_, _| {})?.cid;
    Ok(Young { cid, present })
}

/// The pages that a process has present, from and to.
fn present(pid: i32) -> Result<Vec<(u64, u64)>, BenchError> {
    let path = format!("/proc/{pid}/pagemap");
    let looking = || io("look at the pages of", &path);
    let pagemap = File::open(&path).map_err(looking())?;
    let runs = pages_with_content(&pagemap, 0, USER_END).map_err(looking())?;
    Ok(runs.into_iter().map(|run| (run.start, run.end)).collect())
}

/// No page of a process lies beyond.
const USER_END: u64 = 0x7fff_ffff_f000;

/// An image of a watched clone of the image `young`, which is removed, after more calls.
fn grown(subject: &Subject, testbed: &Testbed, young: &Young) -> Result<Parent, BenchError> {
    let way = Way { is_profiled: true, ..Way::new(young.cid, Tiering::Mow) };
    let before = Image::read(testbed.pool(), young.cid)?.model;
    let number = |call: u64| call * subject.protocol.same_input();
    let name = "parent.sock";
    let Asked { mut connection, clone } = way.ask(subject, testbed, number(1), name)?;
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
        Target::Process(pid),
        CheckpointOptions::default(),
        &mut |_, _| {},
    )?;
    clones::end(clone, testbed)?;
    let after = Image::read(testbed.pool(), made.cid)?.model;
    let layout = Layout::of(&after);
    let moved = |pages| Layout::of(&before).moved(pages, &layout);
    let written = moved(&observed.written);
    let mut footprint = layout.pages(&young.present);
    footprint.merge(&written);
    footprint.merge(&moved(&observed.read));
    testbed.pool().remove(young.cid)?;
    Ok(Parent { cid: made.cid, footprint, written })
}

/// What a watched clone does to its pages in these calls, and its anonymous memory after them, in
/// bytes.
fn observe(
    subject: &Subject,
    testbed: &Testbed,
    cid: Cid,
    numbers: &[u64],
) -> Result<(Observed, u64), BenchError> {
    let way = Way { is_profiled: true, ..Way::new(cid, Tiering::Mow) };
    let model = Image::read(testbed.pool(), cid)?.model;
    let Asked { mut connection, clone } = way.ask(subject, testbed, numbers[0], "child.sock")?;
    finish(subject, &mut connection, numbers[0])?;
    for number in &numbers[1..] {
        subject.call(&mut connection, *number, START, Answerer::Itself)?;
    }
    let observed = look(clone.running.pid, &model)?;
    let anonymous = usage::of(clone.running.pid).anonymous;
    drop(connection);
    clones::end(clone, testbed)?;
    Ok((observed, anonymous))
}

/// Waits for the answer to a request that is on its way.
fn finish(subject: &Subject, connection: &mut Connection, number: u64) -> Result<(), BenchError> {
    let received = connection.receive(&*subject.protocol);
    received.map_err(|error| subject.wrong(START, &error))?;
    subject.check(connection, number, START).map(drop)
}

fn look(pid: i32, model: &Model) -> Result<Observed, BenchError> {
    let looking = io("look at the pages of", format!("/proc/{pid}/pagemap"));
    Watched::open(pid, model).and_then(|watched| watched.look()).map_err(looking)
}
