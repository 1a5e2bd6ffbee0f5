//! What inotify instances and fanotify groups watch. The kernel shows it as a handle of the file
//! system, or as the file system alone; which name that has is known to the mounts.

pub mod fanotify;
pub mod inotify;

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_image::model::FileIdentity;
use farfork_sys::{handle, proc};
use rustix::io::{Errno, ioctl_fionread};

use super::error::{CaptureError, kernel_error, refuse};
use super::subject::Subject;
use super::table::Entry;
use crate::files;
use crate::refuse::{Cause, causes};

/// A name, as the process sees names, and what is there.
type Place = (PathBuf, FileIdentity);

/// Refuses to carry events that wait: to read them is to take them.
fn refuse_events(entry: &Entry, subject: &Subject) -> Result<(), CaptureError> {
    let instance = subject.open(entry)?;
    let waiting = ioctl_fionread(&instance)
        .map_err(kernel_error(subject.pid, format!("the number of events in fd {}", entry.fd)))?;
    if waiting > 0 { Err(refuse(causes::descriptors::EVENTS_WAIT)) } else { Ok(()) }
}

/// A line of `fdinfo`: `key:value` by `key:value`.
struct Line<'l>(&'l str);

impl Line<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.split_whitespace().filter_map(|word| word.split_once(':'));
        fields.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn hex(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }

    /// Major and minor of the device that the line names.
    fn device(&self) -> Option<(u32, u32)> {
        let device = self.hex("sdev")?;
        Some(((device >> 20) as u32, device as u32 & 0xf_ffff))
    }
}

/// A file as the kernel shows it: `ino:f0 sdev:fe00000 fhandle-bytes:8 fhandle-type:1 f_handle:2f..`.
#[derive(Debug, PartialEq, Eq)]
struct Handle {
    inode: u64,
    /// Major and minor.
    device: (u32, u32),
    kind: i32,
    bytes: Vec<u8>,
}

impl Handle {
    fn parse(line: &Line<'_>) -> Option<Handle> {
        let digits = line.field("f_handle").unwrap_or("");
        let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        Some(Handle {
            inode: line.hex("ino")?,
            device: line.device()?,
            kind: line.hex("fhandle-type").unwrap_or(0) as i32,
            bytes: (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>()?,
        })
    }

    /// Its name.
    fn place(&self, subject: &Subject) -> Result<Place, &'static Cause> {
        let root = root(subject);
        let opened: Vec<Result<OwnedFd, Errno>> = mounts(self.device, subject)
            .ok_or(causes::descriptors::WATCH_LOST)?
            .iter()
            .filter_map(|mount| File::open(format!("{root}{mount}")).ok())
            .map(|mount| handle::open(mount, self.kind, &self.bytes))
            .collect();
        match opened.iter().flatten().find_map(|file| name(file, &root)) {
            Some(place) => Ok(place),
            None if opened.iter().any(|file| matches!(file, Err(Errno::PERM))) => {
                Err(causes::descriptors::WATCH_UNSEEN)
            }
            None => Err(causes::descriptors::WATCH_LOST),
        }
    }
}

fn root(subject: &Subject) -> String {
    format!("/proc/{}/root", subject.pid)
}

/// Where the process has the file system of a device mounted.
fn mounts(device: (u32, u32), subject: &Subject) -> Option<Vec<String>> {
    let table = proc::text(format!("/proc/{}/mountinfo", subject.pid)).ok()?;
    let device = format!("{}:{}", device.0, device.1);
    let lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let of_device = lines.filter(|fields| fields.get(2) == Some(&device.as_str()));
    Some(of_device.filter_map(|fields| Some((*fields.get(4)?).to_owned())).collect())
}

fn name(file: &OwnedFd, root: &str) -> Option<Place> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = fs::read_link(&link).ok()?;
    let (open, named) = (fs::metadata(&link).ok()?, format!("{root}{}", path.to_str()?));
    let named = fs::symlink_metadata(named).ok()?;
    let is_same = (open.dev(), open.ino()) == (named.dev(), named.ino());
    let is_kernel_s = files::is_kernel_s(Path::new(&link));
    is_same.then(|| (path, FileIdentity { is_kernel_s, ..FileIdentity::from_metadata(&named) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_the_kernel_prints_it() {
        let line = "wd:2 ino:98402f sdev:fe00001 mask:80000fff ignored_mask:0 fhandle-bytes:8 \
                    fhandle-type:81 f_handle:2f4098006aa82587";
        let bytes = vec![0x2f, 0x40, 0x98, 0, 0x6a, 0xa8, 0x25, 0x87];
        let handle = Handle { inode: 0x98402f, device: (0xfe, 1), kind: 0x81, bytes };
        assert_eq!(Handle::parse(&Line(line)), Some(handle));
        assert_eq!(Handle::parse(&Line("wd:2 ino:98402f")), None);
    }
}
