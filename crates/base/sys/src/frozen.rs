//! Frozen cgroups: which one keeps a process from running.
//!
//! ```text
//!  /proc/PID/task/TID/cgroup + /proc/self/mountinfo ─► directories, up to the mount point
//!      v2: cgroup.freeze of each, cgroup.events of the lowest
//!      v1: freezer.self_freezing of each, freezer.state of the lowest
//!  not mounted here ─► state and wchan of the thread
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::proc;

/// A cgroup that is frozen, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenGroup {
    /// Its directory, or its path as the process sees it if the hierarchy is not mounted here.
    pub directory: PathBuf,
    is_unified: bool,
    is_mounted: bool,
}

impl FrozenGroup {
    /// The topmost one that a thread of `pid` is in; nothing if all can run.
    pub fn find(pid: i32) -> Option<FrozenGroup> {
        FrozenGroup::among(pid, threads(pid))
    }

    /// The topmost one that this thread is in.
    pub fn find_of_thread(pid: i32, tid: i32) -> Option<FrozenGroup> {
        FrozenGroup::among(pid, [tid])
    }

    fn among(pid: i32, tids: impl IntoIterator<Item = i32>) -> Option<FrozenGroup> {
        let mounts = proc::text("/proc/self/mountinfo").unwrap_or_default();
        let mut seen = BTreeMap::new();
        for tid in tids {
            let task = format!("/proc/{pid}/task/{tid}");
            let Ok(groups) = proc::text(format!("{task}/cgroup")) else { continue };
            let look = seen.entry(groups).or_insert_with_key(|groups| look(&mounts, groups));
            match look {
                Finding::Frozen(group) => return Some(group.clone()),
                Finding::Runs => {}
                Finding::Unseen(paths) => {
                    let found = paths.iter().find(|path| stands_still(&task, path.is_unified));
                    if let Some(group) = found {
                        return Some(group.clone());
                    }
                }
            }
        }
        None
    }

    /// How to thaw it.
    pub fn remedy(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        if let Some(id) = name.strip_prefix("farfork-").filter(|id| is_ghost(id)) {
            return format!("resume the ghost with \"farfork ghost resume {id}\"");
        }
        let (word, file) =
            if self.is_unified { ("0", "cgroup.freeze") } else { ("THAWED", "freezer.state") };
        let path = self.directory.join(file);
        let place = if self.is_mounted { "" } else { " where its hierarchy is mounted" };
        format!(
            "thaw it with \"echo {word} > {}\"{place}, or unpause its container",
            path.display()
        )
    }
}

impl fmt::Display for FrozenGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.is_unified { "v2" } else { "v1" };
        write!(f, "{} (cgroup {version})", self.directory.display())
    }
}

fn is_ghost(id: &str) -> bool {
    id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn threads(pid: i32) -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// What the file systems of cgroups show.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Frozen(FrozenGroup),
    Runs,
    /// Groups of hierarchies that are not mounted here.
    Unseen(Vec<FrozenGroup>),
}

fn look(mounts: &str, groups: &str) -> Finding {
    let mut unseen = Vec::new();
    for line in groups.lines() {
        let Some((controllers, path)) = line.split_once(':').and_then(|(_, l)| l.split_once(':'))
        else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|one| one == "freezer") {
            continue;
        }
        let group = |directory: &Path, is_mounted| {
            let directory = directory.to_owned();
            FrozenGroup { directory, is_unified, is_mounted }
        };
        match directories(mounts, is_unified, path) {
            None => unseen.push(group(Path::new(path), false)),
            Some(own) => {
                if let Some(frozen) = topmost(&own, is_unified) {
                    return Finding::Frozen(group(frozen, true));
                }
            }
        }
    }
    if unseen.is_empty() { Finding::Runs } else { Finding::Unseen(unseen) }
}

/// The directories of a group and of those above it, from the lowest up; nothing if none is seen.
fn directories(mounts: &str, is_unified: bool, path: &str) -> Option<Vec<PathBuf>> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let is_it = match kind.next()? {
            "cgroup2" => is_unified,
            "cgroup" => !is_unified && kind.nth(1)?.split(',').any(|option| option == "freezer"),
            _ => false,
        };
        let mut place = place.split(' ').skip(3);
        let (root, at) = (unescaped(place.next()?), PathBuf::from(unescaped(place.next()?)));
        let below = Path::new(path).strip_prefix(&root).ok().filter(|_| is_it)?;
        // A group outside of this cgroup namespace begins with `..`.
        let is_inside = !path.split('/').chain(root.split('/')).any(|part| part == "..");
        let lowest = if below.as_os_str().is_empty() { at.clone() } else { at.join(below) };
        (is_inside && lowest.is_dir()).then(|| {
            let all = lowest.ancestors().take_while(|directory| directory.starts_with(&at));
            all.map(Path::to_owned).collect()
        })
    })
}

/// Space, tab, newline and backslash stand in mountinfo by their octal codes.
fn unescaped(field: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(field.to_owned(), |text, (code, letter)| text.replace(code, letter))
}

/// The topmost directory that is frozen. If none says so itself, one above the mount point may
/// have frozen the lowest.
fn topmost(directories: &[PathBuf], is_unified: bool) -> Option<&Path> {
    let text = |directory: &Path, file: &str| {
        proc::text(directory.join(file)).unwrap_or_default().trim().to_owned()
    };
    let own = if is_unified { "cgroup.freeze" } else { "freezer.self_freezing" };
    let frozen = directories.iter().rev().find(|directory| text(directory, own) == "1");
    let lowest = directories.first()?;
    let is_held = match is_unified {
        true => text(lowest, "cgroup.events").lines().any(|line| line == "frozen 1"),
        false => !matches!(&*text(lowest, "freezer.state"), "" | "THAWED"),
    };
    frozen.or(Some(lowest).filter(|_| is_held)).map(PathBuf::as_path)
}

