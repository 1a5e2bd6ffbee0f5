//! Ten thousand clones of the smallest function, and of the smallest program: how many a second come to
//! a right answer, what each costs before its first call, and whether they stand in each other's way.
//!
//! Clones are started from scratch, in the network, IPC, UTS namespaces and the cgroup that there are, and
//! in ghosts, where all namespaces are there. Those from scratch live until the herd is complete, or until
//! the machine has no room for more: then all of them end, outside the clock, and the herd goes on.

mod ghosts;
mod memory;
mod whole;

use std::path::Path;
use std::time::Duration;

use farfork_checkpoint::{CheckpointOptions, Target, checkpoint};
use farfork_node::client::{Client, StartedClone};
use farfork_pool::Pool;
use farfork_types::Tiering;
use nix::sys::signal::Signal;

use crate::cases::clone::{Asked, Way};
use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::exchange::{now_ns, us_since};
use crate::protocol::Touches;
use crate::subject::{Subject, compile_footprint};
use crate::testbed::Testbed;
use crate::usage;
use crate::{Options, progress};
pub use ghosts::CASES as GHOSTS;

/// The function, and how many different things it is asked.
const FUNCTION: &str = "hello";
const EXAMPLES: u64 = 16;
/// The program, beside which the function's own work shows.
const PROGRAM_MEGABYTES: u64 = 1;
/// Names of both.
pub const SUBJECTS: [&str; 2] = [FUNCTION, "c-1M"];
/// Between two herds, so that the kernel frees what the first has left.
const GRACE: Duration = Duration::from_millis(200);
const SECOND_POOL_BYTES: u64 = 256 << 20;

/// Metrics that other files look for.
pub mod metric {
    pub const RATE: &str = "clones that answered";
    pub const EACH: &str = "time per clone that answered";
    pub const LOCAL: &str = "local memory before the first call";
    pub const TABLES: &str = "of it page tables";
    pub const SHARED: &str = "of it shared with the template";
    pub const INIT: &str = "local memory of its init";
    pub const INIT_SHARED: &str = "of the init's shared with the template";
    pub const ALIVE: &str = "alive at once";
}

/// The case of the whole herd, from scratch.
pub const WHOLE: &str = "herd";
/// That of the function's whole herd in containers that wait, without an image.
pub const WHOLE_IN_GHOSTS: &str = "whole-herd-in-empty-ghosts";

/// How many clones.
pub struct Scale {
    /// Comparisons of one thread and two.
    pub rounds: usize,
    /// Clones that are asked for before the first answer is read, and those of a comparison.
    pub batch: usize,
    /// Ghosts that wait at once, and how often they are made.
    pub ghosts: usize,
    pub rounds_of_ghosts: usize,
    /// Clones of the whole herd.
    pub whole: usize,
    /// Clones of the function's whole herd in ghosts, and how many of these wait at once.
    pub whole_in_ghosts: usize,
    pub batch_in_ghosts: usize,
    /// Clones that are looked at before their first call.
    pub watched: usize,
}

/// One herd under way.
struct Herd<'a> {
    subject: &'a Subject,
    testbed: &'a Testbed,
    next: u64,
}

