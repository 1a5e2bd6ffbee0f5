//! The contents of a function's folder: the files of an archive, or a program.

use std::fs::{self, File, Permissions};
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use zip::ZipArchive;
use zip::read::ZipFile;

use super::FolderError;
use super::room::{LEAST, Room, failed};

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
    /// Writes the contents, as far as there is room for them.
    pub(super) fn write(self, into: &Path, room: Room) -> Result<(), FolderError> {
        match self {
            Contents::Archive(code) => {
                let archive = STANDARD.decode(code).map_err(|error| wrong(&error))?;
                unpack(&archive, into, MOST_FILES, room)
            }
            Contents::Program(code) => put_program(code, into, room),
        }
    }
}

fn put_program(code: &str, into: &Path, room: Room) -> Result<(), FolderError> {
    let bytes = match code.starts_with("#!") {
        true => code.as_bytes().to_owned(),
        false => STANDARD.decode(code).map_err(|error| FolderError::Program(error.to_string()))?,
    };
    let program = into.join(PROGRAM);
    if !bytes.starts_with(ARCHIVE) {
        Share::of(room)?.grow(0, bytes.len() as u64)?;
        fs::write(&program, bytes).map_err(failed("write", &program))?;
    } else {
        unpack(&bytes, into, MOST_FILES, room)?;
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

fn unpack(archive: &[u8], into: &Path, most_files: usize, room: Room) -> Result<(), FolderError> {
    let mut archive = ZipArchive::new(Cursor::new(archive)).map_err(|error| wrong(&error))?;
    if archive.len() > most_files {
        return Err(too_many());
    }
    let share = Share::of(room)?;
    let mut unpacker = Unpacker { into, bytes_left: MOST_BYTES, files_left: most_files, share };
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

/// What is left of a group's room on the disk.
struct Share {
    room: Room,
    /// What its folder takes, with all that is being written.
    has: u64,
}

impl Share {
    /// With a folder in it.
    fn of(room: Room) -> Result<Share, FolderError> {
        let mut share = Share { room, has: 0 };
        share.grow(0, LEAST)?;
        Ok(share)
    }

    /// Counts a file that has grown, before it is written.
    fn grow(&mut self, from: u64, to: u64) -> Result<(), FolderError> {
        let on_disk = |bytes: u64| bytes.next_multiple_of(LEAST);
        self.has += on_disk(to) - on_disk(from);
        let Room { most, taken } = self.room;
        if taken.saturating_add(self.has) <= most {
            return Ok(());
        }
        Err(wrong(&format!(
            "its files do not fit; those of the namespace's other functions and versions take {taken} of \
             {most} bytes: delete some, or make them smaller"
        )))
    }
}

/// Why a file of an archive is not written.
enum Copying {
    Error(io::Error),
    TooLong,
    NoRoom(FolderError),
}

/// Unpacks an archive.
struct Unpacker<'u> {
    into: &'u Path,
    /// Bytes that may still be written.
    bytes_left: u64,
    /// Files and directories that may still be made.
    files_left: usize,
    share: Share,
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
        self.copy(file, &mut target).map_err(|error| match error {
            // Not the archive's fault.
            Copying::Error(error)
                if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                failed("write", &path)(error)
            }
            Copying::Error(error) => refused(&words::of(&error)),
            Copying::TooLong => {
                refused(&format!("the archive's files exceed {} MiB", MOST_BYTES >> 20))
            }
            Copying::NoRoom(error) => error,
        })?;
        let mode = if is_program { 0o755 } else { 0o644 };
        target.set_permissions(Permissions::from_mode(mode)).map_err(failed("open", &path))
    }

    /// Writes a file as far as it may. The sizes in the archive's headers are not trusted.
    fn copy(&mut self, file: &mut impl Read, target: &mut File) -> Result<(), Copying> {
        let mut bytes = vec![0; 64 << 10];
        let mut has = 0;
        // One that is empty takes room, too.
        self.share.grow(0, LEAST).map_err(Copying::NoRoom)?;
        loop {
            let read = file.read(&mut bytes).map_err(Copying::Error)?;
            if read == 0 {
                return Ok(());
            }
            let left = self.bytes_left.checked_sub(read as u64);
            self.bytes_left = left.ok_or(Copying::TooLong)?;
            let next = has + read as u64;
            self.share.grow(has.max(LEAST), next.max(LEAST)).map_err(Copying::NoRoom)?;
            has = next;
            target.write_all(&bytes[..read]).map_err(Copying::Error)?;
        }
    }

    /// Makes a directory and its missing ancestors, for the entry `name`.
    fn have_directory(&mut self, directory: &Path, name: &str) -> Result<(), FolderError> {
        let above = directory.ancestors().take_while(|path| *path != self.into);
        let missing: Vec<&Path> = above.take_while(|path| !path.is_dir()).collect();
        for path in missing.into_iter().rev() {
            self.count_one()?;
            self.share.grow(0, LEAST)?;
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
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    const ROOM: Room = Room { most: u64::MAX, taken: 0 };

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
        match unpack(archive, into.path(), most_files, ROOM) {
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
            match unpack(&archive, into.path(), MOST_FILES, ROOM) {
                Err(FolderError::Archive(why)) => assert!(why.len() < 256, "{why}"),
                other => panic!("{paths:?}: {other:?}"),
            }
        }
        // Slashes in a row count as one.
        let into = tempfile::tempdir().unwrap();
        let archive = archive(["a//c", "b/./d"].map(str::to_owned).into_iter());
        unpack(&archive, into.path(), MOST_FILES, ROOM).unwrap();
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

    #[test]
    fn a_folder_never_takes_more_than_there_is_room_for() {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.add_directory("d/", SimpleFileOptions::default()).unwrap();
        for name in ["d/empty", "d/large"] {
            writer.start_file(name, SimpleFileOptions::default()).unwrap();
        }
        writer.write_all(&vec![7; 1 << 20]).unwrap();
        let archive = writer.finish().unwrap().into_inner();
        // The folder, a directory, an empty file, and the large one.
        let exact = 3 * LEAST + (1 << 20);
        for (most, taken, fits) in [(exact, 0, true), (exact - 1, 0, false), (exact + 9, 10, false)]
        {
            let into = tempfile::tempdir().unwrap();
            let done = unpack(&archive, into.path(), MOST_FILES, Room { most, taken });
            assert_eq!(done.is_ok(), fits, "{most} {taken}: {done:?}");
            let large = into.path().join("d/large").metadata().unwrap().len();
            assert!(large <= most - taken - 3 * LEAST, "{large} bytes were written");
            if let Err(refused) = done {
                assert!(matches!(refused, FolderError::Archive(_)), "{refused}");
                let words = refused.to_string();
                assert!(words.contains(&format!("{taken} of {most} bytes")), "{words}");
            }
        }
    }
}
