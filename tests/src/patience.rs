//! How long a test waits before it says that something hangs. Not by the clock: on a machine that others use, or one with
//! few processors, all takes longer, and nothing hangs.
//!
//! ```text
//!  time that counts = time that has passed × processors / tasks that want to run     (as long as these are more)
//! ```

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked at how busy the machine is.
const LOOK: Duration = Duration::from_millis(100);
/// No look counts for more: a virtual machine may stand still.
const MOST: Duration = Duration::from_secs(1);

/// What is left of a limit.
#[derive(Clone, Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// From now on.
    pub fn new(limit: Duration) -> Patience {
        Patience { left: limit, looked: Instant::now() }
    }

    /// Whether it is over. To be asked again and again while something is waited for.
    pub fn is_over(&mut self) -> bool {
        let passed = self.looked.elapsed();
        if passed >= LOOK || passed >= self.left {
            self.looked += passed;
            self.left = self.left.saturating_sub(counts(passed, share()));
        }
        self.left.is_zero()
    }

    /// How long to wait before it is asked again.
    pub fn slice(&self) -> Duration {
        self.left.min(LOOK)
    }

    /// Looks at `holds` until it does, as often as that. Whether it did in time.
    pub fn until(mut self, every: Duration, mut holds: impl FnMut() -> bool) -> bool {
        loop {
            if holds() {
                return true;
            }
            if self.is_over() {
                return false;
            }
            thread::sleep(every);
        }
    }
}

/// How much of the time since the last look counts.
fn counts(passed: Duration, share: f64) -> Duration {
    passed.min(MOST).mul_f64(share)
}

/// The part of a processor that a task gets that wants one, by fair shares; all of it where that is not known.
fn share() -> f64 {
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    fs::read_to_string("/proc/loadavg").ok().and_then(|text| running(&text)).map_or(
        1.0,
        |running| {
            // One of these reads this.
            (processors as f64 / running.saturating_sub(1).max(1) as f64).min(1.0)
        },
    )
}

/// The tasks that want to run now, in the text of `/proc/loadavg`.
fn running(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_makes_time_count_less() {
        assert_eq!(running("24.91 13.00 5.10 27/812 4711\n"), Some(27));
        assert_eq!(running("no load"), None);
        let second = Duration::from_secs(1);
        assert_eq!(counts(second / 2, 1.0), second / 2);
        assert_eq!(counts(second, 0.1), second / 10);
        assert_eq!(counts(38 * second, 1.0), second, "the machine stood still");
        assert!((0.0..=1.0).contains(&share()));
    }

    #[test]
    fn it_ends() {
        assert!(Patience::new(Duration::ZERO).is_over());
        let begun = Instant::now();
        let limit = Duration::from_millis(250);
        let mut asked = 0;
        assert!(!Patience::new(limit).until(LOOK / 10, || {
            asked += 1;
            false
        }));
        assert!(begun.elapsed() >= limit && asked > 1, "{:?}", begun.elapsed());
        assert!(Patience::new(limit).until(LOOK, || true));
    }
}
