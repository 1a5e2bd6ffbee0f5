//! CRIU, if the machine has one that works: the warm process is dumped once, and restored each time.
//!
//! Images lie on a tmpfs. A restore reads all of them before the process runs. It runs in a PID namespace
//! of its own, because the dumped process keeps its pid. It inherits the listening socket
//! (`--inherit-fd`) with the request waiting on it, as with every other start.

mod program;
mod stats;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use command_fds::{CommandFdExt, FdMapping};

use crate::error::{BenchError, io};
use crate::exchange::{now_ns, us_since};
use crate::subject::{LISTEN_FD, Server, Subject};
use crate::usage;
pub use program::Program;
use stats::DumpStats;

/// For dump and restore: no cgroups, no build ids and no log, which would only cost time.
const OPTIONS: [&str; 5] =
    ["--shell-job", "--manage-cgroups=ignore", "--file-validation", "filesize", "-v0"];
/// Images of the warm process.
#[derive(Debug)]
pub struct Images {
    /// The program that has made them.
    pub program: Rc<Program>,
    directory: PathBuf,
    /// Inode of the listening socket in the images.
    listener_inode: u64,
    /// A second link to that socket: a restore removes the first.
    kept_socket: PathBuf,
}

/// Time and statistics of a dump.
pub struct Dump {
    /// How long the program took.
    pub us: f64,
    /// What it says itself.
    pub stats: DumpStats,
}

impl Images {
    /// Dumps the process of a subject. The error is the reason for the report.
    pub fn make(program: &Rc<Program>, subject: &str, server: &Server) -> Result<Images, String> {
        let pid = server.pid();
        let kept_socket = server.socket.with_extension("kept");
        fs::hard_link(&server.socket, &kept_socket)
            .map_err(|error| format!("cannot link its socket: {error}"))?;
        let directory = program.images.join(subject);
        let listener_inode =
            socket_inode(pid).ok_or("cannot read the inode of its listening socket")?;
        dump(program, &directory, pid)?;
        Ok(Images { program: Rc::clone(program), directory, listener_inode, kept_socket })
    }

    /// Links the socket of the warm process at its path again.
    pub fn relink_socket(&self, server: &Server) -> Result<(), BenchError> {
        if server.socket.exists() {
            return Ok(());
        }
        fs::hard_link(&self.kept_socket, &server.socket).map_err(io("link", &server.socket))
    }
}

/// The inode of the socket that a process listens on.
fn socket_inode(pid: i32) -> Option<u64> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{LISTEN_FD}")).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Dumps a process that goes on.
pub fn dump(program: &Program, directory: &Path, pid: i32) -> Result<Dump, String> {
    let failed = |what: &dyn std::fmt::Display| format!("criu dump failed: {what}");
    fs::create_dir(directory).map_err(|error| failed(&error))?;
    let command = program.command();
    let started = now_ns();
    let status = Command::new(&command[0])
        .args(&command[1..])
        .args(["dump", "--leave-running", "--network-lock", "skip", "--tree", &pid.to_string()])
        .arg("--images-dir")
        .arg(directory)
        .args(OPTIONS)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| failed(&error))?;
    let us = us_since(started);
    if !status.success() {
        return Err(failed(&status));
    }
    let file = fs::read(directory.join("stats-dump")).map_err(|error| failed(&error))?;
    let stats = DumpStats::parse(&file).ok_or_else(|| failed(&"invalid statistics"))?;
    Ok(Dump { us, stats })
}

/// A restored process in its PID namespace, whose first process is CRIU. Dropped, it is killed.
pub struct Restored {
    namespace: Child,
}

impl Restored {
    /// Starts it, with the socket that its parent listens on.
    pub fn start(
        images: &Images,
        socket: OwnedFd,
        subject: &Subject,
    ) -> Result<Restored, BenchError> {
        let inherited = format!("fd[{LISTEN_FD}]:socket:[{}]", images.listener_inode);
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(images.program.command())
            .args(["restore", "--inherit-fd", &inherited, "--images-dir"])
            .arg(&images.directory)
            .args(OPTIONS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .fd_mappings(vec![FdMapping { parent_fd: socket, child_fd: LISTEN_FD }])
            .map_err(|error| subject.wrong("criu", &error))?;
        let namespace = command.spawn().map_err(io("start", "unshare"))?;
        Ok(Restored { namespace })
    }

    /// The pid of the restored process in this namespace: CRIU's child.
    pub fn pid(&self) -> Option<i32> {
        usage::child_of(usage::child_of(self.namespace.id() as i32)?)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}
