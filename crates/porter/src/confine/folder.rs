//! The files of functions that come as archives: a folder for each version, which its user reads
//! and only the platform writes.
//!
//! A folder is there as long as its version is: instances of any node read from it, and so do clones
//! of the function's image, at the same path.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Cursor, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use zip::ZipArchive;
use zip::read::ZipFile;

/// Most bytes of an archive's files together.
const MOST_BYTES: u64 = 512 << 20;
/// Most files of an archive.
const MOST_FILES: usize = 65_536;

/// There is no folder for a function.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The archive is its owner's affair.
    #[error("the archive cannot be unpacked: {0}")]
    Archive(String),
    /// Functions would not reach their folders.
    #[error(
        "functions that come as archives cannot be kept below {}: users of functions may not pass \
         {}: chmod o+x it, or keep the platform's state elsewhere (--state)", .at.display(),
        .closed.display()
    )]
    Closed {
        /// Where folders were to be.
        at: PathBuf,
        /// The directory above it that is for others alone.
        closed: PathBuf,
    },
    /// The place of the folders fails.
    #[error("cannot {doing} {}: {}", .path.display(), words::of(.source))]
    Place {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Place { doing, path: path.clone(), source }
}

/// The folders of all functions.
#[derive(Clone, Debug)]
pub struct Folders {
    at: PathBuf,
}

impl Folders {
    /// Those below `at`, which is made if need be.
    pub fn at(at: PathBuf) -> Result<Folders, FolderError> {
        fs::create_dir_all(&at)
            .and_then(|()| fs::set_permissions(&at, Permissions::from_mode(0o711)))
            .map_err(failed("make", &at))?;
        match super::closed(&at).map_err(failed("look at", &at))? {
            Some(closed) => Err(FolderError::Closed { at, closed }),
            None => Ok(Folders { at }),
        }
    }

    /// The folder of what is called `name`, with the files of an archive in base64 if it is not there
    /// yet; for members of the group `group`.
    pub fn have(&self, name: &str, group: u32, archive: &str) -> Result<PathBuf, FolderError> {
        let folder = self.path(name);
        if folder.exists() {
            return Ok(folder);
        }
        let bytes = STANDARD.decode(archive).map_err(|error| wrong(&error))?;
        // Beside it, so that a folder is whole if it is there; by a name that nobody else makes.
        let mut draft = tempfile::Builder::new();
        let draft =
            draft.prefix(".").permissions(Permissions::from_mode(0o700)).tempdir_in(&self.at);
        let draft = draft.map_err(failed("make a folder in", &self.at))?;
        unpack(&bytes, draft.path())?;
        let opened = chown(draft.path(), None, Some(group))
            .and_then(|()| fs::set_permissions(draft.path(), Permissions::from_mode(0o750)))
            .and_then(|()| fs::rename(draft.path(), &folder));
        match opened {
            Ok(()) => drop(draft.keep()),
            // Somebody else was faster.
            Err(_) if folder.exists() => {}
            Err(error) => return Err(failed("make", &folder)(error)),
        }
        Ok(folder)
    }

