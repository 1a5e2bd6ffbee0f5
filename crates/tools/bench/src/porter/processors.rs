//! What processors did, as the kernel counts it for all of them.

use farfork_sys::proc;

use crate::error::{BenchError, io};

const PATH: &str = "/proc/stat";

/// What processors did over some time, in percent of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// They worked, for whomever.
    pub busy: f64,
    /// They had work, and the hypervisor has given their time to somebody else.
    pub taken_away: f64,
}

impl Load {
    /// They had nothing to give to anybody who waited.
    pub fn not_idle(self) -> f64 {
        self.busy + self.taken_away
    }
}

/// What they did since the machine was started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    busy: u64,
    idle: u64,
    taken_away: u64,
}

impl Ticks {
    /// Those of this moment.
    pub fn now() -> Result<Ticks, BenchError> {
        let text = proc::text(PATH).map_err(io("read", PATH))?;
        let strange = || io("read", PATH)(std::io::Error::other("it begins with no sum"));
        Ticks::read(&text).ok_or_else(strange)
    }

    /// By the first line, where all processors are added up.
    fn read(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // What guests of this machine took stands behind these, and is in the first two of them.
        let fields = fields.take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let [user, nice, system, idle, io_wait, irq, soft_irq, steal] =
            <[u64; 8]>::try_from(fields).ok()?;
        let busy = user + nice + system + irq + soft_irq;
        Some(Ticks { busy, idle: idle + io_wait, taken_away: steal })
    }

    /// What they did after `before`.
    pub fn since(self, before: Ticks) -> Load {
        // Waiting for disks is known to be counted backwards now and then.
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
        let before = Ticks::read("cpu  100 20 30 400 50 6 7 80 90 10\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Ticks { busy: 163, idle: 450, taken_away: 80 });
        let after = Ticks { busy: 163 + 60, idle: 450 + 20, taken_away: 80 + 20 };
        assert_eq!(after.since(before), Load { busy: 60.0, taken_away: 20.0 });
        assert_eq!(before.since(before), Load::default());
        assert_eq!(before.since(after), Load::default(), "time does not go back");
        for none in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3 4 5 6 7\n", "cpu  1 2 x 4 5 6 7 8\n"]
        {
            assert_eq!(Ticks::read(none), None, "{none}");
        }
    }

    #[test]
    fn this_machine_tells_it() {
        assert!(Ticks::now().unwrap().busy > 0);
    }
}
