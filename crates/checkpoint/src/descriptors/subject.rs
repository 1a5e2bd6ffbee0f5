//! The process and what its descriptors meet outside of it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use farfork_sys::proc;
use farfork_sys::status::Status;
use farfork_sys::unix_diag::UnixSocket;
use rustix::fs::{Dir, Mode, OFlags, readlinkat};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::connection::{Connections, Kept};
use super::error::{DescriptorError, asking, unexpected};
use super::fdinfo::O_PATH;
use super::in_flight::{InFlight, Queue};
use super::network::Network;
use super::table::{Entry, Kind};
use super::terminal;
use super::unnamed::{self, Identity};

/// How often each end of a pipe is open in the process, as separate descriptions.
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

/// A process, and the way to its descriptors.
pub struct Handle {
    /// Its id here.
    pub pid: i32,
    pidfd: OwnedFd,
}

impl Handle {
    /// That of process `pid`.
    pub fn of(pid: i32) -> Result<Handle, DescriptorError> {
        let pidfd = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(asking(pid, "for a handle"))?;
        Ok(Handle { pid, pidfd })
    }

    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        let failed = || asking(self.pid, format!("for {}", entry.object("")));
        match &entry.held {
            Some(held) => fcntl_dupfd_cloexec(held, 0).map_err(failed()),
            None => pidfd_getfd(&self.pidfd, entry.fd as i32, PidfdGetfdFlags::empty())
                .map_err(failed()),
        }
    }
}

/// The process whose descriptors are captured.
pub struct Subject {
    /// Its id here.
    pub pid: i32,
    /// Its id in its innermost PID namespace.
    pub inner_pid: u32,
    /// Its network namespace.
    pub network: Network,
    /// Its connections, where they are to go on.
    pub kept: Option<Kept>,
    handle: Handle,
    queues: RefCell<HashMap<u64, Queue>>,
    pipes: HashMap<u64, PipeEnds>,
    sockets: HashSet<u64>,
    shared: HashSet<String>,
    unnamed: Vec<Identity>,
    terminals: Vec<u32>,
    unix: HashMap<u32, UnixSocket>,
}

impl Subject {
    /// Looks around process `pid`, whose descriptors are `entries` in `groups`. To these it adds
    /// what is in flight.
    pub fn of(
        pid: i32,
        entries: &mut Vec<Entry>,
        groups: &mut Vec<Vec<usize>>,
        connections: Connections,
    ) -> Result<Subject, DescriptorError> {
        let network = Network::of(pid)?;
        let leaders = leaders(entries, groups);
        let has_sockets = leaders.iter().any(|entry| entry.kind() == Kind::Socket);
        let unix = if has_sockets { network.unix_sockets()? } else { HashMap::new() };
        let handle = Handle::of(pid)?;
        let InFlight { queues, files } = InFlight::find(&handle, &leaders, &unix)?;
        groups.extend((entries.len()..).map(|index| vec![index]).take(files.len()));
        entries.extend(files);
        let leaders = self::leaders(entries, groups);
        // Looked at before this process opens connections itself.
        let shared = links_elsewhere(pid, &leaders);
        let kept = match connections {
            Connections::End => None,
            Connections::GoOn => Kept::silence(&handle, network.namespace()?, &leaders)?,
        };
        let (pipes, unnamed) = (pipe_ends(&leaders), unnamed_files(&leaders));
        let status = Status::read(pid, pid).map_err(|_| unexpected(pid, "the status"))?;
        Ok(Subject {
            pid,
            inner_pid: status.innermost_pid,
            network,
            kept,
            handle,
            queues: queues.into(),
            pipes,
            sockets: inodes(&leaders, Kind::Socket),
            shared,
            unnamed,
            terminals: masters(&leaders).collect(),
            unix,
        })
    }

    /// A descriptor of this process for the description behind `entry`.
    pub fn open(&self, entry: &Entry) -> Result<OwnedFd, DescriptorError> {
        self.handle.open(entry)
    }

    /// What waits at the socket behind `entry`, if descriptors do; asked once.
    pub fn queue(&self, entry: &Entry) -> Option<Queue> {
        self.queues.borrow_mut().remove(&entry.inode.ino())
    }

    /// How often the pipe behind `entry` is open in the process.
    pub fn pipe_ends(&self, entry: &Entry) -> PipeEnds {
        self.pipes.get(&entry.inode.ino()).copied().unwrap_or_default()
    }

    /// Which of the process's files without a name is behind `entry`, counted by first descriptors.
    pub fn unnamed(&self, entry: &Entry) -> Option<u32> {
        let identity = unnamed::identity(entry);
        self.unnamed.iter().position(|own| *own == identity).map(|index| index as u32)
    }

    /// Which of the terminals whose masters the process has is number `number` here.
    pub fn terminal(&self, number: u32) -> Option<u32> {
        let index = self.terminals.iter().position(|own| *own == number);
        index.map(|index| index as u32)
    }

