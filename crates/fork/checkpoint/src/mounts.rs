//! The mounts that a process's files lie on, and those that it has for itself alone.
//!
//! ```text
//!  mount of the process ─┬─ the node has it, too          recorded, compared on the other node
//!                        ├─ shows what the node has,      recorded with its source, and made again
//!                        │  elsewhere (a bind mount)      in the clone's mount namespace
//!                        ├─ a ghost's own layer over a   left out: each ghost has one, which begins
//!                        │  directory of the node         with the node's files. Refused if a file of
//!                        │                                the process is not as the node has it
//!                        └─ shows what the node has not   refused if a file of the process is there
//! ```

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_image::model::{Backing, Model, Mount, OpenFile};
use farfork_image::mounts::{self, MountLine};

use crate::error::CheckpointError;
use crate::namespaces::has_mounts_of_ghost;
use crate::refuse::{Refusals, causes};

/// Mounts of a process and of this node.
struct Mounts {
    pid: i32,
    /// Whether the process has the mounts of its ghost, which may be read-only where this node's are not. Its
    /// clones have those of their ghosts.
    is_in_ghost: bool,
    theirs: Vec<MountLine>,
    ours: Vec<MountLine>,
}

/// Ids of mounts that files of a process need.
#[derive(Default)]
struct UsedMounts {
    /// Those that files lie on.
    with_files: HashSet<u64>,
    /// These, and those on the way to them.
    all: HashSet<u64>,
}

/// The mounts of processes `pids` that their clones need, in the order in which they were made;
/// `model` is all else that is known of them. They have one mount namespace.
pub fn collect(
    pids: &[i32],
    model: &Model,
    refusals: &mut Refusals,
) -> Result<Vec<Mount>, CheckpointError> {
    let mut has_other_root = false;
    for pid in pids {
        refusals.about(*pid);
        has_other_root |= refuse_other_root(*pid, refusals)?;
    }
    let Some(pid) = pids.first().copied().filter(|_| !has_other_root) else {
        return Ok(Vec::new());
    };
    refusals.about(pid);
    let failed = |_| CheckpointError::Proc { pid, what: "the mounts" };
    let theirs = mounts::read(&pid.to_string()).map_err(failed)?;
    let ours = mounts::read("self").map_err(failed)?;
    let mounts = Mounts { pid, is_in_ghost: has_mounts_of_ghost(pid), theirs, ours };
    let used = mounts.used(model, refusals);
    let mut needed: Vec<Mount> = Vec::new();
    for line in mounts.theirs.iter().filter(|line| !is_remade(line)) {
        let mount = mounts.needed(line, &needed, &used, refusals);
        needed.extend(mount);
    }
    Ok(needed)
}

/// Whether a mount of a ghost is only on the way to files of the node, which are at the same paths there: an empty
/// directory in place of the node's, and in it what the node has there all the same.
fn is_passed(line: &MountLine, source: Option<&Path>, used: &UsedMounts) -> bool {
    source.map_or(!used.with_files.contains(&line.id), |source| source == line.point)
}

/// Every clone has a `/proc` of its own.
fn is_remade(line: &MountLine) -> bool {
    line.fs_type == "proc" && line.point == Path::new("/proc")
}

