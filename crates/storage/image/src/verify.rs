//! Whether the files that an image refers to are what they were.
//!
//! | the process | size | build-id, where it has one | time |
//! | --- | --- | --- | --- |
//! | maps it privately, with a build-id | binds | binds | does not: the same build was installed again |
//! | maps it otherwise, or has it open | binds | binds | binds |
//!
//! What a clone sees of a private mapping comes from the image; from the file come only pages
//! that the parent never touched or that the clone discards. A descriptor reads the file itself.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::model::{Backing, FileStamp, Model, OpenFile};
use crate::mounts::on_node;
use crate::stamp::{build_id, mtime_ns};

/// A file that is not on this node as it was when the image was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// Where it was.
    pub path: PathBuf,
    /// How it differs.
    pub change: Change,
}

/// How a file differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing is there.
    Missing,
    /// Something is there that is not a regular file.
    OtherKind,
    /// It had the first number of bytes and has the second.
    Size(u64, u64),
    /// It is another build of the same size.
    Build,
    /// It was written since, by its time.
    Time,
}

impl fmt::Display for ChangedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.change {
            Change::Missing => write!(f, "{path} is missing on this node"),
            Change::OtherKind => write!(f, "{path} is no longer a regular file"),
            Change::Size(was, is) => write!(f, "{path} had {was} bytes and has {is} here"),
            Change::Build => write!(f, "{path} is another build here: its build-id differs"),
            Change::Time => write!(f, "{path} has another modification time here"),
        }
    }
}

/// Files as they were when last found to be right. Opening one to read its build-id takes some
/// ten times as long as asking for its attributes, so it is done once for each that is installed.
#[derive(Debug, Default)]
pub struct Seen(HashMap<PathBuf, Identity>);

/// Changes with every write to the file and with every file put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

impl Identity {
    fn from_metadata(found: &fs::Metadata) -> Identity {
        Identity {
            file: (found.dev(), found.ino()),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// A stamp, and whether the process reads the file itself.
struct Demand<'m> {
    stamp: &'m FileStamp,
    is_read: bool,
}

/// Every file that `model` was stamped with and that differs on this node, by path; `seen` is
/// what the last look at this model has found.
pub fn changed_files(model: &Model, seen: &mut Seen) -> Vec<ChangedFile> {
    let demands = demands(model);
    demands
        .values()
        .filter_map(|demand| {
            let path = &demand.stamp.path;
            let change = demand.changed(&on_node(&model.mounts, path), seen)?;
            Some(ChangedFile { path: path.clone(), change })
        })
        .collect()
}

fn demands(model: &Model) -> BTreeMap<&Path, Demand<'_>> {
    let regions = model.members.iter().flat_map(|member| &member.memory.regions);
    let regions = regions.filter_map(|region| match &region.backing {
        Backing::PrivateFile(stamp, _) => Some((stamp, false)),
        Backing::SharedFile { file: stamp, is_writable: false, .. } => Some((stamp, true)),
        Backing::SharedFile { .. } | Backing::Object { .. } | Backing::Anonymous => None,
    });
    let files = model.files.iter().filter_map(|file| match file {
        OpenFile::Path { stamp: Some(stamp), .. } => Some((stamp, true)),
        _ => None,
    });
    let mut demands: BTreeMap<&Path, Demand<'_>> = BTreeMap::new();
    for (stamp, is_read) in regions.chain(files) {
        let demand = demands.entry(&stamp.path).or_insert(Demand { stamp, is_read });
        demand.is_read |= is_read;
    }
    demands
}

impl Demand<'_> {
    /// How the file differs that is at `path` here.
    fn changed(&self, path: &Path, seen: &mut Seen) -> Option<Change> {
        match fs::metadata(path) {
            Err(_) => Some(Change::Missing),
            Ok(found) if !found.is_file() => Some(Change::OtherKind),
            Ok(found) => {
                let identity = Identity::from_metadata(&found);
                if seen.0.get(path) == Some(&identity) {
                    return None;
                }
                let change = self.change(path, &found);
                if change.is_none() {
                    seen.0.insert(path.to_owned(), identity);
                }
                change
            }
        }
    }

