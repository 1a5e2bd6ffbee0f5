//! What is behind the descriptors of a process.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use farfork_sys::fcntl_owner::{self, SignalTarget};
use farfork_sys::kcmp;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::facts::Facts;
use crate::process::inner_pid;
use crate::sockets;

/// Lines of `fdinfo` that name objects of the kernel, which are others for a clone.
const NAMES: [&str; 3] = ["mnt_id", "ino", "eventfd-id"];

/// Reads them.
pub fn read(pid: i32, facts: &mut Facts) -> io::Result<()> {
    let place = format!("/proc/{pid}");
    let process = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let mut numbers: Vec<u32> = fs::read_dir(format!("{place}/fd"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    for number in &numbers {
        let link = fs::read_link(format!("{place}/fd/{number}"))?;
        facts.add(format!("fd {number}"), target(&link));
        let info = fs::read_to_string(format!("{place}/fdinfo/{number}"))?;
        add_info(*number, &info, facts);
        let own = pidfd_getfd(&process, *number as i32, PidfdGetfdFlags::empty());
        match own {
            Ok(own) => add_settings(*number, &own, facts),
            error => facts.add_result(format!("fd {number}/get"), error.map(|_| "")),
        }
    }
    add_sharing(pid, &numbers, facts);
    Ok(())
}

/// What a link in `/proc/PID/fd` shows, without the numbers of objects.
fn target(link: &Path) -> String {
    let shown = link.display().to_string();
    match shown.split_once(":[") {
        Some((kind @ ("socket" | "pipe"), _)) => kind.to_owned(),
        _ => shown,
    }
}

fn add_info(number: u32, info: &str, facts: &mut Facts) {
    for (count, line) in info.lines().enumerate() {
        let (key, value) = line.split_once(':').unwrap_or(("line", line));
        if NAMES.contains(&key) {
            continue;
        }
        let words: Vec<&str> = value.split_whitespace().collect();
        let (key, value) = match key {
            // In an order that the kernel chooses: number, events, data; then position and names.
            "tfd" => (
                format!("tfd {} {}", words[0], words.get(4).unwrap_or(&"")),
                words[..5.min(words.len())].join(" "),
            ),
            "NSpid" => (key.to_owned(), words.last().copied().unwrap_or_default().to_owned()),
            "Pid" => {
                (key.to_owned(), words.first().map_or_else(String::new, |pid| inner_word(pid)))
            }
            // Number, kind and range of a lock; the pid of its owner; device and inode of its file.
            "lock" => {
                let words = words.iter().map(|word| inner_word(word)).collect::<Vec<_>>();
                (format!("lock {count}"), words.join(" "))
            }
            "inotify wd" | "line" => (format!("{key} {count}"), words.join(" ")),
            _ => (key.to_owned(), words.join(" ")),
        };
        facts.add(format!("fd {number}/{key}"), value);
    }
}

/// A pid as the process itself sees it, any other word as it is.
fn inner_word(word: &str) -> String {
    let inner = word.parse().ok().filter(|pid| *pid > 0).and_then(inner_pid);
    inner.map_or_else(|| word.to_owned(), |pid| format!("pid {pid}"))
}

fn add_settings(number: u32, own: &OwnedFd, facts: &mut Facts) {
    let name = |what: &str| format!("fd {number}/{what}");
    let owner = match fcntl_owner::target(own) {
        Ok(SignalTarget::Process(pid)) => format!("process {:?}", inner_pid(pid)),
        Ok(SignalTarget::Group(group)) => format!("group {:?}", inner_pid(group)),
        other => format!("{other:?}"),
    };
    facts.add(name("owner"), owner);
    facts.add_result(name("signal"), fcntl_owner::signal(own));
    if let Ok(seals) = rustix::fs::fcntl_get_seals(own) {
        facts.add(name("seals"), format!("{seals:?}"));
    }
    if let Ok(bytes) = rustix::pipe::fcntl_getpipe_size(own) {
        facts.add(name("pipe size"), bytes.to_string());
        facts.add_result(name("bytes waiting"), rustix::io::ioctl_fionread(own));
    }
    if let Ok(found) = rustix::fs::fstat(own) {
        facts.add(name("mode"), format!("{:o}", found.st_mode));
        facts.add(name("size"), found.st_size.to_string());
    }
    if let Ok(settings) = farfork_sys::terminal::settings(own) {
        facts.add(name("terminal"), format!("{settings:?}"));
        facts.add(name("window"), format!("{:?}", farfork_sys::terminal::size(own)));
    }
    sockets::add(number, own.as_fd(), facts);
}

/// Which descriptors are one open file.
fn add_sharing(pid: i32, numbers: &[u32], facts: &mut Facts) {
    // By the kernel's order, so that each is compared with its neighbours only.
    let mut sorted = numbers.to_vec();
    let order = |a: &u32, b: &u32| kcmp::order_files((pid, *a), (pid, *b)).unwrap_or(a.cmp(b));
    sorted.sort_by(order);
    let same = |a: &u32, b: &u32| order(a, b) == Ordering::Equal;
    for group in sorted.chunk_by(same).filter(|group| group.len() > 1) {
        let mut group = group.to_vec();
        group.sort_unstable();
        facts.add(format!("fd {}/is one with", group[0]), format!("{:?}", &group[1..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_a_path_are_known_by_their_kind() {
        assert_eq!(target(Path::new("socket:[123]")), "socket");
        assert_eq!(target(Path::new("anon_inode:[eventfd]")), "anon_inode:[eventfd]");
        assert_eq!(target(Path::new("/a:[b]")), "/a:[b]");
    }

    #[test]
    fn each_watch_is_a_fact() {
        let mut facts = Facts::default();
        let info = "pos:\t0\nflags:\t02\nmnt_id:\t15\ntfd: 3 events: 19 data: 3  pos:0 ino:1 sdev:2\ntfd: 4 events: 1 data: 4\n";
        add_info(7, info, &mut facts);
        assert_eq!(facts.get("fd 7/tfd 3 3"), Some("3 events: 19 data: 3"));
        assert_eq!(facts.get("fd 7/tfd 4 4"), Some("4 events: 1 data: 4"));
        assert_eq!(facts.get("fd 7/mnt_id"), None);
    }
}
