//! What is put into the folder of a function: the files of an archive, or a program.

use std::fs::{self, File, Permissions};
use std::io::{self, Cursor, Read};
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
/// Most files of an archive.
const MOST_FILES: usize = 65_536;
/// How an archive begins.
const ARCHIVE: &[u8] = b"PK\x03\x04";
/// What a program is called in its folder.
pub const PROGRAM: &str = "exec";

/// What a folder is made of.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'c> {
    /// The files of a zip archive, which is in base64.
    Archive(&'c str),
    /// A program, called [`PROGRAM`] there: a script as it is, or in base64 a script, an ELF program or an
    /// archive that has it at its top.
    Program(&'c str),
}

impl Contents<'_> {
    /// Writes them.
    pub(super) fn put(self, into: &Path) -> Result<(), FolderError> {
        match self {
            Contents::Archive(code) => {
                unpack(&STANDARD.decode(code).map_err(|error| wrong(&error))?, into)
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
        unpack(&bytes, into)?;
        if !program.is_file() {
            return Err(FolderError::Program(format!(
                "the archive has no file called {PROGRAM} at its top, which would be executed"
            )));
        }
    }
    // Not every tool that makes archives has a way to say it.
    fs::set_permissions(&program, Permissions::from_mode(0o755)).map_err(failed("open", &program))
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
