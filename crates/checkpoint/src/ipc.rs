//! The IPC namespace of the processes, and what of System V is in it.
//!
//! A clone that has objects of System V is in a namespace of its own, where they have their ids and
//! keys. What is in one with the processes alone is theirs; in farfork's own, where everybody's
//! objects are, that which they have attached is.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use farfork_sys::proc;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{CheckpointError, doing};
use crate::refuse::{Refusals, causes};

/// A segment of shared memory, as `/proc/sysvipc/shm` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its id.
    pub id: u32,
    /// Its key, 0 for none.
    pub key: i32,
    /// Permissions, and what else the kernel keeps there.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// How many mappings there are of it.
    pub attached: u64,
    /// User and group that own it.
    pub owner: (u32, u32),
    /// User and group that made it.
    pub creator: (u32, u32),
}

impl Segment {
    const REMOVED: u32 = 0o1000;
    const LOCKED: u32 = 0o2000;

    /// Whether it lasts only as long as it is attached.
    pub fn is_removed(&self) -> bool {
        self.mode & Segment::REMOVED != 0
    }

    /// `SHM_LOCK`.
    pub fn is_locked(&self) -> bool {
        self.mode & Segment::LOCKED != 0
    }

    fn parse(line: &str) -> Option<Segment> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let id = |index: usize| Some(number(index)? as u32);
        Some(Segment {
            key: fields.first()?.parse().ok()?,
            id: id(1)?,
            mode: u32::from_str_radix(fields.get(2)?, 8).ok()?,
            size: number(3)?,
            attached: number(6)?,
            owner: (id(7)?, id(8)?),
            creator: (id(9)?, id(10)?),
        })
    }
}

/// All segments in the namespace of process `pid`.
pub fn segments(pid: i32) -> io::Result<Vec<Segment>> {
    let [text] = read(pid, ["shm"])?;
    Ok(text.lines().filter_map(Segment::parse).collect())
}

/// Whether the processes, which are in one namespace, are in another than farfork. Refuses one
/// that others are in, too, or that has more than what processes attach.
pub fn is_own(pids: &[i32], refusals: &mut Refusals) -> Result<bool, CheckpointError> {
    let Some(pid) = pids.first().copied() else { return Ok(false) };
    let theirs = name(pid).map_err(|_| CheckpointError::Proc { pid, what: "the namespaces" })?;
    if Some(&theirs) == name_of("self").ok().as_ref() {
        return Ok(false);
    }
    refusals.about(pid);
    let is_inside = |other: &i32| name(*other).is_ok_and(|other| other == theirs);
    if let Some(other) = proc::processes().find(|other| !pids.contains(other) && is_inside(other)) {
        refusals.add(format!("process {other}"), causes::namespaces::IPC_COMPANY);
    }
    match read(pid, ["sem", "msg"]) {
        Ok(texts) => {
            // One line of each is its heading.
            if texts.iter().any(|text| text.lines().count() > 1) {
                refusals.add("semaphores and queues", causes::namespaces::IPC_OBJECTS);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            refusals.add("process", causes::namespaces::IPC);
        }
        Err(error) => return Err(doing(pid, "look into its IPC namespace")(error)),
    }
    Ok(true)
}

/// Whether two processes are in one namespace.
pub fn is_same(pid: i32, other: i32) -> bool {
    matches!((name(pid), name(other)), (Ok(pid), Ok(other)) if pid == other)
}

fn name(pid: i32) -> io::Result<PathBuf> {
    name_of(&pid.to_string())
}

fn name_of(process: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/ipc"))
}

/// Tables of `/proc/sysvipc` in the namespace of process `pid`.
fn read<const N: usize>(pid: i32, tables: [&'static str; N]) -> io::Result<[String; N]> {
    inside(pid, move || {
        let mut texts = [const { String::new() }; N];
        for (text, table) in texts.iter_mut().zip(tables) {
            *text = proc::text(format!("/proc/sysvipc/{table}"))?;
        }
        Ok(texts)
    })
}

/// Does something in the IPC namespace of process `pid`: a thread of its own may enter it.
fn inside<T: Send + 'static>(
    pid: i32,
    look: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if name(pid)? == name_of("self")? {
        return look();
    }
    let namespace = File::open(format!("/proc/{pid}/ns/ipc"))?;
    let entered = std::thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::InterProcessCommunication);
        move_into_link_name_space(namespace.as_fd(), kind)?;
        look()
    });
    entered.join().unwrap_or_else(|_| Err(io::Error::other("a thread of farfork's panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_a_segment() {
        let line = "      4660      98311  3600                 20536 21422 21422      3 65534     \
                    7     0     5 1795260893          0 1795260893                  4096        0";
        let segment = Segment::parse(line).unwrap();
        assert_eq!((segment.key, segment.id, segment.size), (0x1234, 98311, 20536));
        assert!(segment.is_removed() && segment.is_locked());
        assert_eq!((segment.attached, segment.owner, segment.creator), (3, (65534, 7), (0, 5)));
        assert_eq!(Segment::parse("       key      shmid perms"), None);
    }
}
