//! The contents of a function's folder: the files of an archive, or a program.

use std::fs::{self, File, Permissions};
use std::io::{self, Cursor, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use zip::ZipArchive;
use zip::read::ZipFile;

use super::FolderError;
use super::folder::failed;

/// Most bytes of an archive's files together.
const MOST_BYTES: u64 = 512 << 20;
/// Most files and directories of an archive, including directories that only paths name.
const MOST_FILES: usize = 65_536;
/// Magic of an archive.
const ARCHIVE: &[u8] = b"PK\x03\x04";
/// Name of a program in its folder.
pub const PROGRAM: &str = "exec";

/// The contents of a folder.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'c> {
    /// A zip archive in base64.
    Archive(&'c str),
    /// A program that becomes [`PROGRAM`]: a script as text, or in base64 a script, an ELF program,
    /// or an archive with [`PROGRAM`] at its top.
    Program(&'c str),
}

impl Contents<'_> {
    /// Writes the contents.
    pub(super) fn write(self, into: &Path) -> Result<(), FolderError> {
        match self {
            Contents::Archive(code) => {
                let archive = STANDARD.decode(code).map_err(|error| wrong(&error))?;
                unpack(&archive, into, MOST_FILES)
            }
            Contents::Program(code) => put_program(code, into),
        }
    }
}

fn put_program(code: &str, into: &Path) -> Result<(), FolderError> {
    let bytes = match code.starts_with("#!") {
        true => code.as_bytes().to_owned(),
        false => STANDARD.decode(code).map_err(|error| FolderError::Program(error.to_string()))?,
    };
    let program = into.join(PROGRAM);
    if !bytes.starts_with(ARCHIVE) {
        fs::write(&program, bytes).map_err(failed("write", &program))?;
    } else {
        unpack(&bytes, into, MOST_FILES)?;
        if !program.is_file() {
            return Err(FolderError::Program(format!(
                "the archive has no file {PROGRAM} at its top to execute"
            )));
        }
    }
    // Not every archiving tool records modes.
    fs::set_permissions(&program, Permissions::from_mode(0o755)).map_err(failed("open", &program))
}

fn wrong(error: &impl ToString) -> FolderError {
    FolderError::Archive(error.to_string())
}

fn unpack(archive: &[u8], into: &Path, most_files: usize) -> Result<(), FolderError> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).map_err(|error| wrong(&error))?;
    if archive.len() > most_files {
        return Err(too_many());
    }
    let mut unpacker = Unpacker { into, bytes_left: MOST_BYTES, files_left: most_files };
    for index in 0..archive.len() {
        unpacker.unpack(&mut archive.by_index(index).map_err(|error| wrong(&error))?)?;
    }
    Ok(())
}

fn too_many() -> FolderError {
    wrong(&format!("it has more than {MOST_FILES} files and directories"))
}

/// The error of making a file of an archive: the archive's fault if no file can have its name there.
fn odd(doing: &'static str, path: &Path, name: &str) -> impl Fn(io::Error) -> FolderError {
    let (path, name) = (path.to_owned(), name.to_owned());
    move |error| {
        let why = match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::IsADirectory | ErrorKind::NotADirectory => {
                "a file and a directory have the same path, or the path is empty"
            }
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput | ErrorKind::NotFound => {
                "no file can have this path, or it is too long"
            }
            _ => return failed(doing, &path)(error),
        };
        wrong(&format!("{}: {why}", shown(&name)))
    }
}

/// A path in an archive, shortened and escaped for a message.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Unpacks an archive.
struct Unpacker<'u> {
    into: &'u Path,
    /// Bytes that may still be written.
    bytes_left: u64,
    /// Files and directories that may still be made.
    files_left: usize,
}

