//! The descriptor table as `/proc` shows it.

use std::fs::{self, Metadata};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use super::error::{DescriptorError, proc_error, unexpected};
use super::fdinfo::FdInfo;

/// How the kernel marks a link to a file that has lost its name.
pub const DELETED: &str = " (deleted)";

/// In the place of a link that is too long to be read.
pub const TOO_LONG: &str = "a path of more than 4095 bytes";

/// Device and inode: equal for two descriptors of one file, and only then.
pub type Identity = (u64, u64);

/// One descriptor.
#[derive(Debug)]
pub struct Entry {
    /// Its process.
    pub pid: i32,
    /// Whether that is the one at the root of all that are looked at.
    pub is_roots: bool,
    /// Number.
    pub fd: u32,
    /// Where its link in `/proc` leads; not a path for what has none.
    pub link: String,
    /// Whether the link was text; a path that is not UTF-8 cannot be written into an image.
    pub is_text: bool,
    /// Its line in `fdinfo`.
    pub info: FdInfo,
    /// Attributes of the inode behind it.
    pub inode: Metadata,
    /// Present if it is in flight: this process's duplicate, whose number `fd` is.
    pub held: Option<OwnedFd>,
}

/// Which module captures a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind<'e> {
    /// An inode without a name; the kernel's word for it.
    Anonymous(&'e str),
    /// A pipe or a named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device that is a terminal.
    Terminal,
    /// The master of a pseudo-terminal.
    Master,
    /// Any other device.
    Device,
    /// A file or directory.
    Path,
}

impl Entry {
    fn read(pid: i32, fd: u32, is_roots: bool) -> Result<Entry, DescriptorError> {
        let at = format!("/proc/{pid}/fd/{fd}");
        let failed = || proc_error(pid, format!("descriptor {fd}"));
        let link = match fs::read_link(&at) {
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => TOO_LONG.into(),
            link => link.map_err(failed())?,
        };
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).map_err(failed())?;
        let info = FdInfo::parse(info).ok_or_else(|| unexpected(pid, format!("fdinfo of {fd}")))?;
        let inode = fs::metadata(&at).map_err(failed())?;
        let is_text = link.to_str().is_some();
        let link = link.to_string_lossy().into_owned();
        Ok(Entry { pid, is_roots, fd, link, is_text, info, inode, held: None })
    }

    /// What waits to be received by process `pid`, and was looked at as `held`.
    pub fn in_flight(held: OwnedFd, pid: i32) -> Result<Entry, DescriptorError> {
        let own = Entry::read(std::process::id() as i32, held.as_raw_fd() as u32, false)
            .map_err(|_| unexpected(pid, "descriptors in flight"))?;
        Ok(Entry { pid, held: Some(held), ..own })
    }

    /// The same, of what is in flight.
    pub fn again(&self) -> Result<Entry, DescriptorError> {
        let pid = self.pid;
        let held = self.held.as_ref().ok_or_else(|| unexpected(pid, "descriptors in flight"))?;
        let twin = held.try_clone().map_err(proc_error(pid, "descriptors in flight"))?;
        Entry::in_flight(twin, pid)
    }

    /// The process that has its number: its own, or this one, which holds what is in flight.
    pub fn holder(&self) -> i32 {
        if self.held.is_some() { std::process::id() as i32 } else { self.pid }
    }

    /// Its place in `/proc`.
    pub fn place(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.holder(), self.fd))
    }

    /// Names the descriptor in messages: `fd 7 (socket:[123], TCP 127.0.0.1:80 listening)`.
    pub fn object(&self, detail: &str) -> String {
        let (fd, link) = (self.fd, &self.link);
        if self.held.is_some() {
            return format!("descriptor in flight ({link}) {detail}").trim_end().to_owned();
        }
        if detail.is_empty() {
            format!("fd {fd} ({link})")
        } else {
            format!("fd {fd} ({link}, {detail})")
        }
    }

    /// Which module captures it.
    pub fn kind(&self) -> Kind<'_> {
        let file_type = self.inode.file_type();
        if let Some(name) = self.anonymous_name() {
            Kind::Anonymous(name)
        } else if file_type.is_fifo() {
            Kind::Pipe
        } else if file_type.is_socket() {
            Kind::Socket
        } else if file_type.is_char_device() && is_terminal(self.inode.rdev()) {
            Kind::Terminal
        } else if file_type.is_char_device() && self.inode.rdev() == libc::makedev(5, 2) {
            Kind::Master
        } else if file_type.is_char_device() || file_type.is_block_device() {
            Kind::Device
        } else {
            Kind::Path
        }
    }

    /// `anon_inode:[eventfd]` is `eventfd`, `net:[4026531840]` is `net`, `/memfd:x` is `memfd`.
    fn anonymous_name(&self) -> Option<&str> {
        if let Some(name) = self.link.strip_prefix("anon_inode:") {
            return Some(name.trim_matches(['[', ']']));
        }
        if let Some(rest) = self.link.strip_prefix('/') {
            let is_secret = rest == "secretmem (deleted)";
            return match rest.starts_with("memfd:") {
                true => Some("memfd"),
                false => is_secret.then_some("secretmem"),
            };
        }
        self.link.split_once(':').map(|(kind, _)| kind).filter(|k| !["pipe", "socket"].contains(k))
    }

    /// The file behind it.
    pub fn identity(&self) -> Identity {
        (self.inode.dev(), self.inode.ino())
    }

    /// Whether it is a file without a name, in a file system where files have names.
    pub fn is_unnamed(&self) -> bool {
        self.kind() == Kind::Path && self.inode.is_file() && self.inode.nlink() == 0
    }

    /// Its path before the file was deleted.
    pub fn former_path(&self) -> &str {
        self.link.strip_suffix(DELETED).unwrap_or(&self.link)
    }

    /// Whether it is the root's number `supplied`.
    pub fn is_supplied(&self, supplied: Option<u32>) -> bool {
        self.is_roots && self.held.is_none() && supplied == Some(self.fd)
    }

    /// Whether it is one of the three that a caller of restore supplies by default. Those of a
    /// descendant are its parent's, or inside.
    pub fn is_standard(&self) -> bool {
        self.is_roots && self.fd <= 2 && self.held.is_none()
    }
}

/// Majors of terminals: consoles and serial lines (4, 188, 204, 229), pseudo-terminals; of major 5
/// all but the master of pseudo-terminals.
fn is_terminal(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    matches!(major, 4 | 136..=143 | 188 | 204 | 229) || (major == 5 && minor != 2)
}

/// All descriptors of processes `pids`, the first of which is the root of the others, process by
/// process and by number.
pub fn read(pids: &[i32]) -> Result<Vec<Entry>, DescriptorError> {
    let mut entries = Vec::new();
    for (index, pid) in pids.iter().enumerate() {
        let mut fds = numbers(*pid, "fd")?;
        fds.sort_unstable();
        for fd in fds {
            entries.push(Entry::read(*pid, fd as u32, index == 0)?);
        }
    }
    Ok(entries)
}

/// Ids of its threads.
pub fn threads(pid: i32) -> Result<Vec<i32>, DescriptorError> {
    numbers(pid, "task")
}

fn numbers(pid: i32, directory: &str) -> Result<Vec<i32>, DescriptorError> {
    let failed = || proc_error(pid, format!("the directory {directory}"));
    let mut numbers = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/{directory}")).map_err(failed())? {
        let name = entry.map_err(failed())?.file_name();
        numbers.extend(name.to_str().and_then(|digits| digits.parse::<i32>().ok()));
    }
    Ok(numbers)
}
