//! What keepers of this machine report: each listens at a socket of its own, and answers a connection with
//! one JSON document.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farfork_fabric::tcp::SOCKET_EXTENSION;
use farfork_types::Cid;
use serde::{Deserialize, Serialize};

use crate::ancestry::OwnerShare;
use crate::error::SeedError;

/// A seed of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub id: String,
    /// Where its keeper listens.
    pub address: String,
    /// The process that was prepared.
    pub pid: i32,
    /// Whether that still lives.
    pub parent_lives: bool,
    /// The keeper.
    pub keeper_pid: i32,
    /// The frozen copy.
    pub shadow_pid: i32,
    /// `open`, `closing` or `ended`.
    pub state: String,
    /// Why it is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it expires, in seconds since 1970.
    pub expires_unix_s: u64,
    /// Times that a node was given the image.
    pub resumes: u64,
    /// Nodes that are connected.
    pub nodes: usize,
    /// Clones that run there, as these nodes say each half second. One of a seed that descends from this one counts, too.
    #[serde(default)]
    pub clones: u32,
    /// Bytes that were sent to them.
    pub served_bytes: u64,
    /// Pages that clones were seen to need. The next ones get them first.
    #[serde(default)]
    pub known_pages: usize,
    /// Seeds that own some of its memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<OwnerShare>,
}

/// How long a keeper may take to answer: it may be stopping the parent to reap the shadow.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const ENDING: &str = "sock";

/// The socket at which the keeper of seed `id` offers shared memory to nodes of its host.
pub fn memory_socket(directory: &Path, id: Cid) -> PathBuf {
    directory.join(format!("{id}.{SOCKET_EXTENSION}"))
}

/// The socket of one keeper. Dropping it removes it.
pub struct StatusSocket {
    /// Accepts those that ask.
    pub listener: UnixListener,
    path: PathBuf,
}

impl StatusSocket {
    /// Listens for those that ask about seed `id`, in `directory`.
    pub fn bind(directory: &Path, id: Cid) -> Result<StatusSocket, SeedError> {
        let path = directory.join(format!("{id}.{ENDING}"));
        let failed = |doing| {
            let path = path.clone();
            move |source| SeedError::Place { doing, path, source }
        };
        fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(&path);
        rustix::process::umask(before);
        let listener = bound.map_err(failed("listen at"))?;
        listener.set_nonblocking(true).map_err(failed("listen at"))?;
        Ok(StatusSocket { listener, path })
    }

    /// Answers all that wait.
    pub fn answer(&self, status: &Status) {
        let text = serde_json::to_vec(status).unwrap_or_default();
        while let Ok((mut asking, _)) = self.listener.accept() {
            // It fits into the socket's buffer, unless the other end is gone.
            let _ = asking.write_all(&text);
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The seeds whose keepers listen in `directory`. What a killed keeper has left there is removed.
pub fn list(directory: &Path) -> Result<Vec<Status>, SeedError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| SeedError::Place {
            doing: "read",
            path: directory.to_owned(),
            source,
        })?,
    };
    let mut all = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_none_or(|ending| ending != ENDING) {
            continue;
        }
        match ask(&path) {
            Ok(status) => all.push(status),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                for path in [path.with_extension(SOCKET_EXTENSION), path] {
                    let _ = fs::remove_file(path);
                }
            }
            Err(error) if has_just_ended(&error) => {}
            Err(source) => {
                return Err(SeedError::Place { doing: "ask the keeper at", path, source });
            }
        }
    }
    all.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(all)
}

/// Whether an error is that of a keeper that ended while it was being asked.
fn has_just_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotFound, UnexpectedEof};
    [NotFound, ConnectionReset, BrokenPipe, UnexpectedEof].contains(&error.kind())
}

fn ask(path: &Path) -> io::Result<Status> {
    let mut keeper = UnixStream::connect(path)?;
    keeper.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut text = Vec::new();
    keeper.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn keepers_are_listed_and_what_dead_ones_left_is_removed() {
        let at = tempfile::tempdir().unwrap();
        let directory = at.path().join("seeds");
        assert_eq!(list(&directory).unwrap(), []);
        let id = Cid::from_bytes([3; 16]);
        let status = Status {
            id: id.to_string(),
            address: "10.0.0.1:1".into(),
            pid: 1,
            parent_lives: true,
            keeper_pid: 2,
            shadow_pid: 3,
            state: "open".into(),
            reason: None,
            expires_unix_s: 4,
            resumes: 5,
            nodes: 6,
            clones: 9,
            owners: Vec::new(),
            served_bytes: 7,
            known_pages: 8,
        };
        let socket = StatusSocket::bind(&directory, id).unwrap();
        let dead = directory.join("dead.sock");
        // Not what a listener leaves: a process that another test has just forked may have it, too.
        for path in [&dead, &dead.with_extension(SOCKET_EXTENSION)] {
            mknodat(CWD, path, FileType::Socket, Mode::RUSR, 0).unwrap();
        }
        let listed = std::thread::scope(|scope| {
            let listing = scope.spawn(|| list(&directory));
            while !listing.is_finished() {
                socket.answer(&status);
            }
            listing.join().unwrap().unwrap()
        });
        assert_eq!((listed, dead.exists()), (vec![status], false));
        drop(socket);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }
}
