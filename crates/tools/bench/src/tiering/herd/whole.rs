//! Whole herds: as many clones as the goals are about, from scratch and in existing namespaces.

use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::{Herd, Scale, WHOLE, WHOLE_IN_GHOSTS, end_asked, evenly, ghosts, metric};
use crate::cases::clone::{CloneOptions, PendingClone};
use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::machine::available_bytes;
use crate::progress;
use crate::samples::Samples;

/// Largest memory of a clone, with its init and memory of the kernel.
const CLONE_BYTES: u64 = 2 << 20;
/// Open descriptors of the agent for a clone.
const DESCRIPTORS: u64 = 4;
/// Processes of a clone, including its init.
const PROCESSES: u64 = 2;

/// The herd so far.
#[derive(Default)]
struct Sum {
    answered: usize,
    /// Measured time.
    us: f64,
    most_alive: usize,
}

/// One batch of a herd.
struct Batch {
    clones: usize,
    us: f64,
    /// Clones that are alive after it, with those of earlier batches.
    alive: usize,
}

/// Starts all clones of the herd, in batches. As many as fit stay alive.
pub fn from_scratch(
    herd: &mut Herd<'_>,
    bench: &mut Bench<'_>,
    scale: &Scale,
    ways: &[CloneOptions],
) -> Result<(), BenchError> {
    let case = herd.subject.case(WHOLE);
    let room = largest_herd().max(scale.batch as u64) as usize;
    let mut alive: Vec<PendingClone> = Vec::new();
    let mut sum = Sum::default();
    while sum.answered < scale.whole {
        let count = scale.batch.min(scale.whole - sum.answered);
        if alive.len() + count > room {
            end_asked(std::mem::take(&mut alive), herd.testbed)?;
        }
        let (us, all) = herd.batch(&evenly(ways, count))?;
        alive.extend(all);
        sum.add(&case, bench.samples, &Batch { clones: count, us, alive: alive.len() });
        progress(&format!("{} clones have answered, {} are alive", sum.answered, alive.len()));
    }
    end_asked(alive, herd.testbed)?;
    sum.record(&case, bench.samples, "by batch; the clones of earlier batches stay alive");
    Ok(())
}

/// Starts all clones of the herd in empty ghosts, in batches of as many as wait at once. Ghosts are
/// created, and killed with their clones, outside of the clock.
pub fn in_ghosts(lane: &Lane, bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    let case = lane.subject.case(WHOLE_IN_GHOSTS);
    let mut herd = Herd::new(&lane.subject, bench.testbed);
    let (mut sum, begun) = (Sum::default(), Instant::now());
    progress(&format!(
        "{} clones in empty ghosts, {} at once: creating 10,000 ghosts takes some minutes",
        scale.whole_in_ghosts, scale.batch_in_ghosts
    ));
    while sum.answered < scale.whole_in_ghosts {
        let count = scale.batch_in_ghosts.min(scale.whole_in_ghosts - sum.answered);
        let ways = ghosts::made(lane, bench.testbed, false, count)?;
        let (us, all) = herd.batch(&ways)?;
        sum.add(&case, bench.samples, &Batch { clones: count, us, alive: count });
        end_asked(all, bench.testbed)?;
        ghosts::await_none(lane, bench.testbed)?;
        let left = left(begun.elapsed(), sum.answered, scale.whole_in_ghosts);
        progress(&format!(
            "{} of {} clones in empty ghosts have answered, about {} s left",
            sum.answered,
            scale.whole_in_ghosts,
            left.as_secs()
        ));
    }
    let note =
        "by batch; creation of ghosts is not counted, and clones of earlier batches are dead";
    sum.record(&case, bench.samples, note);
    Ok(())
}

/// The remaining time at the speed so far.
fn left(elapsed: Duration, done: usize, of: usize) -> Duration {
    elapsed.mul_f64(of.saturating_sub(done) as f64 / done.max(1) as f64)
}

impl Sum {
    /// Adds a batch.
    fn add(&mut self, case: &str, samples: &mut Samples, batch: &Batch) {
        self.answered += batch.clones;
        self.us += batch.us;
        self.most_alive = self.most_alive.max(batch.alive);
        samples.add(case, metric::EACH, "us", batch.us / batch.clones as f64);
    }

    /// Adds the rows of the whole herd.
    fn record(&self, case: &str, samples: &mut Samples, note: &str) {
        samples.add(case, "clones", "count", self.answered as f64);
        samples.add(case, metric::ALIVE, "count", self.most_alive as f64);
        samples.add(case, metric::RATE, "1/s", self.answered as f64 * 1e6 / self.us);
        samples.note(case, metric::EACH, "us", note);
    }
}

/// How many clones can be alive at once. The limits are descriptors (of the agent and of this process),
/// pids, and memory.
fn largest_herd() -> u64 {
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20) / DESCRIPTORS;
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let pids = text.trim().parse::<u64>().unwrap_or(1 << 15) / PROCESSES * 9 / 10;
    let memory = available_bytes() / 4 * 3 / CLONE_BYTES;
    descriptors.min(pids).min(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_all_clones_and_all_time_within_the_clock() {
        let (mut samples, mut sum) = (Samples::default(), Sum::default());
        sum.add("c", &mut samples, &Batch { clones: 100, us: 50_000.0, alive: 100 });
        sum.add("c", &mut samples, &Batch { clones: 300, us: 50_000.0, alive: 300 });
        sum.record("c", &mut samples, "");
        let value = |metric| samples.values("c", metric).to_vec();
        assert_eq!((value(metric::RATE), value(metric::ALIVE)), (vec![4000.0], vec![300.0]));
        assert_eq!(value("clones"), [400.0]);
        assert_eq!(value(metric::EACH).len(), 2);
    }

    #[test]
    fn the_remaining_time_is_extrapolated() {
        assert_eq!(left(Duration::from_secs(30), 250, 1000), Duration::from_secs(90));
        assert_eq!(left(Duration::from_secs(30), 1000, 1000), Duration::ZERO);
    }
}