impl Unpacker<'_> {
    fn unpack(&mut self, file: &mut ZipFile<'_, impl Read>) -> Result<(), FolderError> {
        let name = file.name().map_err(|error| wrong(&error))?.into_owned();
        let refused = |why: &str| wrong(&format!("{}: {why}", shown(&name)));
        let path =
            file.enclosed_name().ok_or_else(|| refused("its path leads outside of the folder"))?;
        if file.is_symlink() {
            return Err(refused("it is a symbolic link; put the file itself in the archive"));
        }
        let path = self.into.join(path);
        if file.is_dir() {
            return self.have_directory(&path, &name);
        }
        self.have_directory(path.parent().unwrap_or(self.into), &name)?;
        self.count_one()?;
        let is_program = file.unix_mode().is_some_and(|mode| mode & 0o111 != 0);
        // Of two files with one name the later wins, as with every unpacker.
        let mut target = File::create(&path).map_err(odd("write", &path, &name))?;
        // The sizes in the archive's headers are not trusted.
        let copied = io::copy(&mut file.take(self.bytes_left + 1), &mut target);
        let bytes = copied.map_err(|error| match error.kind() {
            // Not the archive's fault.
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failed("write", &path)(error),
            _ => refused(&words::of(&error)),
        })?;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            refused(&format!("the archive's files exceed {} MiB", MOST_BYTES >> 20))
        })?;
        let mode = if is_program { 0o755 } else { 0o644 };
        target.set_permissions(Permissions::from_mode(mode)).map_err(failed("open", &path))
    }

    /// Makes a directory and its missing ancestors, for the entry `name`.
    fn have_directory(&mut self, directory: &Path, name: &str) -> Result<(), FolderError> {
        let above = directory.ancestors().take_while(|path| *path != self.into);
        let missing: Vec<&Path> = above.take_while(|path| !path.is_dir()).collect();
        for path in missing.into_iter().rev() {
            self.count_one()?;
            fs::create_dir(path).map_err(odd("make", path, name))?;
            // Independent of the platform's umask.
            fs::set_permissions(path, Permissions::from_mode(0o755))
                .map_err(failed("open", path))?;
        }
        Ok(())
    }

    fn count_one(&mut self) -> Result<(), FolderError> {
        self.files_left = self.files_left.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    /// An archive with files at these paths, or directories where a path ends in a slash.
    fn archive(paths: impl Iterator<Item = String>) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for path in paths {
            match path.strip_suffix('/') {
                Some(path) => {
                    writer.add_directory(path, SimpleFileOptions::default()).unwrap();
                }
                None => {
                    writer.start_file(path, SimpleFileOptions::default()).unwrap();
                    writer.write_all(b"x").unwrap();
                }
            }
        }
        writer.finish().unwrap().into_inner()
    }

    /// Whether an archive is unpacked within the limit.
    fn is_taken(archive: &[u8], most_files: usize) -> bool {
        let into = tempfile::tempdir().unwrap();
        match unpack(archive, into.path(), most_files) {
            Ok(()) => true,
            Err(refused) => {
                assert!(refused.to_string().contains("files and directories"), "{refused}");
                false
            }
        }
    }

    #[test]
    fn odd_paths_are_the_archives_fault() {
        let long = "n".repeat(256);
        let deep = "d/".repeat(3000) + "f";
        for paths in [
            vec!["a", "a/b"],
            vec!["a/b", "a"],
            vec!["a/", "a"],
            vec!["a", "a/"],
            vec![&*long],
            vec![&*deep],
            vec!["nul\0"],
            vec![""],
            vec!["."],
            vec!["a/.."],
        ] {
            let into = tempfile::tempdir().unwrap();
            let archive = archive(paths.iter().map(|path| (*path).to_owned()));
            match unpack(&archive, into.path(), MOST_FILES) {
                Err(FolderError::Archive(why)) => assert!(why.len() < 256, "{why}"),
                other => panic!("{paths:?}: {other:?}"),
            }
        }
        // Slashes in a row count as one.
        let into = tempfile::tempdir().unwrap();
        let archive = archive(["a//c", "b/./d"].map(str::to_owned).into_iter());
        unpack(&archive, into.path(), MOST_FILES).unwrap();
        assert!(into.path().join("a/c").is_file() && into.path().join("b/d").is_file());
    }

    #[test]
    fn directories_count_as_files_do() {
        // Of 5 entries, which make 5 files and 5 times 9 directories.
        let deep = archive((0..5).map(|root| format!("{root}{}/file", "/d".repeat(8))));
        assert!(is_taken(&deep, 50) && !is_taken(&deep, 49));
        // Each directory counts once, whether or not it is an entry itself.
        let flat = archive((0..5).map(|file| format!("d/d/{file}")));
        assert!(is_taken(&flat, 7) && !is_taken(&flat, 6));
        let named = archive(["d/", "d/d/", "d/d/file", "e/"].map(str::to_owned).into_iter());
        assert!(is_taken(&named, 4) && !is_taken(&named, 3));
    }
}
