//! The cgroups of a container. The agent notes their paths in the container's bundle before they exist: a
//! `runc` that is killed while it makes them leaves them without a record of its own.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use farfork_sys::freezer::Freezer;
use farfork_sys::{cgroup, pidfd, proc, words};

/// How often processes are looked for that were begun while others were killed.
const PASSES: u32 = 8;

/// In a bundle: their directories, in JSON.
const FILE: &str = "cgroups.json";

/// The `cgroupsPath` of a container whose bundle names none, in the cgroup `above` if there is one.
pub fn name(id: &str, above: Option<&str>) -> String {
    let above = above.map(|above| format!("{above}/")).unwrap_or_default();
    format!("{above}farfork-{id}")
}

/// Notes where those of the container will be.
pub fn note(bundle: &Path, id: &str, above: Option<&str>) -> io::Result<()> {
    let groups = cgroup::of_container(&name(id, above))?;
    fs::write(bundle.join(FILE), serde_json::to_vec(&groups)?)
}

/// Those that were noted.
fn noted(bundle: &Path) -> Vec<PathBuf> {
    let text = fs::read(bundle.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// What freezes all that is in them.
pub fn freezer(bundle: &Path) -> Option<Freezer> {
    Freezer::among(&noted(bundle))
}

/// Whether processes are in them.
pub fn have_processes(bundle: &Path) -> bool {
    noted(bundle).iter().any(|group| !procs(group).is_empty())
}

/// The processes in them that are seen from here.
pub fn members(bundle: &Path) -> BTreeSet<i32> {
    let texts = noted(bundle).into_iter().map(|group| procs(&group));
    let pids = |text: String| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>();
    texts.flat_map(pids).filter(|pid| *pid > 0).collect()
}

/// Kills the processes in them, all but the first, and does not wait for their end.
pub fn kill_all_but(bundle: &Path, first: i32) {
    let names = noted(bundle);
    let names: Vec<&str> = names.iter().filter_map(|group| group.file_name()?.to_str()).collect();
    let mut killed = BTreeSet::from([first]);
    for _ in 0..PASSES {
        let new: Vec<i32> = members(bundle).into_iter().filter(|pid| killed.insert(*pid)).collect();
        if new.is_empty() {
            return;
        }
        new.into_iter().for_each(|pid| kill_if_in(pid, &names));
    }
}

fn kill_if_in(pid: i32, names: &[&str]) {
    // It is looked at once more when no other process can have its pid.
    let Ok(process) = pidfd::open(pid) else { return };
    let groups = proc::text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let is_in = |line: &str| line.rsplit('/').next().is_some_and(|name| names.contains(&name));
    if groups.lines().any(is_in) {
        let _ = pidfd::send_signal(&process, libc::SIGKILL);
    }
}

fn procs(group: &Path) -> String {
    proc::text(group.join("cgroup.procs")).unwrap_or_default()
}

/// Removes what is left of them.
pub fn remove(bundle: &Path) -> Result<(), String> {
    noted(bundle).iter().try_for_each(|group| match fs::remove_dir(group) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove the cgroup {}: {}", group.display(), words::of(&error)))
        }
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_groups_are_removed_when_they_are_empty() {
        let place = tempfile::tempdir().unwrap();
        let (bundle, group) = (place.path(), place.path().join("group"));
        assert!(!have_processes(bundle) && remove(bundle).is_ok(), "nothing was noted");
        let both = [&group, &place.path().join("another hierarchy")];
        fs::write(bundle.join(FILE), serde_json::to_vec(&both).unwrap()).unwrap();
        assert!(!have_processes(bundle) && remove(bundle).is_ok(), "none was made");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), "7\n").unwrap();
        assert!(have_processes(bundle));
        assert_eq!(Vec::from_iter(members(bundle)), [7]);
        assert!(remove(bundle).unwrap_err().contains("group"));
        fs::remove_file(group.join("cgroup.procs")).unwrap();
        assert!(remove(bundle).is_ok() && !group.exists());
    }

    #[test]
    fn groups_are_noted_in_every_hierarchy() {
        let bundle = tempfile::tempdir().unwrap();
        for (above, name) in [(None, "farfork-0123abcd"), (Some("all"), "all/farfork-0123abcd")] {
            note(bundle.path(), "0123abcd", above).unwrap();
            let groups = noted(bundle.path());
            assert!(groups.iter().all(|group| group.ends_with(name)));
            assert_eq!(groups, cgroup::of_container(name).unwrap());
        }
    }
}
