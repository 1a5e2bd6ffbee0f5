//! Timers as descriptors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_image::clocks;
use farfork_image::model::OpenFile;

use super::error::{CaptureResult, DescriptorError, proc_error, unexpected};
use super::fdinfo::FdInfo;
use super::subject::Subject;
use super::table::Entry;

const ABSOLUTE: u32 = libc::TFD_TIMER_ABSTIME as u32;
const NS: u64 = 1_000_000_000;

/// How far apart the time left and the clock may be read.
const MOST_APART: Duration = Duration::from_millis(5);
/// How often both are read again. On a machine that stalls for longer each time, the last reading counts.
const TRIES: u32 = 50;

/// A timerfd. What the kernel shows of it is read again, beside the clock: the table of descriptors was
/// read before, and the time between would delay a timer that was set to a moment.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let mut captured = read(entry, subject)?;
    for _ in 0..TRIES {
        if captured.0 <= MOST_APART {
            break;
        }
        captured = read(entry, subject)?;
    }
    let (_, timer) = captured;
    timer.ok_or_else(|| unexpected(subject.pid, format!("timer of fd {}", entry.fd)).into())
}

/// The timer, and how long it took to read it and the clocks.
fn read(entry: &Entry, subject: &Subject) -> Result<(Duration, Option<OpenFile>), DescriptorError> {
    let begun = Instant::now();
    let clocks = clocks::of_process(subject.pid).map_err(proc_error(subject.pid, "the clocks"))?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = fs::read_to_string(info_path(&entry.place()))
        .map_err(proc_error(subject.pid, "the timer of a descriptor"))?;
    let took = begun.elapsed();
    let info = FdInfo::parse(text);
    let timer = info.and_then(|info| {
        timer(&info, |clock| match clock {
            libc::CLOCK_MONOTONIC => clocks.read.monotonic_ns as u64,
            libc::CLOCK_BOOTTIME | libc::CLOCK_BOOTTIME_ALARM => clocks.read.boottime_ns as u64,
            _ => wall.as_nanos() as u64,
        })
    });
    Ok((took, timer))
}

/// `/proc/PID/fdinfo/FD`, from `/proc/PID/fd/FD`.
fn info_path(place: &Path) -> PathBuf {
    let directory = place.parent().unwrap_or(place).with_file_name("fdinfo");
    directory.join(place.file_name().unwrap_or_default())
}

/// The kernel shows the time left. `now_ns` is the process's time on a clock: a timer that was set
/// to a moment is due at that moment in a clone, too.
fn timer(info: &FdInfo, now_ns: impl Fn(i32) -> u64) -> Option<OpenFile> {
    let clock = info.value("clockid")?.parse().ok()?;
    let ticks = info.value("ticks")?.parse().ok()?;
    let used = u32::from_str_radix(info.value("settime flags")?, 8).ok()?;
    let (interval, left) = (pair(info.value("it_interval")?)?, pair(info.value("it_value")?)?);
    // A periodic timer whose tick was not read yet stands still until it is. Where it would be
    // in its next period is not shown: a whole one is left to it.
    let left = if left == 0 && ticks > 0 { interval } else { left };
    let due = if used & ABSOLUTE != 0 && left > 0 { now_ns(clock) + left } else { left };
    Some(OpenFile::Timer {
        clock,
        flags: info.status_flags(),
        set_flags: used,
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
        match timer(&FdInfo::parse(text).unwrap(), |clock| (10 + clock as u64) * NS) {
            Some(OpenFile::Timer { set_flags, setting, .. }) => (set_flags, setting),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_moment_stays_a_moment() {
        assert_eq!(setting(1, 0, 0, "(2, 5)", "(0, 0)"), (0, [0, 0, 2, 5]));
        assert_eq!(setting(1, 0, 1, "(2, 5)", "(0, 0)"), (1, [0, 0, 13, 5]));
        assert_eq!(setting(0, 0, 3, "(2, 5)", "(0, 0)"), (3, [0, 0, 12, 5]));
        assert_eq!(setting(0, 0, 1, "(0, 0)", "(0, 0)"), (1, [0, 0, 0, 0]));
    }

    #[test]
    fn a_tick_that_waits_leaves_a_period() {
        assert_eq!(setting(1, 1, 0, "(0, 0)", "(3, 7)"), (0, [3, 7, 3, 7]));
        assert_eq!(setting(1, 1, 0, "(0, 0)", "(0, 0)"), (0, [0, 0, 0, 0]));
    }
}
