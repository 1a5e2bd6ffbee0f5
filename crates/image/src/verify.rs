//! Whether the files that an image refers to are what they were.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::model::{Backing, FileStamp, Model, OpenFile};

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
            Change::Time => write!(f, "{path} has another modification time here"),
        }
    }
}

/// Every file that `model` was stamped with and that differs on this node, by path.
pub fn changed_files(model: &Model) -> Vec<ChangedFile> {
    let stamps: BTreeMap<&Path, &FileStamp> =
        stamps(model).map(|stamp| (stamp.path.as_path(), stamp)).collect();
    stamps.into_values().filter_map(changed).collect()
}

fn stamps(model: &Model) -> impl Iterator<Item = &FileStamp> {
    let regions = model.memory.regions.iter().filter_map(|region| match &region.backing {
        Backing::PrivateFile(stamp, _)
        | Backing::SharedFile { file: stamp, is_writable: false, .. } => Some(stamp),
        Backing::SharedFile { .. } | Backing::Object { .. } | Backing::Anonymous => None,
    });
    let files = model.files.iter().filter_map(|file| match file {
        OpenFile::Path { stamp, .. } => stamp.as_ref(),
        _ => None,
    });
    regions.chain(files)
}

fn changed(stamp: &FileStamp) -> Option<ChangedFile> {
    let change = match fs::metadata(&stamp.path) {
        Err(_) => Change::Missing,
        Ok(found) if !found.is_file() => Change::OtherKind,
        Ok(found) if found.size() != stamp.size => Change::Size(stamp.size, found.size()),
        Ok(found) if mtime_ns(&found) != stamp.mtime_ns => Change::Time,
        Ok(_) => return None,
    };
    Some(ChangedFile { path: stamp.path.clone(), change })
}

fn mtime_ns(found: &fs::Metadata) -> i128 {
    i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_of(paths: &[&Path]) -> Model {
        let file = |path: &&Path| {
            let found = fs::metadata(path).unwrap();
            let (size, mtime_ns) = (found.size(), mtime_ns(&found));
            let stamp = FileStamp { path: path.to_path_buf(), size, mtime_ns };
            OpenFile::Path { path: path.to_path_buf(), flags: 0, offset: 0, stamp: Some(stamp) }
        };
        Model { files: paths.iter().map(file).collect(), ..Model::default() }
    }

    #[test]
    fn what_was_touched_grown_or_removed_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let [same, grown, touched, gone] = ["same", "grown", "touched", "gone"].map(at);
        for path in [&same, &grown, &touched, &gone] {
            fs::write(path, "four").unwrap();
        }
        let model = model_of(&[&same, &grown, &touched, &gone]);
        assert_eq!(changed_files(&model), []);
        fs::write(&grown, "five!").unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
        fs::File::open(&touched).unwrap().set_modified(later).unwrap();
        fs::remove_file(&gone).unwrap();
        let told: Vec<Change> = changed_files(&model).iter().map(|file| file.change).collect();
        assert_eq!(told, [Change::Missing, Change::Size(4, 5), Change::Time]);
        assert!(changed_files(&model)[0].to_string().ends_with("/gone is missing on this node"));
    }
}
