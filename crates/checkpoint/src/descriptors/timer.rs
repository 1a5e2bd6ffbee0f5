//! Timers as descriptors.

use std::time::{SystemTime, UNIX_EPOCH};

use farfork_image::model::OpenFile;

use super::error::{Capture, unexpected};
use super::fdinfo::FdInfo;
use super::subject::Subject;
use super::table::Entry;

const WALL_CLOCKS: [i32; 2] = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_ALARM];
const ABSOLUTE: u32 = libc::TFD_TIMER_ABSTIME as u32;
const NS: u64 = 1_000_000_000;

/// A timerfd.
pub fn capture(entry: &Entry, subject: &Subject) -> Capture {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timer = timer(&entry.info, now.as_nanos() as u64);
    timer.ok_or_else(|| unexpected(subject.pid, format!("timer of fd {}", entry.fd)).into())
}

fn timer(info: &FdInfo, wall_ns: u64) -> Option<OpenFile> {
    let clock = info.value("clockid")?.parse().ok()?;
    let ticks = info.value("ticks")?.parse().ok()?;
    let used = u32::from_str_radix(info.value("settime flags")?, 8).ok()?;
    let (interval, left) = (pair(info.value("it_interval")?)?, pair(info.value("it_value")?)?);
    // A periodic timer whose tick was not read yet stands still until it is. Where it would be
    // in its next period is not shown: a whole one is left to it.
    let left = if left == 0 && ticks > 0 { interval } else { left };
    let is_wall = used & ABSOLUTE != 0 && WALL_CLOCKS.contains(&clock);
    let due = if is_wall && left > 0 { wall_ns + left } else { left };
    Some(OpenFile::Timer {
        clock,
        flags: info.status_flags(),
        set_flags: if is_wall { used } else { used & !ABSOLUTE },
        ticks,
        setting: [interval / NS, interval % NS, due / NS, due % NS],
    })
}

/// Nanoseconds of `(s, ns)`.
fn pair(text: &str) -> Option<u64> {
    let (seconds, nanos) = text.trim_matches(['(', ')']).split_once(", ")?;
    Some(seconds.parse::<u64>().ok()? * NS + nanos.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(clock: i32, ticks: u64, used: u32, value: &str, interval: &str) -> (u32, [u64; 4]) {
        let text = format!(
            "pos:\t0\nflags:\t02\nclockid: {clock}\nticks: {ticks}\nsettime flags: 0{used}\n\
             it_value: {value}\nit_interval: {interval}\n"
        );
        match timer(&FdInfo::parse(text).unwrap(), 10 * NS) {
            Some(OpenFile::Timer { set_flags, setting, .. }) => (set_flags, setting),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_wall_clock_keeps_absolute_times() {
        assert_eq!(setting(1, 0, 1, "(2, 5)", "(0, 0)"), (0, [0, 0, 2, 5]));
        assert_eq!(setting(0, 0, 3, "(2, 5)", "(0, 0)"), (3, [0, 0, 12, 5]));
        assert_eq!(setting(0, 0, 1, "(0, 0)", "(0, 0)"), (1, [0, 0, 0, 0]));
    }

    #[test]
    fn a_tick_that_waits_leaves_a_period() {
        assert_eq!(setting(1, 1, 0, "(0, 0)", "(3, 7)"), (0, [3, 7, 3, 7]));
        assert_eq!(setting(1, 1, 0, "(0, 0)", "(0, 0)"), (0, [0, 0, 0, 0]));
    }
}
