//! What the descriptors of all processes of an image have to do with each other, and with
//! processes outside of it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use farfork_sys::unix_diag::UnixSocket;

use super::connection::{Connections, KeptConnections};
use super::error::DescriptorError;
use super::fdinfo::O_PATH;
use super::handle::Handles;
use super::in_flight::{InFlight, Queue};
use super::network::Network;
use super::other_processes;
use super::pty;
use super::table::{Entry, Identity, Kind};
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
pub struct TreeContext {
    /// Ids of all of them.
    pub ids: Ids,
    /// Those that live.
    pub pids: Vec<i32>,
    handles: Handles,
    /// What waits at sockets with descriptors.
    queues: RefCell<HashMap<u64, Queue>>,
    /// Their connections, where they are to go on.
    kept: Option<Rc<KeptConnections>>,
    pipes: HashMap<u64, PipeEnds>,
    sockets: HashSet<u64>,
    shared: HashSet<String>,
    unnamed: Vec<Identity>,
    terminals: Vec<u32>,
    /// Processes that have a slave open, and its number.
    slaves: HashSet<(i32, u32)>,
    unix: HashMap<u32, UnixSocket>,
}

impl TreeContext {
    /// Looks around processes `pids`, whose descriptors are `entries` in `groups`. To these it adds
    /// what is in flight.
    pub fn collect(
        pids: &[i32],
        ids: &Ids,
        network: &Network,
        entries: &mut Vec<Entry>,
        groups: &mut Vec<Vec<usize>>,
        connections: Connections,
    ) -> Result<TreeContext, DescriptorError> {
        let leaders = leaders(entries, groups);
        let has_sockets = leaders.iter().any(|entry| entry.kind() == Kind::Socket);
        let unix = if has_sockets { network.unix_sockets()? } else { HashMap::new() };
        let handles = Handles::open_all(pids)?;
        let InFlight { queues, files } = InFlight::find(&handles, &leaders, &unix)?;
        groups.extend((entries.len()..).map(|index| vec![index]).take(files.len()));
        entries.extend(files);
        let leaders = self::leaders(entries, groups);
        let (pipes, sockets) = (pipe_ends(&leaders), sockets(&leaders));
        // Looked at before this process opens connections itself.
        let shared = other_processes::links(pids, &leaders, |entry| {
            is_within(entry, &pipes, &sockets, &unix)
        });
        let kept = match connections {
            Connections::End => None,
            Connections::GoOn => {
                let root = pids.first().copied().unwrap_or_default();
                KeptConnections::silence(&handles, root, network.namespace()?, &leaders)?
            }
        };
        Ok(TreeContext {
            ids: ids.clone(),
            pids: pids.to_vec(),
            handles,
            queues: queues.into(),
            kept: kept.map(Rc::new),
            unnamed: unnamed_files(&leaders),
            terminals: pty::masters(&leaders).collect(),
            slaves: pty::slaves(entries).collect(),
            pipes,
            sockets,
            shared,
            unix,
        })
    }

    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        self.handles.open(entry)
    }

    /// What waits at the socket behind `entry`, if descriptors do; asked once.
    pub fn queue(&self, entry: &Entry) -> Option<Queue> {
        self.queues.borrow_mut().remove(&entry.inode.ino())
    }

    /// The connections of the processes, where they are to go on.
    pub fn kept(&self) -> Option<&Rc<KeptConnections>> {
        self.kept.as_ref()
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

    /// What the kernel shows of the Unix socket with this inode.
    pub fn unix_socket(&self, inode: u32) -> Option<&UnixSocket> {
        self.unix.get(&inode)
    }
}

/// The first descriptor of each file.
fn leaders<'e>(entries: &'e [Entry], groups: &[Vec<usize>]) -> Vec<&'e Entry> {
    groups.iter().map(|group| &entries[group[0]]).collect()
}

/// Whether the other end is inside, too: that may be so of a standard stream.
fn is_within(
    entry: &Entry,
    pipes: &HashMap<u64, PipeEnds>,
    sockets: &HashSet<u64>,
    unix: &HashMap<u32, UnixSocket>,
) -> bool {
    if entry.kind() == Kind::Pipe {
        let ends = pipes.get(&entry.inode.ino()).copied().unwrap_or_default();
        return ends.readers > 0 && ends.writers > 0;
    }
    let known = unix.get(&(entry.inode.ino() as u32));
    let peer = known.and_then(|known| known.peer).unwrap_or(0);
    peer != 0 && sockets.contains(&u64::from(peer))
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
    for entry in entries.iter().filter(|entry| entry.is_unnamed()) {
        let identity = entry.identity();
        if !files.contains(&identity) {
            files.push(identity);
        }
    }
    files
}
