//! Clocks that count from a boot, and the time namespaces that shift them.
//!
//! A clone's clocks never stand behind what its parent has read: programs keep deadlines and
//! differences, and the kernel promises them that these clocks only go on.
//!
//! ```text
//!  same boot      the parent's offsets: parent and clones go on reading the same clock
//!  another boot   the node's clocks if they are ahead of the parent's; else offsets by which they
//!                 go on where the parent's stood
//! ```

use std::fs;
use std::io;

use rustix::time::{ClockId, clock_gettime};

use crate::machine;
use crate::model::{Clocks, Offsets, Readings};

const NS: i64 = 1_000_000_000;

/// The coarse clocks lag behind the fine ones by a tick, 10 ms at most.
const TICK_NS: i64 = 10_000_000;

/// The clocks of this process.
pub fn here() -> io::Result<Clocks> {
    let own = offsets("self")?;
    Ok(Clocks { boot: machine::boot().to_owned(), read: read(), ahead: own })
}

/// The clocks of the process `pid`, which stands still. Its time namespace must be that of its
/// children, whose offsets are all that the kernel shows.
pub fn of_process(pid: i32) -> io::Result<Clocks> {
    let (here, ahead) = (here()?, offsets(&pid.to_string())?);
    let read = here.read.moved(ahead.from(here.ahead));
    Ok(Clocks { read, ahead, ..here })
}

/// The offsets that a clone's clocks need on a node whose own are `here`, if it needs other ones
/// than the node has.
pub fn needed(parent: &Clocks, here: &Clocks) -> Option<Offsets> {
    let base = if parent.boot == here.boot { parent.ahead } else { here.ahead };
    let there = here.read.moved(base.from(here.ahead));
    let behind = |parent: i64, here: i64| parent.saturating_sub(here);
    let monotonic = behind(parent.read.monotonic_ns, there.monotonic_ns)
        .max(behind(parent.read.raw_ns, there.raw_ns));
    let boottime = behind(parent.read.boottime_ns, there.boottime_ns);
    let caught_up = |offset: i64, behind: i64| match behind {
        ..=0 => offset,
        _ => offset.saturating_add(behind).saturating_add(TICK_NS),
    };
    let offsets = Offsets {
        monotonic_ns: caught_up(base.monotonic_ns, monotonic),
        boottime_ns: caught_up(base.boottime_ns, boottime),
    };
    (offsets != here.ahead).then_some(offsets)
}

fn read() -> Readings {
    let read = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec * NS + now.tv_nsec
    };
    Readings {
        monotonic_ns: read(ClockId::Monotonic),
        raw_ns: read(ClockId::MonotonicRaw),
        boottime_ns: read(ClockId::Boottime),
    }
}

/// The offsets in `/proc/PID/timens_offsets`; `pid` may be `self`. A kernel without time namespaces has no such file.
fn offsets(pid: &str) -> io::Result<Offsets> {
    match fs::read_to_string(format!("/proc/{pid}/timens_offsets")) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Offsets::default()),
        Err(error) => Err(error),
    }
}

/// Lines of a clock's name, seconds and nanoseconds.
fn parse(text: &str) -> Offsets {
    let offset = |name: &str| {
        let mut lines = text.lines().map(str::split_whitespace);
        let mut words = lines.find_map(|mut words| (words.next()? == name).then_some(words))?;
        let (seconds, nanos): (i64, i64) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(seconds.saturating_mul(NS).saturating_add(nanos))
    };
    Offsets {
        monotonic_ns: offset("monotonic").unwrap_or(0),
        boottime_ns: offset("boottime").unwrap_or(0),
    }
}

impl Readings {
    /// What they would be in a time namespace that is `by` further ahead.
    fn moved(self, by: Offsets) -> Readings {
        Readings {
            monotonic_ns: self.monotonic_ns.saturating_add(by.monotonic_ns),
            raw_ns: self.raw_ns.saturating_add(by.monotonic_ns),
            boottime_ns: self.boottime_ns.saturating_add(by.boottime_ns),
        }
    }
}

