//! Working directories of functions. Those that come as archives or programs have a folder with their files, one
//! for each version; others have an empty one, the same for all functions of a user.
//!
//! ```text
//!  at/NAMESPACE_ACTION:VERSION-DIGEST   0750   a folder, and its files: the user's
//!  at/.empty-USER                       0700   never written
//! ```
//! A folder exists as long as its version: instances on all nodes, and clones of the function's
//! image, read from it at the same path. Only the platform writes to it. An instance sees all of `at` through a
//! layer of its own, where its user can change what is its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use farfork_sys::sync::locked;

use super::room::{LEAST, Room, failed};
use super::{Contents, FolderError};

/// Names of empty directories begin with it. No folder's begins with a dot, and drafts have no dash.
const EMPTY: &str = ".empty-";

/// The folders of all functions.
#[derive(Clone, Debug)]
pub struct Folders {
    at: PathBuf,
    /// Most bytes of a group's folders.
    most_bytes: u64,
    /// Bytes of folders, as far as known.
    sizes: Arc<Mutex<HashMap<OsString, u64>>>,
    /// Users whose empty directories this run has seen.
    empty: Arc<Mutex<HashSet<u32>>>,
    /// Each group's turn: what it unpacks at one time is one folder, for which there is room.
    turns: Arc<Mutex<HashMap<u32, Arc<Mutex<()>>>>>,
}

impl Folders {
    /// Opens the directory `at`, which is made if missing.
    pub fn open(at: PathBuf) -> Result<Folders, FolderError> {
        let made = fs::create_dir_all(&at)
            .and_then(|()| fs::set_permissions(&at, Permissions::from_mode(0o711)))
            // Instances have their layer there, whatever links lead to it.
            .and_then(|()| at.canonicalize());
        let at = made.map_err(failed("make", &at))?;
        match super::not_traversable(&at).map_err(failed("inspect", &at))? {
            Some(closed) => Err(FolderError::Closed { at, closed }),
            None => Ok(Folders {
                at,
                most_bytes: u64::MAX,
                sizes: Arc::default(),
                empty: Arc::default(),
                turns: Arc::default(),
            }),
        }
    }

    /// The directory of all of them.
    pub fn directory(&self) -> &Path {
        &self.at
    }

    /// Makes sure that the empty directory of a user exists.
    pub fn ensure_empty(&self, user: u32) -> Result<PathBuf, FolderError> {
        let directory = self.at.join(format!("{EMPTY}{user}"));
        if locked(&self.empty).contains(&user) {
            return Ok(directory);
        }
        let made = match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
        // Also where an earlier run was killed in between.
        made.and_then(|()| give(&directory, user)).map_err(failed("make", &directory))?;
        locked(&self.empty).insert(user);
        Ok(directory)
    }

    /// Limits what the folders of a group take.
    pub fn limited(self, most_bytes: u64) -> Folders {
        Folders { most_bytes, ..self }
    }

    /// Makes sure that the folder `name` exists, with these contents, which belong to `user` and the group of the
    /// same number.
    pub fn ensure(
        &self,
        name: &str,
        user: u32,
        contents: Contents<'_>,
    ) -> Result<PathBuf, FolderError> {
        let folder = self.path(name);
        if folder.exists() {
            return given(folder, user);
        }
        let turn = Arc::clone(locked(&self.turns).entry(user).or_default());
        let _turn = locked(&turn);
        if folder.exists() {
            // Another thread was faster.
            return given(folder, user);
        }
        let taken = self.taken(user).map_err(failed("measure", &self.at))?;
        let room = Room { most: self.most_bytes, taken };
        // Made under a unique name and renamed, so that an existing folder is always complete.
        let mut draft = tempfile::Builder::new();
        let draft =
            draft.prefix(".").permissions(Permissions::from_mode(0o700)).tempdir_in(&self.at);
        let draft = draft.map_err(failed("make a folder in", &self.at))?;
        contents.write(draft.path(), room)?;
        let opened = give(draft.path(), user)
            .and_then(|()| fs::set_permissions(draft.path(), Permissions::from_mode(0o750)))
            .and_then(|()| fs::rename(draft.path(), &folder));
        match opened {
            Ok(()) => drop(draft.keep()),
            Err(error) => return Err(failed("make", &folder)(error)),
        }
        Ok(folder)
    }

    /// What the folders of a group take.
    fn taken(&self, group: u32) -> io::Result<u64> {
        Ok(self.all_taken()?.remove(&group).unwrap_or(0))
    }

