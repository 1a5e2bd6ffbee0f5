//! Functions of several files: a directory becomes an archive, and an archive gets the packages in its
//! `requirements.txt`.

use std::collections::HashSet;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, absolute};
use std::process::Command;

use farfork_sys::words;
use walkdir::WalkDir;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const REQUIREMENTS: &str = "requirements.txt";
/// Directories that are not packed.
const LEFT_OUT: [&str; 3] = ["__pycache__", ".git", ".venv"];

/// Whether these are the bytes of a zip archive.
pub(super) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// Packs a directory into an archive.
pub(super) fn packed(directory: &Path) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    add(&mut archive, directory, &HashSet::new())?;
    Ok(archive.finish()?.into_inner())
}

/// Adds the packages in the archive's `requirements.txt`, installed by pip of `python`. Returns also the
/// version of Python that they are for, if there is such a file. Relative paths in it start at the
/// packed directory, or at the directory of the archive.
pub(super) fn with_requirements(
    bytes: Vec<u8>,
    source: &Path,
    python: &Path,
) -> Result<(Vec<u8>, Option<String>)> {
    let mut archive = ZipArchive::new(Cursor::new(&bytes))?;
    if archive.index_for_name(REQUIREMENTS).is_none() {
        return Ok((bytes, None));
    }
    let mut list = Vec::new();
    archive.by_name(REQUIREMENTS)?.read_to_end(&mut list)?;
    let own = file_names(&archive)?.into_iter().collect();
    let place = tempfile::tempdir()?;
    let (written, packages) = (place.path().join(REQUIREMENTS), place.path().join("packages"));
    fs::write(&written, list)?;
    let source = absolute(source)?;
    let (beside, list) = match source.is_dir() {
        true => (&*source, source.join(REQUIREMENTS)),
        false => (source.parent().unwrap_or(&source), written),
    };
    // A name without a slash is left to be looked up in PATH.
    let python = match python.components().count() {
        1 => python.to_owned(),
        _ => absolute(python)?,
    };
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    pip.args(["--no-compile", "--target"]).arg(&packages).arg("--requirement").arg(list);
    pip.current_dir(beside);
    output_of(pip, &python)?;
    let mut version = Command::new(&python);
    version.args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]);
    let version = output_of(version, &python)?;
    let mut archive = ZipWriter::new_append(Cursor::new(bytes))?;
    // The list may be empty.
    if packages.is_dir() {
        add(&mut archive, &packages, &own)?;
    }
    Ok((archive.finish()?.into_inner(), Some(version)))
}

fn file_names(archive: &ZipArchive<impl Read + Seek>) -> Result<Vec<String>> {
    archive.file_names().map(|name| Ok(name?.into_owned())).collect()
}

/// Runs a command of Python, which must succeed, and returns its output.
fn output_of(mut command: Command, python: &Path) -> Result<String> {
    let python = python.display();
    let output = command.output().map_err(|error| {
        format!("cannot execute {python}: {}; use another Python (--python)", words::of(&error))
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.trim();
        return Err(format!("{python} cannot install the packages in {REQUIREMENTS}: {why}").into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Adds the files of a directory, except names in `taken`.
fn add(
    archive: &mut ZipWriter<impl Write + Seek>,
    directory: &Path,
    taken: &HashSet<String>,
) -> Result<()> {
    let is_kept = |entry: &walkdir::DirEntry| {
        entry.depth() == 0 || !LEFT_OUT.iter().any(|name| entry.file_name() == *name)
    };
    let entries = WalkDir::new(directory).follow_links(true).sort_by_file_name();
    for entry in entries.into_iter().filter_entry(is_kept) {
        let entry = entry?;
        let shown = entry.path().display();
        let name = entry.path().strip_prefix(directory)?;
        let name =
            name.to_str().ok_or_else(|| format!("cannot pack {shown}: its name is not UTF-8"))?;
        if !entry.file_type().is_file() || taken.contains(name) {
            continue;
        }
        let failed = |error: io::Error| format!("cannot read {shown}: {}", words::of(&error));
        let mut file = File::open(entry.path()).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        archive.start_file(name, SimpleFileOptions::default().unix_permissions(mode))?;
        io::copy(&mut file, archive).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: &[u8]) -> Vec<String> {
        let mut names = file_names(&ZipArchive::new(Cursor::new(archive)).unwrap()).unwrap();
        names.sort();
        names
    }

    #[test]
    fn a_directory_becomes_an_archive_of_its_files() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
            path
        };
        for name in ["main.py", "lib/a.py", "lib/__pycache__/a.pyc", ".git/config", ".venv/x"] {
            write(name);
        }
        let program = write("exec");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let packed = packed(place.path()).unwrap();
        assert!(is_archive(&packed) && !is_archive(b"PK"));
        assert_eq!(names(&packed), ["exec", "lib/a.py", "main.py"]);
        let mut archive = ZipArchive::new(Cursor::new(&packed)).unwrap();
        let mode = |archive: &mut ZipArchive<_>, name| {
            archive.by_name(name).unwrap().unix_mode().unwrap() & 0o777
        };
        assert_eq!(mode(&mut archive, "exec"), 0o755);
        assert_eq!(mode(&mut archive, "main.py") & 0o111, 0);
        let mut text = String::new();
        archive.by_name("lib/a.py").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "lib/a.py");
        // Without a list, Python is not needed.
        let same = with_requirements(packed.clone(), place.path(), Path::new("/nowhere"));
        assert_eq!(same.unwrap(), (packed, None));
    }

    #[test]
    fn a_list_of_requirements_needs_a_python() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(REQUIREMENTS), "").unwrap();
        let archive = packed(place.path()).unwrap();
        let failed = with_requirements(archive, place.path(), Path::new("/nowhere")).unwrap_err();
        assert!(failed.to_string().starts_with("cannot execute /nowhere: "), "{failed}");
    }
}
