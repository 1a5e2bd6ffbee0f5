//! Times in which a processor of the machine stood still. That happens in virtual machines: 38 s were
//! seen, with a lockup of workers in the kernel's log. Processes that wait for this processor take longer
//! by that time.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(100);
/// A later wake-up is a stall: other running processes delay a wake-up by less.
const LATE: Duration = Duration::from_secs(2);

/// How long each processor has stood still, in milliseconds.
#[derive(Clone, Debug)]
pub struct Stalls(Vec<u64>);

impl Stalls {
    /// Up to now. The first call begins to watch.
    pub fn now() -> Stalls {
        Stalls(watched().iter().map(|stood_ms| stood_ms.load(Relaxed)).collect())
    }

    /// How long one processor has stood still since then, the one that did longest. Waits for those to
    /// say so that have just come back.
    pub fn since(&self) -> Duration {
        thread::sleep(5 * NAP);
        let now = Stalls::now();
        let longer = now.0.iter().zip(&self.0).map(|(now, then)| now - then);
        Duration::from_millis(longer.max().unwrap_or(0))
    }
}

fn watched() -> &'static [AtomicU64] {
    static WATCHED: OnceLock<&[AtomicU64]> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let all = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let processors: Vec<usize> =
            (0..CpuSet::count()).filter(|number| all.is_set(*number) == Ok(true)).collect();
        let watched: &[AtomicU64] =
            processors.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        for (stood_ms, processor) in watched.iter().zip(processors) {
            thread::spawn(move || watch(processor, stood_ms));
        }
        watched
    })
}

/// Naps on a processor for ever.
fn watch(processor: usize, stood_ms: &AtomicU64) {
    let mut one = CpuSet::new();
    if one.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &one)).is_err() {
        return; // it was taken away: nothing is known of it
    }
    loop {
        let begun = Instant::now();
        thread::sleep(NAP);
        stood_ms.fetch_add(stood(begun.elapsed()), Relaxed);
    }
}

/// How long a processor has stood still, in milliseconds, on which a nap took so long.
fn stood(napped: Duration) -> u64 {
    let late = napped.saturating_sub(NAP);
    if late > LATE { late.as_millis() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_processor_does_not_stand_still() {
        assert_eq!(stood(NAP), 0);
        assert_eq!(stood(LATE), 0);
        assert_eq!(stood(Duration::from_secs(38)), 37_900);
        let stood = || {
            let stalls = Stalls::now();
            let until = Instant::now() + 2 * LATE;
            let spin = || while Instant::now() < until {};
            thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(spin))));
            stalls.since()
        };
        // A virtual machine may stand still, though hardly each time.
        assert!((0..3).any(|_| stood() == Duration::ZERO));
    }
}
