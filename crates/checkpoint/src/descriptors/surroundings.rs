//! What the descriptors of all processes of an image have to do with each other, and with
//! processes outside of it.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use farfork_sys::unix_diag::UnixSocket;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::error::{DescriptorError, asking, unexpected};
use super::fdinfo::O_PATH;
use super::network::Network;
use super::outside;
use super::table::{Entry, Kind};
use super::terminal;
use super::unnamed::{self, Identity};
use crate::ids::Ids;

/// How often each end of a pipe is open in the processes, as separate descriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeEnds {
    /// Descriptions that read.
    pub readers: u32,
    /// Descriptions that write.
    pub writers: u32,
    /// Whether what is written stays in packets (`O_DIRECT`).
    pub is_packetized: bool,
    /// Whether one description reads and writes.
    pub is_any_both: bool,
}

/// All processes of an image, as far as descriptors are concerned.
pub struct Surroundings {
    /// Ids of all of them.
    pub ids: Ids,
    /// Those that live.
    pub pids: Vec<i32>,
    handles: HashMap<i32, OwnedFd>,
    pipes: HashMap<u64, PipeEnds>,
    sockets: HashSet<u64>,
    shared: HashSet<String>,
    unnamed: Vec<Identity>,
    terminals: Vec<u32>,
    /// Processes that have a slave open, and its number.
    slaves: HashSet<(i32, u32)>,
    unix: HashMap<u32, UnixSocket>,
}

impl Surroundings {
    /// Looks around processes `pids`, whose descriptors are `entries` in `groups`.
    pub fn of(
        pids: &[i32],
        ids: &Ids,
        network: &Network,
        entries: &[Entry],
        groups: &[Vec<usize>],
    ) -> Result<Surroundings, DescriptorError> {
        let leaders: Vec<&Entry> = groups.iter().map(|group| &entries[group[0]]).collect();
        let (pipes, sockets) = (pipe_ends(&leaders), sockets(&leaders));
        let unix = if sockets.is_empty() { HashMap::new() } else { network.unix_sockets()? };
        // Both ends of a standard stream may be inside.
        let is_within = |entry: &Entry| match entry.kind() {
            Kind::Pipe => {
                let ends = pipes.get(&entry.inode.ino()).copied().unwrap_or_default();
                ends.readers > 0 && ends.writers > 0
            }
            _ => {
                let known = unix.get(&(entry.inode.ino() as u32));
                let peer = known.and_then(|known| known.peer).unwrap_or(0);
                peer != 0 && sockets.contains(&u64::from(peer))
            }
        };
        // Looked at before this process opens any of them itself.
        let shared = outside::links(pids, &leaders, is_within);
        let handles = pids.iter().map(|pid| Ok((*pid, handle(*pid)?)));
        let handles = handles.collect::<Result<_, DescriptorError>>()?;
        Ok(Surroundings {
            ids: ids.clone(),
            pids: pids.to_vec(),
            handles,
            unnamed: unnamed_files(&leaders),
            terminals: terminal::masters(&leaders).collect(),
            slaves: terminal::slaves(entries).collect(),
            pipes,
            sockets,
            shared,
            unix,
        })
    }

    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        let Some(handle) = self.handles.get(&entry.pid) else {
            return Err(unexpected(entry.pid, "the descriptors"));
        };
        pidfd_getfd(handle, entry.fd as i32, PidfdGetfdFlags::empty())
            .map_err(asking(entry.pid, format!("for descriptor {}", entry.fd)))
    }

    /// How often the pipe behind `entry` is open in the processes.
    pub fn pipe_ends(&self, entry: &Entry) -> PipeEnds {
        self.pipes.get(&entry.inode.ino()).copied().unwrap_or_default()
    }

    /// Place of a file without a name among all of them, counted by first descriptors.
    pub fn unnamed(&self, identity: Identity) -> Option<u32> {
        self.unnamed.iter().position(|own| *own == identity).map(|index| index as u32)
    }

    /// Place of the terminal with number `number` here among those whose masters the processes
    /// have.
    pub fn terminal(&self, number: u32) -> Option<u32> {
        let index = self.terminals.iter().position(|own| *own == number);
        index.map(|index| index as u32)
    }

    /// Of how many terminals the processes have the masters.
    pub fn terminals(&self) -> usize {
        self.terminals.len()
    }

    /// Whether process `pid` has a slave of terminal `number` open.
    pub fn has_slave(&self, pid: i32, number: u32) -> bool {
        self.slaves.contains(&(pid, number))
    }

    /// Whether a process outside has what has this link in `/proc`.
    pub fn is_shared(&self, link: &str) -> bool {
        self.shared.contains(link)
    }

    /// Whether one of the processes has the socket with this inode.
    pub fn has_socket(&self, inode: u32) -> bool {
        self.sockets.contains(&u64::from(inode))
    }

    /// What the kernel tells of the Unix socket with this inode.
    pub fn unix_socket(&self, inode: u32) -> Option<&UnixSocket> {
        self.unix.get(&inode)
    }
}

fn handle(pid: i32) -> Result<OwnedFd, DescriptorError> {
    Pid::from_raw(pid)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .map_err(asking(pid, "for a handle"))
}

fn sockets(entries: &[&Entry]) -> HashSet<u64> {
    let sockets = entries.iter().filter(|entry| entry.kind() == Kind::Socket);
    sockets.map(|entry| entry.inode.ino()).collect()
}

fn pipe_ends(entries: &[&Entry]) -> HashMap<u64, PipeEnds> {
    let mut pipes: HashMap<u64, PipeEnds> = HashMap::new();
    let opened = |entry: &&&Entry| entry.info.flags & O_PATH == 0;
    for entry in entries.iter().filter(|entry| entry.kind() == Kind::Pipe).filter(opened) {
        let ends = pipes.entry(entry.inode.ino()).or_default();
        let access = entry.info.flags & libc::O_ACCMODE as u32;
        ends.readers += u32::from(access != libc::O_WRONLY as u32);
        ends.is_packetized |= entry.info.flags & libc::O_DIRECT as u32 != 0;
        ends.is_any_both |= access == libc::O_RDWR as u32;
        ends.writers += u32::from(access != libc::O_RDONLY as u32);
    }
    pipes
}

fn unnamed_files(entries: &[&Entry]) -> Vec<Identity> {
    let mut files: Vec<Identity> = Vec::new();
    for entry in entries.iter().filter(|entry| unnamed::is_unnamed(entry)) {
        let identity = unnamed::identity(entry);
        if !files.contains(&identity) {
            files.push(identity);
        }
    }
    files
}