    /// Removes the folder of `name`, if there is one.
    pub fn remove(&self, name: &str) -> Result<(), FolderError> {
        let folder = self.path(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &folder)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all folders but those of these names, which a run of the platform before has left.
    pub fn keep_only(&self, names: impl Iterator<Item = String>) -> Result<(), FolderError> {
        let kept: BTreeSet<OsString> = names.map(|name| file_name(&name).into()).collect();
        for entry in fs::read_dir(&self.at).map_err(failed("list", &self.at))? {
            let entry = entry.map_err(failed("list", &self.at))?;
            if !kept.contains(&entry.file_name()) {
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

/// Names of images are path-like.
fn file_name(name: &str) -> String {
    name.replace('/', "_")
}

fn wrong(error: &impl ToString) -> FolderError {
    FolderError::Archive(error.to_string())
}

fn unpack(archive: &[u8], into: &Path) -> Result<(), FolderError> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).map_err(|error| wrong(&error))?;
    if archive.len() > MOST_FILES {
        return Err(wrong(&format!("it has more than {MOST_FILES} files")));
    }
    let mut left = MOST_BYTES;
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).map_err(|error| wrong(&error))?;
        left -= unpack_one(&mut file, into, left)?;
    }
    Ok(())
}

/// How many bytes it has.
fn unpack_one(
    file: &mut ZipFile<'_, impl Read>,
    into: &Path,
    most_bytes: u64,
) -> Result<u64, FolderError> {
    let name = file.name().map_err(|error| wrong(&error))?.into_owned();
    let refused = |why: &str| wrong(&format!("{name}: {why}"));
    let path = file.enclosed_name().ok_or_else(|| refused("it would lie outside of the folder"))?;
    if file.is_symlink() {
        return Err(refused("it is a symbolic link; put the file itself in the archive"));
    }
    let path = into.join(path);
    let directory = if file.is_dir() { &*path } else { path.parent().unwrap_or(into) };
    fs::create_dir_all(directory).map_err(failed("make", directory))?;
    for made in directory.ancestors().take_while(|made| *made != into) {
        // Whatever the platform's own umask is.
        fs::set_permissions(made, Permissions::from_mode(0o755)).map_err(failed("open", made))?;
    }
    if file.is_dir() {
        return Ok(0);
    }
    let is_program = file.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
    let too_much = refused(&format!("with it, there are more than {} MiB", MOST_BYTES >> 20));
    // Of two files of one name the later counts, as with every unpacker.
    let mut target = File::create(&path).map_err(failed("write", &path))?;
    // What an archive says of its sizes is not believed.
    let copied = io::copy(&mut file.take(most_bytes + 1), &mut target);
    let bytes = copied.map_err(|error| refused(&words::of(&error)))?;
    if bytes > most_bytes {
        return Err(too_much);
    }
    let mode = if is_program { 0o755 } else { 0o644 };
    target.set_permissions(Permissions::from_mode(mode)).map_err(failed("open", &path))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
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
        let folders = Folders::at(bed.path().join("code")).unwrap();
        (bed, folders)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn an_archive_is_unpacked_once_for_its_group_alone() {
        let (_bed, folders) = bed();
        let group = rustix::process::getegid().as_raw();
        let first = archive(|zip| {
            with(zip, "__main__.py", 0o600, "one");
            with(zip, "bin/tool", 0o700, "two");
        });
        let folder = folders.have("guest/a:0.0.1-x", group, &first).unwrap();
        assert_eq!(fs::read_to_string(folder.join("__main__.py")).unwrap(), "one");
        assert_eq!((mode(&folder), folder.metadata().unwrap().gid()), (0o750, group));
        assert_eq!(mode(&folder.join("__main__.py")), 0o644);
        assert_eq!((mode(&folder.join("bin")), mode(&folder.join("bin/tool"))), (0o755, 0o755));
        let same = folders.have("guest/a:0.0.1-x", group, "no archive").unwrap();
        assert_eq!(same, folder);
        let other = folders.have("guest/b:0.0.1-x", group, &first).unwrap();
        folders.keep_only(["guest/b:0.0.1-x".to_owned()].into_iter()).unwrap();
        assert_eq!((folder.exists(), other.exists()), (false, true));
        folders.remove("guest/b:0.0.1-x").unwrap();
        folders.remove("guest/b:0.0.1-x").unwrap();
        assert!(!other.exists());
    }

    #[test]
    fn a_wrong_archive_leaves_nothing() {
        let (bed, folders) = bed();
        let up = archive(|zip| with(zip, "../../escaped", 0o644, "x"));
        let link = archive(|zip| {
            zip.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        });
        for (wrong, words) in [
            (&*up, "outside"),
            (&*link, "symbolic link"),
            ("!", "unpacked"),
            (&*STANDARD.encode("PK"), "unpacked"),
        ] {
            let told = folders.have("guest/a:1", 0, wrong).unwrap_err().to_string();
            assert!(told.contains(words), "{told}");
        }
        assert_eq!(fs::read_dir(bed.path().join("code")).unwrap().count(), 0);
        assert!(!bed.path().join("escaped").exists());
    }

    #[test]
    fn a_place_that_others_may_not_pass_is_told() {
        let bed = tempfile::tempdir().unwrap();
        fs::set_permissions(bed.path(), Permissions::from_mode(0o700)).unwrap();
        let told = Folders::at(bed.path().join("a/code")).unwrap_err().to_string();
        assert!(told.contains(&format!("may not pass {}:", bed.path().display())), "{told}");
    }
}