    /// Of how many terminals the process has the masters.
    pub fn terminals(&self) -> usize {
        self.terminals.len()
    }

    /// Whether another process has what has this link in `/proc`: a pipe, a socket, or a file
    /// without a name.
    pub fn is_shared(&self, link: &str) -> bool {
        self.shared.contains(link)
    }

    /// Whether the process itself has the socket with this inode.
    pub fn has_socket(&self, inode: u32) -> bool {
        self.sockets.contains(&u64::from(inode))
    }

    /// What the kernel tells of the Unix socket with this inode.
    pub fn unix_socket(&self, inode: u32) -> Option<&UnixSocket> {
        self.unix.get(&inode)
    }
}

/// The first descriptor of each file.
pub fn leaders<'e>(entries: &'e [Entry], groups: &[Vec<usize>]) -> Vec<&'e Entry> {
    groups.iter().map(|group| &entries[group[0]]).collect()
}

fn inodes(entries: &[&Entry], kind: Kind<'_>) -> HashSet<u64> {
    entries.iter().filter(|entry| entry.kind() == kind).map(|entry| entry.inode.ino()).collect()
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

/// Numbers of the terminals whose masters are among `entries`.
fn masters(entries: &[&Entry]) -> impl Iterator<Item = u32> {
    let masters = entries.iter().filter(|entry| entry.kind() == Kind::Master);
    masters
        .filter(|entry| entry.info.flags & O_PATH == 0)
        .filter_map(|entry| terminal::number(entry))
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

/// Pipes, sockets and files without a name of the process that another process has open as well. A
/// process that may not be looked into counts as one that has none. Standard streams come from the
/// caller of restore anyway, and to look for their other ends takes longer than all else, with the
/// process standing still.
fn links_elsewhere(pid: i32, entries: &[&Entry]) -> HashSet<String> {
    let own: HashSet<&str> = entries
        .iter()
        .filter(|entry| !entry.is_standard() && matches!(entry.kind(), Kind::Pipe | Kind::Socket))
        .map(|entry| entry.link.as_str())
        .collect();
    // A deleted file's link may be another's, too, and another process's link to it differ.
    let unnamed = entries.iter().filter(|entry| unnamed::is_unnamed(entry));
    let unnamed: Vec<_> = unnamed.map(|entry| (unnamed::identity(entry), &entry.link)).collect();
    // Slaves of the process's masters, also where another process has the master.
    let slaves: HashMap<u32, String> =
        masters(entries).map(|number| (number, terminal::slave_path(number))).collect();
    let mut found = HashSet::new();
    if own.is_empty() && unnamed.is_empty() && slaves.is_empty() {
        return found;
    }
    // What is in flight was opened here to look at it.
    let held: HashSet<PathBuf> =
        entries.iter().filter(|entry| entry.held.is_some()).map(|entry| entry.place(pid)).collect();
    let others = proc::processes().filter(|other| *other != pid).flat_map(links);
    for (path, link) in others.filter(|(path, _)| !held.contains(path)) {
        if own.contains(link.as_str()) || slaves.values().any(|slave| *slave == link) {
            found.insert(link);
        } else if !slaves.is_empty() && link.ends_with("/ptmx") {
            found.extend(master_at(&path).and_then(|number| slaves.get(&number).cloned()));
        } else if !unnamed.is_empty() && link.ends_with(unnamed::MARK) {
            let identity = fs::metadata(path).map(|inode| (inode.dev(), inode.ino()));
            let same = unnamed.iter().filter(|(own, _)| identity.as_ref().is_ok_and(|i| i == own));
            found.extend(same.map(|(_, link)| (*link).clone()));
        }
    }
    found
}

/// Number of the terminal whose master is at `path`, a descriptor in `/proc`.
fn master_at(path: &Path) -> Option<u32> {
    let info = path.parent()?.with_file_name("fdinfo").join(path.file_name()?);
    let text = fs::read_to_string(info).ok()?;
    text.lines().find_map(|line| line.strip_prefix("tty-index:")?.trim().parse().ok())
}

/// Descriptors of a process in `/proc`, and where they lead.
fn links(pid: i32) -> impl Iterator<Item = (PathBuf, String)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = PathBuf::from(format!("/proc/{pid}/fd"));
    let directory = rustix::fs::open(&place, flags, Mode::empty()).ok();
    let entries = directory.and_then(|fd| Some((Dir::read_from(&fd).ok()?, fd)));
    entries.into_iter().flat_map(move |(entries, fd)| {
        let place = place.clone();
        entries.filter_map(move |entry| {
            let entry = entry.ok()?;
            // From the directory on: the way to it takes longer than the link itself.
            let link = readlinkat(&fd, entry.file_name(), Vec::new()).ok()?;
            Some((place.join(entry.file_name().to_str().ok()?), link.into_string().ok()?))
        })
    })
}
