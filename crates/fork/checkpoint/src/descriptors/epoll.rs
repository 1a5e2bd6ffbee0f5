//! Epoll instances. A watch belongs to a file *and* a number, and outlives the number when the
//! file stays open under another: such a watch cannot be made again.

use std::collections::HashMap;

use farfork_image::model::{EpollWatch, OpenFile};
use farfork_sys::kcmp;

use super::error::{CaptureError, CaptureResult, refuse_detail, unexpected};
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// The epoll instance behind `group`, descriptors of one or several processes.
pub fn capture(group: &[&Entry], subject: &Subject) -> CaptureResult {
    let entry = group[0];
    let mut watches = Vec::new();
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for line in entry.info.values("tfd") {
        let watch = parse(line).ok_or_else(|| {
            CaptureError::from(unexpected(subject.pid, format!("watches of fd {}", entry.fd)))
        })?;
        let nth = seen.entry(watch.fd).or_default();
        let member = holder(group, watch.fd, *nth);
        let member = member.and_then(|pid| subject.context.ids.member(pid));
        *nth += 1;
        watches.push(EpollWatch { member: member.ok_or_else(|| stale(watch.fd))?, ..watch });
    }
    Ok(OpenFile::Epoll { flags: entry.info.status_flags(), watches })
}

/// The process among those that have the instance in which number `watched` still is what the
/// `nth` watch on that number is on.
fn holder(group: &[&Entry], watched: u32, nth: u32) -> Option<i32> {
    let instance = (group[0].pid, group[0].fd);
    let pids = group.iter().map(|entry| entry.pid);
    pids.into_iter().find(|pid| kcmp::is_watching(instance, *pid, watched, nth) == Ok(true))
}

fn stale(watched: u32) -> CaptureError {
    refuse_detail(format!("watching fd {watched}"), causes::descriptors::EPOLL_STALE)
}

/// `3 events: 40000019 data:                3  pos:0 ino:e876 sdev:f`.
fn parse(line: &str) -> Option<EpollWatch> {
    let mut words = line.split_whitespace();
    let fd = words.next()?.parse().ok()?;
    let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    Some(EpollWatch { member: 0, fd, events, data })
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
