//! CRIU, where the machine has one that works: the warm process dumped once, restored each time.
//!
//! Images lie on a tmpfs. A restore reads all of them back before the process runs, in a PID
//! namespace of its own, since the dumped process lives on with its pid. The listening socket is
//! handed over (`--inherit-fd`) with the request waiting on it, as with every other start.

mod program;
mod stats;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use command_fds::{CommandFdExt, FdMapping};

use super::{Bench, Calls, Lane, metric};
use crate::error::{BenchError, io};
use crate::exchange::{Connection, now_ns, us_since};
use crate::protocol::Answerer;
use crate::samples::Samples;
use crate::subject::{LISTEN_FD, Server, Subject};
use crate::usage;
pub use program::Program;
use stats::DumpStats;

/// For both directions: no cgroups, no build ids and no words, which would only cost time.
const OPTIONS: [&str; 5] =
    ["--shell-job", "--manage-cgroups=ignore", "--file-validation", "filesize", "-v0"];
const PAGE: f64 = 4096.0;

/// Images of the warm process.
#[derive(Debug)]
pub struct Images {
    program: Rc<Program>,
    directory: PathBuf,
    /// Under this number the images know the listening socket.
    listener_inode: u64,
    /// A second name of that socket: a restore removes the first.
    kept_socket: PathBuf,
}

/// What a dump came to.
struct Dumped {
    us: f64,
    stats: DumpStats,
}

impl Images {
    /// Dumps the process of a subject, or says why that cannot be.
    pub fn make(program: &Rc<Program>, subject: &str, server: &Server) -> Result<Images, String> {
        let pid = server.pid();
        let kept_socket = server.socket.with_extension("kept");
        fs::hard_link(&server.socket, &kept_socket)
            .map_err(|error| format!("its socket cannot be kept: {error}"))?;
        let directory = program.images.join(subject);
        let listener_inode = socket_inode(pid).ok_or("its listening socket has no number")?;
        dump(program, &directory, pid)?;
        Ok(Images { program: Rc::clone(program), directory, listener_inode, kept_socket })
    }

    /// Gives the socket of the process that lives on its name back.
    fn name_again(&self, server: &Server) -> Result<(), BenchError> {
        if server.socket.exists() {
            return Ok(());
        }
        fs::hard_link(&self.kept_socket, &server.socket).map_err(io("name again", &server.socket))
    }
}

/// The number of the socket that a process listens on.
fn socket_inode(pid: i32) -> Option<u64> {
    let target = fs::read_link(format!("/proc/{pid}/fd/{LISTEN_FD}")).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn dump(program: &Program, directory: &Path, pid: i32) -> Result<Dumped, String> {
    let failed = |what: &dyn std::fmt::Display| format!("criu dump: {what}");
    fs::create_dir(directory).map_err(|error| failed(&error))?;
    let words = program.words();
    let started = now_ns();
    let status = Command::new(&words[0])
        .args(&words[1..])
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
    let stats = DumpStats::parse(&file).ok_or_else(|| failed(&"its statistics are unknown"))?;
    Ok(Dumped { us, stats })
}

/// A row for each subject that says why CRIU was not measured, and a note on the one that was.
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
    let started = now_ns();
    let (listener, mut connection) =
        Connection::with_listener(&socket).map_err(io("listen at", &socket))?;
    connection
        .send(&*subject.protocol, numbers.first, Answerer::Itself)
        .map_err(|error| subject.wrong("criu", &error))?;
    let restored = Restored::start(images, listener, subject)?;
    let mut child = 0;
    let pid_of = |_| {
        child = restored.pid().ok_or_else(|| subject.wrong("criu", &"its process is not found"))?;
        Ok(child)
    };
    let calls = Calls::make((subject, "criu"), &mut connection, numbers, started, pid_of)?;
    drop(connection);
    drop(restored);
    usage::await_end(child);
    images.name_again(&lane.warm.parent)?;
    calls.record(bench.samples, &subject.case("criu"), Some(calls.local_bytes()));
    Ok(())
}

/// Dumps the warm process once more, for the time that takes.
pub fn measure_dump(lane: &Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (subject, Ok(images)) = (&lane.subject, &lane.criu) else { return Ok(()) };
    let directory = images.program.images.join("again");
    let made = dump(&images.program, &directory, lane.warm.parent.pid());
    let made = made.map_err(|reason| subject.wrong("criu-dump", &reason))?;
    fs::remove_dir_all(&directory).map_err(io("remove", &directory))?;
    let (case, bytes) = (subject.case("criu-dump"), made.stats.pages as f64 * PAGE);
    let samples = &mut *bench.samples;
    samples.add(&case, "bytes copied", "bytes", bytes);
    samples.add(&case, "whole checkpoint", "bytes/s", bytes * 1e6 / made.us);
    samples.add(&case, "time frozen", "us", made.stats.frozen_us as f64);
    Ok(())
}

/// A restored process in its PID namespace, whose first process is CRIU. Dropped, it ends.
struct Restored {
    namespace: Child,
}

impl Restored {
    fn start(images: &Images, socket: OwnedFd, subject: &Subject) -> Result<Restored, BenchError> {
        let inherited = format!("fd[{LISTEN_FD}]:socket:[{}]", images.listener_inode);
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(images.program.words())
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

    /// The restored process, as this namespace sees it: CRIU's child.
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