/// Measures all herds. Names of what there were herds of.
pub fn measure(
    root: &Path,
    bench: &mut Bench<'_>,
    options: &Options,
    scale: &Scale,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, BenchError> {
    let program = bench.testbed.path("footprint");
    compile_footprint(&program)?;
    let subjects = [
        Subject::function(root, FUNCTION, 1, EXAMPLES)?,
        Subject::footprint(&program, PROGRAM_MEGABYTES, Touches::Clustered),
    ];
    let mut names = Vec::new();
    for subject in subjects.into_iter().filter(|subject| options.wants(&subject.name)) {
        let name = subject.name.clone();
        progress(&format!("starting {name}, warming it, checkpointing it into two pools"));
        let without = Err("it is not compared here".to_owned());
        match Lane::start(subject, bench.testbed, &without)? {
            Ok(lane) => {
                herds(&lane, bench, scale)?;
                names.push(name);
            }
            Err(note) => notes.push(note),
        }
    }
    Ok(names)
}

fn herds(lane: &Lane, bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    let here = Way { is_detached: true, ..Way::new(lane.warm.cid, Tiering::Mow) };
    let there = elsewhere(lane, bench.testbed)?;
    memory::before_first_call(&lane.subject, bench, &here, scale.watched)?;
    let herds = [
        ("herd-by-1-thread", vec![here.clone()]),
        ("herd-by-2-threads", vec![here.clone(), here.clone()]),
        ("herd-by-2-threads-from-2-pools", vec![here.clone(), there]),
    ];
    for round in 0..=scale.rounds {
        progress(&format!("herds of {} clones, round {round} of {}", scale.batch, scale.rounds));
        for (name, ways) in &herds {
            let mut herd = Herd::new(&lane.subject, bench.testbed);
            let (us, all) = herd.batch(&evenly(ways, scale.batch))?;
            end_asked(all, bench.testbed)?;
            if round > 0 {
                bench.samples.add(
                    &lane.subject.case(name),
                    metric::RATE,
                    "1/s",
                    scale.batch as f64 * 1e6 / us,
                );
            }
        }
    }
    ghosts::measure(lane, bench, scale)?;
    let mut herd = Herd::new(&lane.subject, bench.testbed);
    whole::from_scratch(&mut herd, bench, scale, &[here.clone(), here])?;
    // To make all these ghosts takes minutes.
    if lane.subject.name == FUNCTION { whole::in_ghosts(lane, bench, scale) } else { Ok(()) }
}

/// So many clones, about as many in each of these ways.
fn evenly(ways: &[Way], count: usize) -> Vec<Vec<Way>> {
    let more = |index| usize::from(index < count % ways.len());
    let part = |(index, way): (usize, &Way)| vec![way.clone(); count / ways.len() + more(index)];
    ways.iter().enumerate().map(part).collect()
}

/// The same warm process, checkpointed into a pool of its own.
fn elsewhere(lane: &Lane, testbed: &Testbed) -> Result<Way, BenchError> {
    let path = testbed.pool().path().with_file_name(format!("of-{}", lane.subject.name));
    let pool = Pool::create(&path, SECOND_POOL_BYTES)?;
    lane.subject.settle(&lane.warm.parent)?;
    let target = Target::Process(lane.warm.parent.pid());
    let cid = checkpoint(&pool, target, CheckpointOptions::default(), &mut |_, _| {})?.cid;
    Ok(Way { pool: Some(path), is_detached: true, ..Way::new(cid, Tiering::Mow) })
}

impl<'a> Herd<'a> {
    fn new(subject: &'a Subject, testbed: &'a Testbed) -> Herd<'a> {
        Herd { subject, testbed, next: 0 }
    }

    /// Starts clones, each with a request of its own, and reads their answers; a thread for each of
    /// `parts`. Microseconds until the last of them; answers are checked after that.
    fn batch(&mut self, parts: &[Vec<Way>]) -> Result<(f64, Vec<Asked>), BenchError> {
        let first = self.next;
        let this = &*self;
        let mut numbers = first..;
        let parts: Vec<Vec<(&Way, u64)>> =
            parts.iter().map(|ways| ways.iter().zip(numbers.by_ref()).collect()).collect();
        let started = now_ns();
        let asked: Result<Vec<Vec<Asked>>, BenchError> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                parts.iter().map(|part| scope.spawn(move || this.part(part))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| this.lost()))
                .collect()
        });
        let us = us_since(started);
        let all: Vec<Asked> = asked?.into_iter().flatten().collect();
        // A wrong answer fails the benchmark, so all that are counted answered rightly.
        for (asked, number) in all.iter().zip(first..) {
            self.subject.check(&asked.connection, number, WHOLE)?;
        }
        self.next += all.len() as u64;
        Ok((us, all))
    }

    /// What one thread starts.
    fn part(&self, clones: &[(&Way, u64)]) -> Result<Vec<Asked>, BenchError> {
        let ask = |(way, number): &(&Way, u64)| {
            let socket = format!("herd-{number}.sock");
            let asked = way.ask(self.subject, self.testbed, *number, &socket);
            let _ = std::fs::remove_file(self.testbed.socket(&socket));
            asked
        };
        let mut all = clones.iter().map(ask).collect::<Result<Vec<_>, _>>()?;
        for asked in &mut all {
            let received = asked.connection.receive(&*self.subject.protocol);
            received.map_err(|error| self.subject.wrong(WHOLE, &error))?;
        }
        Ok(all)
    }

    fn lost(&self) -> Result<Vec<Asked>, BenchError> {
        Err(self.subject.wrong(WHOLE, &"a thread that started clones has ended"))
    }
}

fn end_asked(all: Vec<Asked>, testbed: &Testbed) -> Result<(), BenchError> {
    end(all.into_iter().map(|asked| asked.clone).collect(), testbed)
}

/// Ends clones and waits until all of them have gone.
fn end(all: Vec<StartedClone>, testbed: &Testbed) -> Result<(), BenchError> {
    let mut ending = Vec::new();
    for clone in all {
        let pid = clone.running.pid;
        drop(clone);
        // One that has ended by itself is not known any more.
        let _ = Client::connect(&testbed.node)?.kill(pid, Signal::SIGKILL as i32);
        ending.push(pid);
    }
    ending.into_iter().for_each(usage::await_end);
    std::thread::sleep(GRACE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_shared_out_and_none_is_left_out() {
        let ways =
            [1, 2, 3].map(|id| Way::new(farfork_types::Cid::from_bytes([id; 16]), Tiering::Mow));
        let of = |count| evenly(&ways, count).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((of(9), of(11), of(2)), (vec![3, 3, 3], vec![4, 4, 3], vec![1, 1, 0]));
    }
}