impl Offsets {
    /// How far they are ahead of `other`.
    pub fn from(self, other: Offsets) -> Offsets {
        Offsets {
            monotonic_ns: self.monotonic_ns.saturating_sub(other.monotonic_ns),
            boottime_ns: self.boottime_ns.saturating_sub(other.boottime_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks of `boot` that were read `since` seconds after it, `ahead` seconds off.
    fn clocks(boot: &str, since: i64, ahead: i64) -> Clocks {
        let (read, ahead_ns) = ((since + ahead) * NS, ahead * NS);
        Clocks {
            boot: boot.to_owned(),
            read: Readings { monotonic_ns: read, raw_ns: read, boottime_ns: read },
            ahead: Offsets { monotonic_ns: ahead_ns, boottime_ns: ahead_ns },
        }
    }

    fn seconds(offsets: Option<Offsets>) -> Option<i64> {
        offsets.map(|offsets| {
            assert_eq!(offsets.monotonic_ns, offsets.boottime_ns);
            offsets.monotonic_ns.div_euclid(NS)
        })
    }

    #[test]
    fn in_one_boot_a_clone_has_its_parents_offsets() {
        let parent = clocks("a", 100, 0);
        assert_eq!(needed(&parent, &clocks("a", 101, 0)), None);
        assert_eq!(seconds(needed(&parent, &clocks("a", 101, -50))), Some(0));
        let shifted = clocks("a", 100, 1000);
        assert_eq!(seconds(needed(&shifted, &clocks("a", 101, 0))), Some(1000));
        assert_eq!(needed(&shifted, &clocks("a", 101, 1000)), None);
        assert_eq!(seconds(needed(&clocks("a", 100, -30), &clocks("a", 101, 0))), Some(-30));
    }

    #[test]
    fn after_another_boot_no_clock_is_behind() {
        let parent = clocks("a", 100, 0);
        assert_eq!(needed(&parent, &clocks("b", 101, 0)), None);
        assert_eq!(seconds(needed(&parent, &clocks("b", 40, 0))), Some(60));
        assert_eq!(seconds(needed(&parent, &clocks("b", 200, -140))), Some(-100));
        assert_eq!(seconds(needed(&clocks("a", 100, 500), &clocks("b", 101, 0))), Some(499));
        // A virtual machine that was started twice from one snapshot.
        assert_eq!(seconds(needed(&parent, &clocks("a", 40, 0))), Some(60));
    }

    #[test]
    fn each_clock_catches_up_for_itself() {
        let parent = clocks("a", 100, 0);
        let mut here = clocks("b", 150, 0);
        here.read.raw_ns = 98 * NS;
        let offsets = needed(&parent, &here).expect("the raw clock is behind");
        assert_eq!((offsets.monotonic_ns, offsets.boottime_ns), (2 * NS + TICK_NS, 0));
        here.read = Readings { boottime_ns: 99 * NS, ..parent.read };
        let offsets = needed(&parent, &here).expect("the boot-time clock is behind");
        assert_eq!((offsets.monotonic_ns, offsets.boottime_ns), (0, NS + TICK_NS));
    }

    #[test]
    fn offsets_are_read_as_the_kernel_prints_them() {
        let text = "monotonic           -2 500000000\nboottime            77         0\n";
        let parsed = parse(text);
        assert_eq!((parsed.monotonic_ns, parsed.boottime_ns), (-1_500_000_000, 77 * NS));
        assert_eq!(parse(""), Offsets::default());
    }

    #[test]
    fn a_process_reads_its_own_clocks() {
        let (before, own) = (here().unwrap(), of_process(std::process::id() as i32).unwrap());
        assert_eq!((&own.boot, own.ahead), (&before.boot, before.ahead));
        assert!(own.read.monotonic_ns >= before.read.monotonic_ns);
        assert!(!own.boot.is_empty() && own.read.boottime_ns >= own.read.monotonic_ns);
        assert_eq!(needed(&before, &own), None);
    }
}
