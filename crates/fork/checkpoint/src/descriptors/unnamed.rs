//! Regular files that no name leads to any more. If no other process has one open, a copy behaves
//! the same: its content goes into the image, and every clone gets a file of its own.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farfork_image::model::{OpenFile, UnnamedFile};
use rustix::fs::{Mode, OFlags, SeekFrom, fgetxattr, flistxattr, open, seek};
use rustix::io::Errno;

use super::error::{CaptureError, CaptureResult, kernel_error, proc_error, refuse, refuse_detail};
use super::external;
use super::fdinfo::O_PATH;
use super::subject::Subject;
use super::table::Entry;
use crate::refuse::causes;

/// Bytes of all such files of a process that an image takes: they stand in its metadata, twice.
const MOST_BYTES: u64 = 64 << 20;

/// A description of a file without a name.
pub fn capture(entry: &Entry, subject: &Subject) -> CaptureResult {
    let file = subject.unnamed(entry).ok_or_else(|| refuse(causes::files::DELETED_DIRECTORY))?;
    if subject.is_shared(&entry.link) && entry.is_standard() {
        return Ok(external::of(format!("deleted file {}", entry.former_path())));
    }
    if subject.is_shared(&entry.link) {
        return Err(refuse(causes::files::DELETED_SHARED));
    }
    let flags = entry.info.status_flags();
    let offset = if flags & O_PATH != 0 { 0 } else { entry.info.position };
    Ok(OpenFile::Unnamed { file, flags, offset })
}

/// The file behind `entry`; `taken` bytes of the image are taken by others already.
pub fn read(entry: &Entry, subject: &Subject, taken: u64) -> Result<UnnamedFile, CaptureError> {
    let directory = directory(entry, subject)?;
    let failed = || proc_error(subject.pid, format!("the content of fd {}", entry.fd));
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOATIME)
        .open(entry.place())
        .map_err(failed())?;
    let asked = || kernel_error(subject.pid, format!("the data ranges of fd {}", entry.fd));
    let ranges = ranges(&file).map_err(asked())?;
    let bytes: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    if taken + bytes > MOST_BYTES {
        return Err(refuse_detail(
            format!("{} MiB of deleted files", (taken + bytes) >> 20),
            causes::files::DELETED_LARGE,
        ));
    }
    let mut extents = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start).map_err(failed())?;
        extents.push((start, bytes));
    }
    let inode = &entry.inode;
    Ok(UnnamedFile {
        directory,
        mode: inode.mode() & 0o7777,
        owner: (inode.uid(), inode.gid()),
        times: [inode.atime(), inode.atime_nsec(), inode.mtime(), inode.mtime_nsec()],
        size: inode.size(),
        extents,
        attributes: attributes(&file).map_err(asked())?,
    })
}

/// The directory the file was in, or the nearest one above that is left of its file system; a
/// file without a name can be made there.
fn directory(entry: &Entry, subject: &Subject) -> Result<PathBuf, CaptureError> {
    let root = format!("/proc/{}/root", subject.pid);
    let seen = |path: &Path| PathBuf::from(format!("{root}{}", path.display()));
    let above = Path::new(entry.former_path()).ancestors().skip(1);
    let left = above.into_iter().find(|path| {
        fs::metadata(seen(path)).is_ok_and(|at| at.is_dir() && at.dev() == entry.inode.dev())
    });
    let Some(directory) = left else {
        return Err(refuse(causes::files::DELETED_WITH_DIRECTORY));
    };
    match open(seen(directory), OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RWXU) {
        Ok(_) => Ok(directory.to_owned()),
        Err(_) => Err(refuse(causes::files::DELETED_NO_TMPFILE)),
    }
}

/// Where the file has data: start and end of each piece.
fn ranges(file: &File) -> Result<Vec<(u64, u64)>, Errno> {
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(ranges),
            start => start?,
        };
        at = seek(file, SeekFrom::Hole(start))?;
        ranges.push((start, at));
    }
}

/// Extended attributes, but for those that the node's own security modules set.
fn attributes(file: &File) -> Result<Vec<(String, Vec<u8>)>, Errno> {
    let mut names = vec![0u8; 64 << 10];
    let length = match flistxattr(file, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let names = names[..length].split(|byte| *byte == 0);
    let names = names.filter_map(|name| std::str::from_utf8(name).ok());
    let mut attributes = Vec::new();
    for name in names.filter(|name| !name.is_empty() && !name.starts_with("security.")) {
        let mut value = vec![0u8; 64 << 10];
        let length = fgetxattr(file, name, &mut value[..])?;
        value.truncate(length);
        attributes.push((name.to_owned(), value));
    }
    Ok(attributes)
}
