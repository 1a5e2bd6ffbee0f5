//! Ten thousand clones of the smallest function, and of the smallest program: how many answer per second,
//! what each costs before its first call, and whether threads and pools slow each other down.
//!
//! Clones are started from scratch, in the agent's network, IPC and UTS namespaces and cgroup, and in
//! ghosts, which have all namespaces already. Clones from scratch stay until the herd is complete or the
//! machine is full. Then all of them are killed, outside of the clock, and the herd continues.

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

use crate::cases::clone::{CloneOptions, PendingClone};
use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::exchange::{now_ns, us_since};
use crate::protocol::Touches;
use crate::subject::{Subject, compile_footprint};
use crate::testbed::Testbed;
use crate::usage;
use crate::{Options, progress};
pub use ghosts::CASES as GHOSTS;

/// The function, and its number of different inputs.
const FUNCTION: &str = "hello";
const EXAMPLES: u64 = 16;
/// Size of the program, which is the baseline for the function's own work.
const PROGRAM_MEGABYTES: u64 = 1;
/// The names of both.
pub const SUBJECTS: [&str; 2] = [FUNCTION, "c-1M"];
/// Pause between two herds, in which the kernel frees memory of the first.
const GRACE: Duration = Duration::from_millis(200);
const SECOND_POOL_BYTES: u64 = 256 << 20;

/// Metrics that several files use.
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

/// Case of the whole herd from scratch.
pub const WHOLE: &str = "herd";
/// Case of the function's whole herd in empty ghosts.
pub const WHOLE_IN_GHOSTS: &str = "whole-herd-in-empty-ghosts";

/// Numbers of clones and repetitions.
pub struct Scale {
    /// Comparisons of one thread and two.
    pub rounds: usize,
    /// Clones that are requested before the first answer is read, and clones of a comparison.
    pub batch: usize,
    /// Ghosts that wait at once.
    pub ghosts: usize,
    /// How often these ghosts are created.
    pub rounds_of_ghosts: usize,
    /// Clones of the whole herd.
    pub whole: usize,
    /// Clones of the function's whole herd in ghosts.
    pub whole_in_ghosts: usize,
    /// Ghosts of it that wait at once.
    pub batch_in_ghosts: usize,
    /// Clones whose memory is measured before their first call.
    pub watched: usize,
}

/// A herd that is being measured.
struct Herd<'a> {
    subject: &'a Subject,
    testbed: &'a Testbed,
    next: u64,
}

/// Measures all herds. Returns the names of the measured subjects.
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
        let without = Err("CRIU is not compared here".to_owned());
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
    let here = CloneOptions { is_detached: true, ..CloneOptions::new(lane.warm.cid, Tiering::Mow) };
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
    // The creation of all these ghosts takes minutes.
    if lane.subject.name == FUNCTION { whole::in_ghosts(lane, bench, scale) } else { Ok(()) }
}

/// `count` clones, divided evenly among these options.
fn evenly(ways: &[CloneOptions], count: usize) -> Vec<Vec<CloneOptions>> {
    let more = |index| usize::from(index < count % ways.len());
    let part =
        |(index, way): (usize, &CloneOptions)| vec![way.clone(); count / ways.len() + more(index)];
    ways.iter().enumerate().map(part).collect()
}

/// The same warm process, checkpointed into a pool of its own.
fn elsewhere(lane: &Lane, testbed: &Testbed) -> Result<CloneOptions, BenchError> {
    let path = testbed.pool().path().with_file_name(format!("of-{}", lane.subject.name));
    let pool = Pool::create(&path, SECOND_POOL_BYTES)?;
    lane.subject.settle(&lane.warm.parent)?;
    let target = Target::Process(lane.warm.parent.pid());
    let cid = checkpoint(&pool, None, target, CheckpointOptions::default(), &mut |_, _| {})?.cid;
    Ok(CloneOptions { pool: Some(path), is_detached: true, ..CloneOptions::new(cid, Tiering::Mow) })
}

impl<'a> Herd<'a> {
    fn new(subject: &'a Subject, testbed: &'a Testbed) -> Herd<'a> {
        Herd { subject, testbed, next: 0 }
    }

    /// Starts clones, each with a request of its own, and reads their answers, in one thread for each of
    /// `parts`. Returns the microseconds until the last answer, and the clones. Answers are checked
    /// outside of the clock.
    fn batch(
        &mut self,
        parts: &[Vec<CloneOptions>],
    ) -> Result<(f64, Vec<PendingClone>), BenchError> {
        let first = self.next;
        let this = &*self;
        let mut numbers = first..;
        let parts: Vec<Vec<(&CloneOptions, u64)>> =
            parts.iter().map(|ways| ways.iter().zip(numbers.by_ref()).collect()).collect();
        let started = now_ns();
        let asked: Result<Vec<Vec<PendingClone>>, BenchError> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                parts.iter().map(|part| scope.spawn(move || this.part(part))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| this.thread_failed()))
                .collect()
        });
        let us = us_since(started);
        let all: Vec<PendingClone> = asked?.into_iter().flatten().collect();
        // A wrong answer fails the benchmark, so all counted clones have answered correctly.
        for (asked, number) in all.iter().zip(first..) {
            self.subject.check(&asked.connection, number, WHOLE)?;
        }
        self.next += all.len() as u64;
        Ok((us, all))
    }

    /// The part of one thread.
    fn part(&self, clones: &[(&CloneOptions, u64)]) -> Result<Vec<PendingClone>, BenchError> {
        let ask = |(way, number): &(&CloneOptions, u64)| {
            let socket = format!("herd-{number}.sock");
            let asked = way.start_with_request(self.subject, self.testbed, *number, &socket);
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

    fn thread_failed(&self) -> Result<Vec<PendingClone>, BenchError> {
        Err(self.subject.wrong(WHOLE, &"a thread of the benchmark panicked"))
    }
}

fn end_asked(all: Vec<PendingClone>, testbed: &Testbed) -> Result<(), BenchError> {
    end(all.into_iter().map(|asked| asked.clone).collect(), testbed)
}

/// Kills clones and waits until all of them have disappeared.
fn end(all: Vec<StartedClone>, testbed: &Testbed) -> Result<(), BenchError> {
    let mut ending = Vec::new();
    for clone in all {
        let pid = clone.running.pid;
        drop(clone);
        // A clone that has exited by itself is unknown to the agent.
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
    fn clones_are_divided_evenly_and_completely() {
        let ways = [1, 2, 3]
            .map(|id| CloneOptions::new(farfork_types::Cid::from_bytes([id; 16]), Tiering::Mow));
        let of = |count| evenly(&ways, count).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((of(9), of(11), of(2)), (vec![3, 3, 3], vec![4, 4, 3], vec![1, 1, 0]));
    }
}
