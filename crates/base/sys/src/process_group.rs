//! Cgroups that count processes and threads together, below which others are made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, OwnGroup};
use crate::proc;

/// A group for the groups of containers, in every hierarchy that is mounted; removed on drop. Its containers
/// have to be gone by then.
#[derive(Debug)]
pub struct ProcessGroup {
    places: Vec<PathBuf>,
    count: ProcessCount,
}

/// Reads how many processes and threads a [`ProcessGroup`] has.
#[derive(Clone, Debug)]
pub struct ProcessCount {
    directory: PathBuf,
}

impl ProcessGroup {
    /// The group of this name, made if missing, in which `runc` makes groups for a process of `node` if a
    /// container's `cgroupsPath` begins with the name. All that are in it may have `most` processes and
    /// threads.
    ///
    /// # Errors
    /// No hierarchy that counts processes is mounted, or it cannot be written.
    pub fn make(node: &OwnGroup, name: &str, most: u64) -> io::Result<ProcessGroup> {
        let places = node.places(name)?;
        // Not all hierarchies let a group be made, and only the one that counts processes has to.
        places.iter().for_each(|place| drop(fs::create_dir(place)));
        let counts = |place: &&PathBuf| place.join(MOST).exists();
        let Some(directory) = places.iter().find(counts).cloned() else {
            remove(&places);
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "no cgroup hierarchy here counts processes (pids)",
            ));
        };
        let made = ProcessGroup { places, count: ProcessCount { directory } };
        fs::write(made.count.directory.join(MOST), most.to_string())?;
        Ok(made)
    }

    /// Removes the group of this name, if a process that was killed has left it. Its containers have to be
    /// gone by then.
    pub fn remove_left(node: &OwnGroup, name: &str) {
        if let Ok(places) = node.places(name) {
            remove(&places);
        }
    }

    /// To read it.
    pub fn count(&self) -> ProcessCount {
        self.count.clone()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        remove(&self.places);
    }
}

impl ProcessCount {
    /// Processes and threads, and how many there may be; `None` if that cannot be read.
    pub fn read(&self) -> Option<(u64, u64)> {
        Some((number(&self.directory.join("pids.current"))?, number(&self.directory.join(MOST))?))
    }
}

/// The smallest limit of processes that this process's groups and those above them have.
pub fn limit_above() -> Option<u64> {
    let own = cgroup::own_directories().ok()?;
    let limits = own.iter().flat_map(|one| one.ancestors());
    limits.filter_map(|group| number(&group.join(MOST))).min()
}

const MOST: &str = "pids.max";

fn number(file: &Path) -> Option<u64> {
    proc::text(file).ok()?.trim().parse().ok()
}

fn remove(places: &[PathBuf]) {
    places.iter().for_each(|place| drop(fs::remove_dir(place)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_in_groups_below_are_limited_together() {
        let name = format!("farfork-test-pids-{}", std::process::id());
        let made = OwnGroup::make(&name)
            .and_then(|node| Ok((ProcessGroup::make(&node, &format!("{name}-all"), 3)?, node)));
        let (group, _node) = match made {
            Ok(made) => made,
            Err(error) => return println!("skipped: {}", crate::words::of(&error)),
        };
        assert_eq!(group.count().read(), Some((0, 3)));
        let below = group.count.directory.join("below");
        fs::create_dir(&below).unwrap();
        let script = "echo $$ > $0/cgroup.procs; sleep 0.2 & sleep 0.2 & (sleep 0.1 & wait)";
        let ran = Command::new("sh").args(["-c", script]).arg(&below).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
        while fs::remove_dir(&below).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let places = group.places.clone();
        drop(group);
        assert!(said.contains("fork"), "the fourth process: {said}");
        assert!(places.iter().all(|place| !place.exists()));
    }
}