/// A clone's files are opened from the node's root directory.
fn refuse_other_root(pid: i32, refusals: &mut Refusals) -> Result<bool, CheckpointError> {
    let root = fs::read_link(format!("/proc/{pid}/root"))
        .map_err(|_| CheckpointError::Proc { pid, what: "the root directory" })?;
    if root != Path::new("/") {
        refusals.add(format!("root directory {}", root.display()), causes::mounts::OTHER_ROOT);
        return Ok(true);
    }
    let is_other = identity(Path::new(&format!("/proc/{pid}/root/"))) != identity(Path::new("/"));
    if is_other {
        refusals.add("root file system", causes::mounts::OTHER_ROOT_FILE_SYSTEM);
    }
    Ok(is_other)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Whether what a process sees through a layer is what the node has there. A file that was opened for writing was
/// copied into the layer first, and the copy has its own time of change. Directories are there for what is in them.
fn is_the_same(seen: &Metadata, own: &Metadata) -> bool {
    let rights = |found: &Metadata| (found.mode(), found.uid(), found.gid());
    let contents = |found: &Metadata| {
        let changed = (found.ctime(), found.ctime_nsec());
        (found.size(), changed, (found.mtime(), found.mtime_nsec()))
    };
    rights(seen) == rights(own) && (seen.is_dir() || contents(seen) == contents(own))
}

/// Paths that a clone opens. Devices without state are the same wherever they are.
fn paths(model: &Model) -> BTreeSet<&Path> {
    let regions = model.members.iter().flat_map(|member| &member.memory.regions);
    let mapped = regions.filter_map(|region| match &region.backing {
        Backing::PrivateFile(file, _) | Backing::SharedFile { file, .. } => {
            Some(file.path.as_path())
        }
        Backing::Object { .. } | Backing::Anonymous => None,
    });
    let open = model.files.iter().filter_map(|file| match file {
        OpenFile::Path { path, .. } => Some(path.as_path()),
        _ => None,
    });
    let living = model.members.iter().filter(|member| member.kinship.ended.is_none());
    let processes = living.map(|member| &member.process);
    let own = processes.flat_map(|process| [process.cwd.as_path(), process.exe.as_path()]);
    let all = mapped.chain(open).chain(own).filter(|path| !path.starts_with("/proc"));
    // Others, and what was executed from memory, are refused where they were found.
    all.filter(|path| path.to_str().is_some_and(|path| !path.starts_with("/memfd:"))).collect()
}

impl Mounts {
    /// A path as the process sees it.
    fn seen(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.pid, path.display()))
    }

    fn is_ours(&self, line: &MountLine) -> bool {
        let what = |line: &MountLine| (line.device.clone(), line.root.clone(), line.point.clone());
        let is_alike = |own: &MountLine| match (self.is_in_ghost, line.options.strip_prefix("ro")) {
            (true, Some(other)) if own.options.strip_prefix("rw") == Some(other) => true,
            _ => own.options == line.options,
        };
        self.ours.iter().any(|own| what(own) == what(line) && is_alike(own))
    }

    fn used(&self, model: &Model, refusals: &mut Refusals) -> UsedMounts {
        let mut used = UsedMounts::default();
        for path in paths(model) {
            let Ok(mut id) = mounts::id_at(&self.seen(path)) else {
                refusals.add(path.display().to_string(), causes::mounts::NAME_GONE);
                continue;
            };
            match self.line(id) {
                Some(line) if self.is_ours(line) => self.refuse_hidden(path, refusals),
                Some(line) if self.is_layer(line) => self.refuse_changed(path, refusals),
                _ => {}
            }
            used.with_files.insert(id);
            while used.all.insert(id) {
                let Some(line) = self.line(id) else { break };
                id = line.parent;
            }
        }
        used
    }

    fn line(&self, id: u64) -> Option<&MountLine> {
        self.theirs.iter().find(|line| line.id == id)
    }

    fn refuse_hidden(&self, path: &Path, refusals: &mut Refusals) {
        let is_character_device = |path: &Path| {
            use std::os::unix::fs::FileTypeExt;
            fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
        };
        if identity(&self.seen(path)) != identity(path) && !is_character_device(path) {
            refusals.add(path.display().to_string(), causes::mounts::HIDDEN);
        }
    }

    /// Whether it is a layer in which a ghost keeps what its processes write to a directory of the node.
    fn is_layer(&self, line: &MountLine) -> bool {
        self.is_in_ghost && line.fs_type == "overlay" && line.source == mounts::LAYER
    }

    /// A clone finds the node's file.
    fn refuse_changed(&self, path: &Path, refusals: &mut Refusals) {
        let seen = fs::symlink_metadata(self.seen(path)).ok();
        let own = fs::symlink_metadata(path).ok();
        if !seen.zip(own).is_some_and(|(seen, own)| is_the_same(&seen, &own)) {
            refusals.add(path.display().to_string(), causes::mounts::OWN_LAYER);
        }
    }

    /// What a clone needs to know of a mount, if it needs it; those `before` it are known.
    fn needed(
        &self,
        line: &MountLine,
        before: &[Mount],
        used: &UsedMounts,
        refusals: &mut Refusals,
    ) -> Option<Mount> {
        let is_used = used.all.contains(&line.id);
        if self.is_ours(line) {
            return is_used.then(|| mount(line, None));
        }
        if self.is_layer(line) {
            return None;
        }
        let source = self.source(line, before);
        if self.is_in_ghost && is_passed(line, source.as_deref(), used) {
            return None;
        }
        let texts = [Some(line.point.as_path()), source.as_deref()];
        if texts.into_iter().flatten().any(|path| path.to_str().is_none()) {
            return self.misnamed(line, is_used, refusals);
        }
        if source.is_none() && is_used {
            refusals.add(
                format!("{} mounted on {}", line.fs_type, line.point.display()),
                causes::mounts::OWN_MOUNT,
            );
        }
        source.map(|source| mount(line, Some(source)))
    }

    /// A mount whose path cannot be stored is left out if no file needs it.
    fn misnamed(&self, line: &MountLine, is_used: bool, refusals: &mut Refusals) -> Option<Mount> {
        if is_used {
            refusals.add(format!("mount on {}", line.point.display()), causes::files::NOT_UTF_8);
        }
        None
    }

    /// Where this node has mounted what the process has mounted.
    fn source(&self, line: &MountLine, before: &[Mount]) -> Option<PathBuf> {
        let shown = identity(&self.seen(&line.point))?;
        // What it is mounted on has to be there as well.
        fs::symlink_metadata(mounts::on_node(before, &line.point)).ok()?;
        self.ours
            .iter()
            .filter(|own| own.device == line.device)
            .filter_map(|own| Some(own.point.join(line.root.strip_prefix(&own.root).ok()?)))
            .find(|source| identity(source) == Some(shown))
    }
}

fn mount(line: &MountLine, bound_from: Option<PathBuf>) -> Mount {
    Mount {
        point: line.point.clone(),
        fs_type: line.fs_type.clone(),
        source: line.source.clone(),
        options: line.options.clone(),
        bound_from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_copy_is_not_the_nodes_file_and_a_directory_is() {
        let directory = tempfile::tempdir().unwrap();
        let [own, copy] = ["own", "copy"].map(|name| directory.path().join(name));
        for path in [&own, &copy] {
            fs::write(path, "same").unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            // Times of files are those of the kernel's ticks.
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = |path: &Path| fs::symlink_metadata(path).unwrap();
        assert!(is_the_same(&found(&own), &found(&own)));
        assert!(!is_the_same(&found(&copy), &found(&own)), "it has another time of change");
        let other = tempfile::tempdir().unwrap();
        assert!(is_the_same(&found(other.path()), &found(directory.path())));
        assert!(!is_the_same(&found(other.path()), &found(&own)));
    }
}
