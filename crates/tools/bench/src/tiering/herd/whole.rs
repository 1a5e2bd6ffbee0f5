//! Whole herds: as many clones as the goal speaks of, from scratch and in namespaces that exist.

use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::{Herd, Scale, WHOLE, WHOLE_IN_GHOSTS, end_asked, evenly, ghosts, metric};
use crate::cases::clone::{Asked, Way};
use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::machine::available_bytes;
use crate::progress;
use crate::samples::Samples;

/// What a clone may take of the machine at most, its init and the kernel's share included.
const CLONE_BYTES: u64 = 2 << 20;
/// Descriptors that the agent has open for a clone.
const DESCRIPTORS: u64 = 4;
/// Processes of a clone, its init being one.
const PROCESSES: u64 = 2;

/// What became of a herd so far.
#[derive(Default)]
struct Sum {
    answered: usize,
    /// All time within the clock.
    us: f64,
    most_alive: usize,
}

/// All clones of the herd, in batches, as many as fit alive at once.
pub fn from_scratch(
    herd: &mut Herd<'_>,
    bench: &mut Bench<'_>,
    scale: &Scale,
    ways: &[Way],
) -> Result<(), BenchError> {
    let case = herd.subject.case(WHOLE);
    let room = room().max(scale.batch as u64) as usize;
    let mut alive: Vec<Asked> = Vec::new();
    let mut sum = Sum::default();
    while sum.answered < scale.whole {
        let count = scale.batch.min(scale.whole - sum.answered);
        if alive.len() + count > room {
            end_asked(std::mem::take(&mut alive), herd.testbed)?;
        }
        let (us, all) = herd.batch(&evenly(ways, count))?;
        alive.extend(all);
        sum.add(&case, bench.samples, (count, us), alive.len());
        progress(&format!("{} clones have answered, {} live", sum.answered, alive.len()));
    }
    end_asked(alive, herd.testbed)?;
    sum.tell(&case, bench.samples, "of each batch; all clones of earlier batches live on");
    Ok(())
}

/// All clones of the herd in empty ghosts, in batches of as many as wait at once. Ghosts are made, and
/// end with their clones, outside the clock.
pub fn in_ghosts(lane: &Lane, bench: &mut Bench<'_>, scale: &Scale) -> Result<(), BenchError> {
    let case = lane.subject.case(WHOLE_IN_GHOSTS);
    let mut herd = Herd::new(&lane.subject, bench.testbed);
    let (mut sum, begun) = (Sum::default(), Instant::now());
    progress(&format!(
        "{} clones in empty ghosts, {} at once: to make so many ghosts takes a while, some minutes for 10,000",
        scale.whole_in_ghosts, scale.batch_in_ghosts
    ));
    while sum.answered < scale.whole_in_ghosts {
        let count = scale.batch_in_ghosts.min(scale.whole_in_ghosts - sum.answered);
        let ways = ghosts::made(lane, bench.testbed, false, count)?;
        let (us, all) = herd.batch(&ways)?;
        sum.add(&case, bench.samples, (count, us), count);
        end_asked(all, bench.testbed)?;
        ghosts::await_none(lane, bench.testbed)?;
        let left = left(begun.elapsed(), sum.answered, scale.whole_in_ghosts);
        progress(&format!(
            "{} of {} clones in empty ghosts have answered, some {} s are left",
            sum.answered,
            scale.whole_in_ghosts,
            left.as_secs()
        ));
    }
    let note =
        "of each batch; ghosts are made outside the clock, clones of earlier batches have ended";
    sum.tell(&case, bench.samples, note);
    Ok(())
}

/// How long the rest takes, if it goes on as it went.
fn left(elapsed: Duration, done: usize, of: usize) -> Duration {
    elapsed.mul_f64(of.saturating_sub(done) as f64 / done.max(1) as f64)
}

impl Sum {
    /// Counts a batch: so many clones, and microseconds.
    fn add(&mut self, case: &str, samples: &mut Samples, (count, us): (usize, f64), alive: usize) {
        self.answered += count;
        self.us += us;
        self.most_alive = self.most_alive.max(alive);
        samples.add(case, metric::EACH, "us", us / count as f64);
    }

    fn tell(&self, case: &str, samples: &mut Samples, note: &str) {
        samples.add(case, "clones", "count", self.answered as f64);
        samples.add(case, metric::ALIVE, "count", self.most_alive as f64);
        samples.add(case, metric::RATE, "1/s", self.answered as f64 * 1e6 / self.us);
        samples.note(case, metric::EACH, "us", note);
    }
}

/// So many clones can live at once: an agent and this process have few descriptors each for every
/// clone, and the machine has so many pids and so much memory.
fn room() -> u64 {
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
        sum.add("c", &mut samples, (100, 50_000.0), 100);
        sum.add("c", &mut samples, (300, 50_000.0), 300);
        sum.tell("c", &mut samples, "");
        let value = |metric| samples.values("c", metric).to_vec();
        assert_eq!((value(metric::RATE), value(metric::ALIVE)), (vec![4000.0], vec![300.0]));
        assert_eq!(value("clones"), [400.0]);
        assert_eq!(value(metric::EACH).len(), 2);
    }

    #[test]
    fn what_is_left_goes_on_as_it_went() {
        assert_eq!(left(Duration::from_secs(30), 250, 1000), Duration::from_secs(90));
        assert_eq!(left(Duration::from_secs(30), 1000, 1000), Duration::ZERO);
    }
}
