//! Containers that earlier agents of the node have left. Ghosts that waited have ended with their agent;
//! clones in ghosts may live on.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use farfork_sys::proc;
use serde::Deserialize;

use super::container::ContainerPaths;
use super::groups;
use super::is_id;
use farfork_sys::sync::locked;

/// Containers of earlier agents that are still to be deleted.
#[derive(Debug)]
pub struct Leftovers {
    places: ContainerPaths,
    ids: Mutex<BTreeSet<String>>,
}

/// What `runc` keeps of a container.
#[derive(Debug, Deserialize)]
struct Kept {
    init_process_pid: i32,
    /// In clock ticks since the boot, as in `/proc/PID/stat`.
    init_process_start: u64,
}

impl Leftovers {
    /// Finds all containers, before this agent makes the first of its own.
    pub fn find(places: &ContainerPaths) -> Leftovers {
        thaw(places);
        Leftovers { places: places.clone(), ids: Mutex::new(ids(places)) }
    }

    /// Deletes those without living processes, and logs that.
    pub fn clear(&self) {
        let mut ids = locked(&self.ids);
        ids.retain(|id| {
            // Where the agent was killed alone, `runc` may have gone on.
            if is_alive(&self.places.state().join(id))
                || groups::have_processes(&self.places.bundle(id))
            {
                return true;
            }
            let outcome = match self.places.delete(id) {
                Ok(()) => "was deleted".to_owned(),
                Err(reason) => format!("cannot be deleted: {reason}"),
            };
            eprintln!("farfork: ghost {id} of an earlier agent has ended and {outcome}");
            false
        });
    }
}

/// Thaws all containers: the agent that froze them has exited.
pub fn thaw(places: &ContainerPaths) {
    let ids = ids(places);
    let freezers = ids.iter().filter_map(|id| groups::freezer(&places.bundle(id)));
    freezers.for_each(|freezer| drop(freezer.thaw()));
}

/// Their names.
fn ids(places: &ContainerPaths) -> BTreeSet<String> {
    // The agent may have been killed before `runc` knew of one.
    let entries = [places.state(), places.bundles()].map(fs::read_dir);
    let names = entries.into_iter().flatten().flatten().flatten().map(|entry| entry.file_name());
    let names = names.filter(|name| is_id(Path::new(name)));
    names.filter_map(|name| name.into_string().ok()).collect()
}

fn is_alive(kept: &Path) -> bool {
    let text = proc::text(kept.join("state.json")).unwrap_or_default();
    // A container that was never finished has no processes.
    let Ok(Kept { init_process_pid, init_process_start }) = serde_json::from_str(&text) else {
        return false;
    };
    proc::started(init_process_pid) == Some(init_process_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_processes_are_known_by_pid_and_start_time() {
        let own = std::process::id() as i32;
        let start = proc::started(own).unwrap();
        let kept = tempfile::tempdir().unwrap();
        let write = |pid: i32, start: u64| {
            let text = format!("{{\"init_process_pid\":{pid},\"init_process_start\":{start}}}");
            fs::write(kept.path().join("state.json"), text).unwrap();
        };
        assert!(!is_alive(kept.path()), "nothing is known of it");
        write(own, start);
        assert!(is_alive(kept.path()));
        write(own, start + 1);
        assert!(!is_alive(kept.path()), "a pid that came again");
    }

    #[test]
    fn only_ghosts_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let places = ContainerPaths::new(directory.path().to_owned());
        for name in ["0123abcd", "another", "0123abcg", "0123abcde"] {
            fs::create_dir_all(places.state().join(name)).unwrap();
        }
        for bundle in ["0123abcd", "89abcdef", "root"] {
            fs::create_dir_all(directory.path().join(bundle)).unwrap();
        }
        let found = Leftovers::find(&places).ids.into_inner().unwrap();
        assert_eq!(Vec::from_iter(found), ["0123abcd", "89abcdef"]);
    }
}