    /// What the folders of each group take, in bytes.
    pub fn all_taken(&self) -> io::Result<BTreeMap<u32, u64>> {
        let mut sizes = locked(&self.sizes);
        let mut known = HashMap::new();
        let mut taken = BTreeMap::new();
        for entry in fs::read_dir(&self.at)? {
            let entry = entry?;
            let name = entry.file_name();
            // Others are empty, or drafts, which may go at any time.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Some(metadata) = is_there(entry.metadata())? else { continue };
            let found = match sizes.get(&name) {
                Some(size) => Some(*size),
                None => is_there(size(&entry.path()))?,
            };
            *taken.entry(metadata.gid()).or_default() += found.unwrap_or(0);
            known.extend(found.map(|size| (name, size)));
        }
        *sizes = known;
        Ok(taken)
    }

    /// Removes the folder `name`, if it exists.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        let folder = self.path(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &folder)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all folders except these, as earlier runs of the platform may have left some.
    pub fn keep_only(&self, names: impl Iterator<Item = String>) -> Result<(), FolderError> {
        let kept: BTreeSet<OsString> = names.map(|name| file_name(&name).into()).collect();
        for entry in fs::read_dir(&self.at).map_err(failed("list", &self.at))? {
            let entry = entry.map_err(failed("list", &self.at))?;
            let is_empty = entry.file_name().as_encoded_bytes().starts_with(EMPTY.as_bytes());
            if !is_empty && !kept.contains(&entry.file_name()) {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(file_name(name))
    }
}

/// Gives a directory and all that is in it to a user, and to the group of the same number. Only root can: where
/// others simulate a platform, no function works there.
fn give(directory: &Path, user: u32) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => give(&entry.path(), user)?,
            false => lchown(entry.path(), Some(user), Some(user))?,
        }
    }
    chown(directory, Some(user), Some(user))
}

/// A folder that exists, and belongs to its user: earlier versions of farfork have left root's.
fn given(folder: PathBuf, user: u32) -> Result<PathBuf, FolderError> {
    let found = folder.metadata().map_err(failed("inspect", &folder))?;
    if found.uid() != user {
        give(&folder, user).map_err(failed("give to its user", &folder))?;
    }
    Ok(folder)
}

/// A result about a file that may be removed at any time.
fn is_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// What a directory takes of the disk.
fn size(directory: &Path) -> io::Result<u64> {
    let mut sum = LEAST;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sum += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => (entry.metadata()?.blocks() * 512).max(LEAST),
        };
    }
    Ok(sum)
}

