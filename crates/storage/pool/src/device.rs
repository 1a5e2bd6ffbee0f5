//! Devices whose memory is mapped directly (device DAX), as CXL memory that is not the system's own shows.
//!
//! They are mapped, shared and by whole huge pages, and nothing else: no file is made or grows on them,
//! none of their bytes can be read or written by a call, and the kernel refuses private mappings.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// The bus of such devices, in sysfs.
const BUS: &str = "dax";

/// Whether an open file is such a device.
pub(crate) fn is_one(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    if !found.file_type().is_char_device() {
        return Ok(false);
    }
    let subsystem = fs::canonicalize(sysfs(found.rdev()).join("subsystem"));
    Ok(subsystem.is_ok_and(|place| place.file_name().is_some_and(|name| name == BUS)))
}

/// Bytes of the device, and of the huge pages by which it is mapped.
pub(crate) fn size_and_alignment(file: &File) -> io::Result<(u64, u64)> {
    let place = sysfs(file.metadata()?.rdev());
    Ok((number(&place.join("size"))?, number(&place.join("align"))?))
}

fn sysfs(device: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/char/{}:{}", major(device), minor(device)))
}

fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim_end().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_files_nor_other_devices_are_taken_for_one() {
        let file = tempfile::tempfile().unwrap();
        let null = File::open("/dev/null").unwrap();
        assert!(!is_one(&file).unwrap() && !is_one(&null).unwrap());
        assert!(size_and_alignment(&null).is_err());
    }
}
