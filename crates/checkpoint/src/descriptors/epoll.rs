//! Epoll instances. A watch belongs to a file *and* a number, and outlives the number when the
//! file stays open under another: such a watch cannot be made again.

use std::collections::HashMap;

use farfork_image::model::{EpollWatch, OpenFile};
use farfork_sys::kcmp;

use super::error::{Capture, Stop, refuse_detail, unexpected};
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// An epoll instance.
pub fn capture(entry: &Entry, subject: &Subject) -> Capture {
    let mut watches = Vec::new();
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for line in entry.info.values("tfd") {
        let watch = parse(line).ok_or_else(|| {
            Stop::from(unexpected(subject.pid, format!("watches of fd {}", entry.fd)))
        })?;
        let nth = seen.entry(watch.fd).or_default();
        check(entry, subject, watch.fd, *nth)?;
        *nth += 1;
        watches.push(watch);
    }
    Ok(OpenFile::Epoll { flags: entry.info.status_flags(), watches })
}

/// `3 events: 40000019 data:                3  pos:0 ino:e876 sdev:f`.
fn parse(line: &str) -> Option<EpollWatch> {
    let mut words = line.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    Some(EpollWatch { member: 0, fd, events, data })
}

fn check(entry: &Entry, subject: &Subject, watched: u32, nth: u32) -> Result<(), Stop> {
    if kcmp::is_watching(subject.pid, entry.fd, watched, nth) == Ok(true) {
        return Ok(());
    }
    Err(refuse_detail(format!("watching fd {watched}"), causes::descriptors::EPOLL_STALE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_three_numbers() {
        let line = "       12 events: 80002019 data:  ffff00000003  pos:0 ino:e876 sdev:f";
        let watch = EpollWatch { member: 0, fd: 12, events: 0x8000_2019, data: 0xffff_0000_0003 };
        assert_eq!(parse(line), Some(watch));
    }
}