/// The names of images contain slashes.
fn file_name(name: &str) -> String {
    name.replace('/', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::confine::PROGRAM;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use std::io::{Cursor, Write};
    use std::os::unix::fs::MetadataExt;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn archive(fill: impl FnOnce(&mut ZipWriter<Cursor<Vec<u8>>>)) -> String {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        fill(&mut writer);
        STANDARD.encode(writer.finish().unwrap().into_inner())
    }

    fn with(writer: &mut ZipWriter<Cursor<Vec<u8>>>, name: &str, mode: u32, text: &str) {
        let options = SimpleFileOptions::default().unix_permissions(mode);
        writer.start_file(name, options).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }

    fn bed() -> (tempfile::TempDir, Folders) {
        let bed = tempfile::tempdir().unwrap();
        fs::set_permissions(bed.path(), Permissions::from_mode(0o711)).unwrap();
        let folders = Folders::open(bed.path().join("code")).unwrap();
        (bed, folders)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn an_archive_is_unpacked_once_for_its_group_alone() {
        let (_bed, folders) = bed();
        let group = if rustix::process::geteuid().is_root() {
            2_000_000_007
        } else {
            rustix::process::getegid().as_raw()
        };
        let first = archive(|zip| {
            with(zip, "__main__.py", 0o600, "one");
            with(zip, "bin/tool", 0o700, "two");
        });
        let folder = folders.ensure("guest/a:0.0.1-x", group, Contents::Archive(&first)).unwrap();
        assert_eq!(fs::read_to_string(folder.join("__main__.py")).unwrap(), "one");
        assert_eq!((mode(&folder), folder.metadata().unwrap().gid()), (0o750, group));
        assert_eq!(mode(&folder.join("__main__.py")), 0o644);
        let owners = || [".", "bin", "bin/tool"].map(|path| folder.join(path).metadata().unwrap());
        let owners = || owners().map(|found| (found.uid(), found.gid()));
        if rustix::process::geteuid().is_root() {
            assert_eq!(owners(), [(group, group); 3]);
            chown(&folder, Some(0), None).unwrap();
        }
        assert_eq!((mode(&folder.join("bin")), mode(&folder.join("bin/tool"))), (0o755, 0o755));
        let same = folders.ensure("guest/a:0.0.1-x", group, Contents::Archive("none")).unwrap();
        assert_eq!(same, folder);
        assert_eq!(owners()[0], owners()[2], "it is given to its user again");
        let other = folders.ensure("guest/b:0.0.1-x", group, Contents::Archive(&first)).unwrap();
        folders.keep_only(["guest/b:0.0.1-x".to_owned()].into_iter()).unwrap();
        assert_eq!((folder.exists(), other.exists()), (false, true));
        folders.remove("guest/b:0.0.1-x").unwrap();
        folders.remove("guest/b:0.0.1-x").unwrap();
        assert!(!other.exists());
    }

    #[test]
    fn a_user_has_an_empty_directory_that_stays() {
        let (bed, folders) = bed();
        let user = rustix::process::geteuid().as_raw();
        let user = if user == 0 { 2_000_000_007 } else { user };
        let directory = folders.ensure_empty(user).unwrap();
        assert_eq!((mode(&directory), directory.metadata().unwrap().uid()), (0o700, user));
        // The next run finds it. It counts for no user.
        let folders = Folders::open(bed.path().join("code")).unwrap();
        folders.keep_only(std::iter::empty()).unwrap();
        assert!(directory.exists() && folders.all_taken().unwrap().is_empty());
        assert_eq!(folders.ensure_empty(user).unwrap(), directory);
        if rustix::process::geteuid().is_root() {
            assert_ne!(folders.ensure_empty(user - 1).unwrap(), directory);
        }
    }

    #[test]
    fn a_group_unpacks_no_more_than_its_share() {
        let (bed, folders) = bed();
        let folders = folders.limited(100_000);
        let [group, other] = [1, 2].map(|more| rustix::process::getegid().as_raw() + more);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let code = archive(|zip| with(zip, "__main__.py", 0o600, &"x".repeat(40_000)));
        let unpack = |name: &str, group| folders.ensure(name, group, Contents::Archive(&code));
        unpack("guest/a:1", group).unwrap();
        unpack("guest/b:1", group).unwrap();
        let refused = unpack("guest/c:1", group).unwrap_err();
        let words = refused.to_string();
        assert!(matches!(refused, FolderError::Archive(_)) && words.contains("of 100000 bytes"));
        unpack("guest/b:1", group).unwrap();
        unpack("other/c:1", other).unwrap();
        assert_eq!(fs::read_dir(bed.path().join("code")).unwrap().count(), 3);
        // The next run counts what is there.
        let folders = Folders::open(bed.path().join("code")).unwrap().limited(100_000);
        let unpack = |name: &str, group| folders.ensure(name, group, Contents::Archive(&code));
        assert!(unpack("guest/c:1", group).is_err());
        folders.remove("guest/a:1").unwrap();
        unpack("guest/c:1", group).unwrap();
        assert!(unpack("guest/a:1", group).is_err());
    }

    #[test]
    fn an_invalid_archive_leaves_nothing() {
        let (bed, folders) = bed();
        let up = archive(|zip| with(zip, "../../escaped", 0o644, "x"));
        let link = archive(|zip| {
            zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        });
        for (wrong, words) in [
            (&*up, "outside"),
            (&*link, "symbolic link"),
            ("!", "unpack"),
            (&*STANDARD.encode("PK"), "unpack"),
        ] {
            let message =
                folders.ensure("guest/a:1", 0, Contents::Archive(wrong)).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(fs::read_dir(bed.path().join("code")).unwrap().count(), 0);
        assert!(!bed.path().join("escaped").exists());
    }

    #[test]
    fn a_program_is_a_file_that_may_be_executed() {
        let (_bed, folders) = bed();
        let group = rustix::process::getegid().as_raw();
        let script = "#!/bin/sh\n";
        let inside = archive(|zip| with(zip, PROGRAM, 0o600, script));
        for (name, code) in
            [("text", script), ("base64", &*STANDARD.encode(script)), ("archive", &*inside)]
        {
            let folder = folders.ensure(name, group, Contents::Program(code)).unwrap();
            let program = folder.join(PROGRAM);
            assert_eq!(fs::read_to_string(&program).unwrap(), script, "{name}");
            assert_eq!((mode(&folder), mode(&program)), (0o750, 0o755), "{name}");
        }
        let without = archive(|zip| with(zip, "bin/exec", 0o755, script));
        for (wrong, words) in [("!", "cannot use"), (&*without, "no file exec at its top")] {
            let message = folders.ensure("wrong", group, Contents::Program(wrong)).unwrap_err();
            assert!(message.to_string().contains(words), "{message}");
        }
        assert!(!folders.path("wrong").exists());
    }

    #[test]
    fn a_directory_that_functions_cannot_traverse_is_refused() {
        let bed = tempfile::tempdir().unwrap();
        fs::set_permissions(bed.path(), Permissions::from_mode(0o700)).unwrap();
        let message = Folders::open(bed.path().join("a/code")).unwrap_err().to_string();
        assert!(
            message.contains(&format!("may not traverse {};", bed.path().display())),
            "{message}"
        );
    }
}