/// Whether a thread is where the kernel keeps those of frozen groups: as the kernel's symbols have it,
/// it is in `get_signal` (v2), or cannot be interrupted in a place where it always can (v1).
fn stands_still(task: &str, is_unified: bool) -> bool {
    let stat = proc::text(format!("{task}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    let place = proc::text(format!("{task}/wchan")).unwrap_or_default();
    is_in_freezer(state, place.trim(), is_unified)
}

fn is_in_freezer(state: Option<char>, place: &str, is_unified: bool) -> bool {
    const UNIFIED: [&str; 2] = ["do_freezer_trap", "get_signal"];
    const INTERRUPTIBLE: [&str; 8] = [
        "__refrigerator",
        "get_signal",
        "nanosleep",
        "futex_",
        "poll_schedule_timeout",
        "ep_poll",
        "sigtimedwait",
        "do_wait",
    ];
    match state {
        Some('S') => is_unified && UNIFIED.contains(&place),
        Some('D') => !is_unified && INTERRUPTIBLE.iter().any(|name| place.contains(name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups `a/b` below a mount point of a hierarchy whose root is `/top`.
    fn place(is_unified: bool) -> (tempfile::TempDir, String) {
        let at = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(at.path().join("a/b")).unwrap();
        let kind = if is_unified { "cgroup2 none rw" } else { "cgroup none rw,freezer,cpu" };
        let mounts = format!(
            "24 30 0:22 / /sys rw - sysfs sysfs rw\n31 24 0:27 /top {} rw shared:9 - {kind}\n",
            at.path().display()
        );
        (at, mounts)
    }

    fn frozen(look: Finding) -> Option<PathBuf> {
        match look {
            Finding::Frozen(group) => Some(group.directory),
            _ => None,
        }
    }

    #[test]
    fn a_group_of_version_2_is_frozen_with_one_above_it() {
        let (at, mounts) = place(true);
        let write = |name: &str, text: &str| std::fs::write(at.path().join(name), text).unwrap();
        let groups = "4:memory:/elsewhere\n0::/top/a/b\n";
        write("a/b/cgroup.events", "populated 1\nfrozen 0\n");
        assert_eq!(look(&mounts, groups), Finding::Runs);
        write("a/b/cgroup.events", "populated 1\nfrozen 1\n");
        assert_eq!(frozen(look(&mounts, groups)), Some(at.path().join("a/b")), "by one unseen");
        write("a/b/cgroup.freeze", "1\n");
        write("a/cgroup.freeze", "1\n");
        assert_eq!(frozen(look(&mounts, groups)), Some(at.path().join("a")));
        assert_eq!(look(&mounts, "0::/top\n"), Finding::Runs, "the mount point itself");
    }

    #[test]
    fn a_group_of_version_1_is_frozen_with_one_above_it() {
        let (at, mounts) = place(false);
        let write = |name: &str, text: &str| std::fs::write(at.path().join(name), text).unwrap();
        let groups = "6:freezer,cpu:/top/a/b\n";
        write("a/b/freezer.state", "THAWED\n");
        assert_eq!(look(&mounts, groups), Finding::Runs);
        write("a/b/freezer.state", "FREEZING\n");
        assert_eq!(frozen(look(&mounts, groups)), Some(at.path().join("a/b")));
        write("a/freezer.self_freezing", "1\n");
        assert_eq!(frozen(look(&mounts, groups)), Some(at.path().join("a")));
    }

    #[test]
    fn a_hierarchy_that_is_not_mounted_shows_nothing() {
        let (_at, mounts) = place(true);
        let unseen = |groups: &str| matches!(look(&mounts, groups), Finding::Unseen(_));
        assert!(unseen("0::/other\n") && unseen("0::/../up\n") && unseen("6:freezer:/top\n"));
        assert!(unseen("0::/top/a/gone\n"));
        assert_eq!(look("", "4:memory:/a\n"), Finding::Runs);
    }

    #[test]
    fn a_thread_in_the_freezer_is_known_by_where_it_is() {
        let is = is_in_freezer;
        assert!(is(Some('S'), "get_signal", true) && is(Some('S'), "do_freezer_trap", true));
        assert!(is(Some('D'), "hrtimer_nanosleep", false) && is(Some('D'), "get_signal", false));
        assert!(!is(Some('S'), "hrtimer_nanosleep", true) && !is(Some('T'), "get_signal", true));
        assert!(!is(Some('D'), "folio_wait_bit_common", false) && !is(None, "get_signal", true));
    }

    #[test]
    fn the_remedy_fits_the_group() {
        let group = |name: &str, is_unified, is_mounted| FrozenGroup {
            directory: PathBuf::from(name),
            is_unified,
            is_mounted,
        };
        let ghost = group("/sys/fs/cgroup/freezer/farfork-0123abcd", false, true);
        assert!(ghost.remedy().contains("farfork ghost resume 0123abcd"));
        assert!(group("/g/x", true, true).remedy().contains("echo 0 > /g/x/cgroup.freeze"));
        assert!(group("/x", false, false).remedy().contains("THAWED > /x/freezer.state\" where"));
        assert_eq!(group("/g/x", true, true).to_string(), "/g/x (cgroup v2)");
    }
}
