//! Load of all processors, as the kernel counts it.

use farfork_sys::proc;

use crate::error::{BenchError, io};

const PATH: &str = "/proc/stat";

/// Load of the processors over some time, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Time spent on any work of this machine.
    pub busy: f64,
    /// Time that the hypervisor gave to other machines although there was work (steal time).
    pub taken_away: f64,
}

impl Load {
    /// Time in which a waiting process could not run.
    pub fn not_idle(self) -> f64 {
        self.busy + self.taken_away
    }
}

/// Counters since boot, in ticks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    idle: u64,
    taken_away: u64,
}

impl Ticks {
    /// Reads the counters.
    pub fn now() -> Result<Ticks, BenchError> {
        let text = proc::text(PATH).map_err(io("read", PATH))?;
        let invalid = || io("read", PATH)(std::io::Error::other("its first line is not a sum"));
        Ticks::parse(&text).ok_or_else(invalid)
    }

    /// Parses the first line, the sum of all processors.
    fn parse(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // The fields after these, time of guests, are included in the first two.
        let fields = fields.take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let [user, nice, system, idle, io_wait, irq, soft_irq, steal] =
            <[u64; 8]>::try_from(fields).ok()?;
        let busy = user + nice + system + irq + soft_irq;
        Some(Ticks { busy, idle: idle + io_wait, taken_away: steal })
    }

    /// The load between `before` and this.
    pub fn since(self, before: Ticks) -> Load {
        // The counter of I/O wait can decrease (proc(5)).
        let idle = self.idle.saturating_sub(before.idle);
        let busy = self.busy.saturating_sub(before.busy);
        let taken_away = self.taken_away.saturating_sub(before.taken_away);
        let all = (busy + idle + taken_away).max(1);
        let share = |ticks: u64| 100.0 * ticks as f64 / all as f64;
        Load { busy: share(busy), taken_away: share(taken_away) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_taken_away_is_busy() {
        let before = Ticks::parse("cpu  100 20 30 400 50 6 7 80 90 10\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Ticks { busy: 163, idle: 450, taken_away: 80 });
        let after = Ticks { busy: 163 + 60, idle: 450 + 20, taken_away: 80 + 20 };
        assert_eq!(after.since(before), Load { busy: 60.0, taken_away: 20.0 });
        assert_eq!(before.since(before), Load::default());
        assert_eq!(before.since(after), Load::default(), "time does not go back");
        for none in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3 4 5 6 7\n", "cpu  1 2 x 4 5 6 7 8\n"]
        {
            assert_eq!(Ticks::parse(none), None, "{none}");
        }
    }

    #[test]
    fn this_machine_has_the_counters() {
        assert!(Ticks::now().unwrap().busy > 0);
    }
}
