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

use super::{Bench, Calls, Lane, Started, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::samples::Samples;
use crate::subject::{LISTEN_FD, Server, Subject};
use crate::usage;
pub use program::Program;
use stats::DumpStats;

/// For dump and restore: no cgroups, no build ids and no log, which would only cost time.
const OPTIONS: [&str; 5] =
    ["--shell-job", "--manage-cgroups=ignore", "--file-validation", "filesize", "-v0"];
const PAGE: f64 = 4096.0;

/// Images of the warm process.
#[derive(Debug)]
pub struct Images {
    program: Rc<Program>,
    directory: PathBuf,
    /// Inode of the listening socket in the images.
    listener_inode: u64,
    /// A second link to that socket: a restore removes the first.
    kept_socket: PathBuf,
}

/// Time and statistics of a dump.
struct Dump {
    us: f64,
    stats: DumpStats,
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
    fn relink_socket(&self, server: &Server) -> Result<(), BenchError> {
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

fn dump(program: &Program, directory: &Path, pid: i32) -> Result<Dump, String> {
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

/// Adds rows with the reason why CRIU was not measured. Returns notes: its version, or the reasons.
pub fn note<'a>(lanes: impl IntoIterator<Item = &'a Lane>, samples: &mut Samples) -> Vec<String> {
    let mut notes = Vec::new();
    for lane in lanes {
        let (case, note) = match &lane.criu {
            Ok(images) => {
                notes.push(format!("Compared with CRIU {}.", images.program.version));
                continue;
            }
            Err(reason) => (lane.subject.case("criu"), reason),
        };
        samples.note(&case, metric::RESPONSE, "us", note);
        notes.push(format!("{} was not compared with CRIU: {note}.", lane.subject.name));
    }
    notes.dedup();
    notes
}

/// Restores the images once, for one request and the next.
pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let numbers = lane.numbers();
    let (subject, Ok(images)) = (&lane.subject, &lane.criu) else { return Ok(()) };
    let socket = bench.testbed.socket("criu.sock");
    let requested_ns = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong("criu", &error))?;
    let restored = Restored::start(images, listener, subject)?;
    let mut child = 0;
    let pid_of = |_| {
        child = restored.pid().ok_or_else(|| subject.wrong("criu", &"cannot find its process"))?;
        Ok(child)
    };
    let started = Started { subject, start: "criu", numbers, requested_ns };
    let calls = Calls::measure(started, &mut connection, pid_of)?;
    drop(connection);
    drop(restored);
    usage::await_end(child);
    images.relink_socket(&lane.warm.parent)?;
    calls.record(bench.samples, &subject.case("criu"), Some(calls.local_bytes()));
    Ok(())
}

/// Dumps the warm process again, to measure the time.
pub fn measure_dump(lane: &Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (subject, Ok(images)) = (&lane.subject, &lane.criu) else { return Ok(()) };
    let directory = images.program.images.join("again");
    let dump = dump(&images.program, &directory, lane.warm.parent.pid());
    let dump = dump.map_err(|reason| subject.wrong("criu-dump", &reason))?;
    fs::remove_dir_all(&directory).map_err(io("remove", &directory))?;
    let (case, bytes) = (subject.case("criu-dump"), dump.stats.pages as f64 * PAGE);
    let samples = &mut *bench.samples;
    samples.add(&case, "bytes copied", "bytes", bytes);
    samples.add(&case, "whole checkpoint", "bytes/s", bytes * 1e6 / dump.us);
    samples.add(&case, "time frozen", "us", dump.stats.frozen_us as f64);
    Ok(())
}

/// A restored process in its PID namespace, whose first process is CRIU. Dropped, it is killed.
struct Restored {
    namespace: Child,
}

impl Restored {
    fn start(images: &Images, socket: OwnedFd, subject: &Subject) -> Result<Restored, BenchError> {
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
    fn pid(&self) -> Option<i32> {
        usage::child_of(usage::child_of(self.namespace.id() as i32)?)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = self.namespace.kill();
        let _ = self.namespace.wait();
    }
}
