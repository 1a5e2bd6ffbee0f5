//! Pseudo-terminals by number: which master and which slaves belong together.

use std::os::unix::fs::MetadataExt;

use super::fdinfo::O_PATH;
use super::table::{Entry, Kind};

/// First major of slaves, each with 256 minors.
const SLAVES: u32 = 136;

/// Numbers of the terminals whose masters are among `entries`.
pub fn masters(entries: &[&Entry]) -> impl Iterator<Item = u32> {
    let masters = entries.iter().filter(|entry| entry.kind() == Kind::Master);
    masters.filter(|entry| entry.info.flags & O_PATH == 0).filter_map(|entry| number(entry))
}

/// Slaves among `entries`: their processes, and their numbers.
pub fn slaves(entries: &[Entry]) -> impl Iterator<Item = (i32, u32)> {
    let open = entries.iter().filter(|entry| entry.info.flags & O_PATH == 0);
    open.filter(|entry| entry.kind() == Kind::Terminal)
        .filter_map(|entry| Some((entry.pid, slave_number(entry)?)))
}

/// Number of the terminal whose slave is behind `entry`.
pub fn slave_number(entry: &Entry) -> Option<u32> {
    let device = entry.inode.rdev();
    let above = libc::major(device).checked_sub(SLAVES).filter(|above| *above < 8)?;
    Some(above << 8 | libc::minor(device))
}

/// Number of the terminal whose master is behind `entry`.
pub fn number(entry: &Entry) -> Option<u32> {
    entry.info.value("tty-index")?.parse().ok()
}

/// Path of the slave of terminal `number`.
pub fn slave_path(number: u32) -> String {
    format!("/dev/pts/{number}")
}

/// The slave of terminal `number` among `entries`.
pub fn slave<'e>(entries: &[&'e Entry], number: u32) -> Option<&'e Entry> {
    let device = libc::makedev(SLAVES + (number >> 8), number & 0xff);
    let slaves = entries.iter().filter(|entry| entry.kind() == Kind::Terminal);
    slaves
        .copied()
        .filter(|entry| entry.info.flags & O_PATH == 0)
        .find(|entry| entry.inode.rdev() == device)
}