    fn change(&self, path: &Path, found: &fs::Metadata) -> Option<Change> {
        let stamp = self.stamp;
        if found.size() != stamp.size {
            return Some(Change::Size(stamp.size, found.size()));
        }
        if stamp.build_id.is_some() && build_id(path) != stamp.build_id {
            return Some(Change::Build);
        }
        let is_bound_to_time = self.is_read || stamp.build_id.is_none();
        (is_bound_to_time && mtime_ns(found) != stamp.mtime_ns).then_some(Change::Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FileIdentity, Member, Region, RegionTraits};
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    fn stamp_of(path: &Path) -> FileStamp {
        FileStamp::from_metadata(path, &fs::metadata(path).unwrap(), path)
    }

    fn changes(model: &Model, seen: &mut Seen) -> Vec<Change> {
        changed_files(model, seen).iter().map(|file| file.change).collect()
    }

    fn opening(paths: &[&Path]) -> Model {
        let file = |path: &&Path| OpenFile::Path {
            path: path.to_path_buf(),
            flags: 0,
            offset: 0,
            stamp: Some(stamp_of(path)),
            identity: FileIdentity::default(),
        };
        Model { files: paths.iter().map(file).collect(), ..Model::default() }
    }

    fn mapping(path: &Path) -> Model {
        let (backing, traits) = (Backing::PrivateFile(stamp_of(path), 0), RegionTraits::default());
        let mut member = Member::default();
        member.memory.regions = vec![Region { start: 0, end: 4096, prot: 5, backing, traits }];
        Model { members: vec![member], ..Model::default() }
    }

    fn touch(path: &Path) {
        let later = SystemTime::now() + Duration::from_secs(5);
        File::options().write(true).open(path).unwrap().set_modified(later).unwrap();
    }

    #[test]
    fn what_was_touched_grown_or_removed_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let [same, grown, touched, gone] = ["same", "grown", "touched", "gone"].map(at);
        for path in [&same, &grown, &touched, &gone] {
            fs::write(path, "four").unwrap();
        }
        let (model, mut seen) = (opening(&[&same, &grown, &touched, &gone]), Seen::default());
        assert_eq!(changes(&model, &mut seen), []);
        fs::write(&grown, "five!").unwrap();
        touch(&touched);
        fs::remove_file(&gone).unwrap();
        let changed = changed_files(&model, &mut seen);
        let kinds: Vec<Change> = changed.iter().map(|file| file.change).collect();
        assert_eq!(kinds, [Change::Missing, Change::Size(4, 5), Change::Time]);
        assert!(changed[0].to_string().ends_with("/gone is missing on this node"));
    }

    /// This program with another build-id.
    fn rebuilt(bytes: &[u8], id: &[u8]) -> Vec<u8> {
        let at = bytes.windows(id.len()).position(|window| window == id).unwrap();
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        bytes
    }

    #[test]
    fn a_build_is_known_by_its_id_and_not_by_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lib.so");
        fs::copy("/proc/self/exe", &path).unwrap();
        let (mapped, open) = (mapping(&path), opening(&[&path]));
        let mut seen = Seen::default();
        assert_eq!(changes(&mapped, &mut seen), []);
        touch(&path);
        assert_eq!(changes(&mapped, &mut seen), [], "the same build, installed later");
        assert_eq!(changes(&open, &mut Seen::default()), [Change::Time], "it is read as data");
        let both = Model { files: open.files.clone(), ..mapped.clone() };
        assert_eq!(changes(&both, &mut Seen::default()), [Change::Time]);

        let bytes = fs::read(&path).unwrap();
        let found = fs::metadata(&path).unwrap();
        let other = rebuilt(&bytes, stamp_of(&path).build_id.as_deref().unwrap());
        fs::write(&path, other).unwrap();
        // Packages clamp the times of their files, so that two builds may well have the same.
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(found.modified().unwrap())
            .unwrap();
        assert_eq!(changes(&mapped, &mut seen), [Change::Build]);
        fs::write(&path, bytes).unwrap();
        assert_eq!(changes(&mapped, &mut seen), []);
    }
}
