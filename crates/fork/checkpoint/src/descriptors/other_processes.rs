//! Other processes that have open what the processes of an image have open.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, readlinkat};

use super::pty;
use super::table::{DELETED, Entry, Kind};

/// Links of pipes, sockets and files without a name among `entries` that a process other than
/// `pids` has open as well. A process that may not be looked into counts as one that has none.
/// Standard streams come from the caller of restore anyway, unless their other end `is_within`, and
/// to look for it takes longer than all else, with the processes standing still.
pub fn links(
    pids: &[i32],
    entries: &[&Entry],
    is_within: impl Fn(&Entry) -> bool,
) -> HashSet<String> {
    let own: HashSet<&str> = entries
        .iter()
        .filter(|entry| matches!(entry.kind(), Kind::Pipe | Kind::Socket))
        .filter(|entry| !entry.is_standard() || is_within(entry))
        .map(|entry| entry.link.as_str())
        .collect();
    // A deleted file's link may be another's, too, and another process's link to it differ.
    let unnamed = entries.iter().filter(|entry| entry.is_unnamed());
    let unnamed: Vec<_> = unnamed.map(|entry| (entry.identity(), &entry.link)).collect();
    // Slaves of the processes' masters, also where another process has the master.
    let slaves: HashMap<u32, String> =
        pty::masters(entries).map(|number| (number, pty::slave_path(number))).collect();
    let mut found = HashSet::new();
    if own.is_empty() && unnamed.is_empty() && slaves.is_empty() {
        return found;
    }
    // What is in flight was opened here to look at it.
    let held: HashSet<PathBuf> =
        entries.iter().filter(|entry| entry.held.is_some()).map(|entry| entry.place()).collect();
    let others = processes().filter(|other| !pids.contains(other)).flat_map(links_of);
    for (path, link) in others.filter(|(path, _)| !held.contains(path)) {
        if own.contains(link.as_str()) || slaves.values().any(|slave| *slave == link) {
            found.insert(link);
        } else if !slaves.is_empty() && link.ends_with("/ptmx") {
            found.extend(master_at(&path).and_then(|number| slaves.get(&number).cloned()));
        } else if !unnamed.is_empty() && link.ends_with(DELETED) {
            let identity = fs::metadata(path).map(|inode| (inode.dev(), inode.ino()));
            let same = unnamed.iter().filter(|(own, _)| identity.as_ref().is_ok_and(|i| i == own));
            found.extend(same.map(|(_, link)| (*link).clone()));
        }
    }
    found
}

/// Number of the terminal whose master is at `path`, a descriptor in `/proc`.
fn master_at(path: &Path) -> Option<u32> {
    let info = path.parent()?.with_file_name("fdinfo").join(path.file_name()?);
    let text = fs::read_to_string(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("tty-index:")?.trim().parse().ok())
}

fn processes() -> impl Iterator<Item = i32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Descriptors of a process in `/proc`, and where they lead.
fn links_of(pid: i32) -> impl Iterator<Item = (PathBuf, String)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = PathBuf::from(format!("/proc/{pid}/fd"));
    let directory = rustix::fs::open(&place, flags, Mode::empty()).ok();
    let entries = directory.and_then(|fd| Some((Dir::read_from(&fd).ok()?, fd)));
    entries.into_iter().flat_map(move |(entries, fd)| {
        let place = place.clone();
        entries.filter_map(move |entry| {
            let entry = entry.ok()?;
            // From the directory on: the way to it takes longer than the link itself.
            let link = readlinkat(&fd, entry.file_name(), Vec::new()).ok()?;
            Some((place.join(entry.file_name().to_str().ok()?), link.into_string().ok()?))
        })
    })
}
