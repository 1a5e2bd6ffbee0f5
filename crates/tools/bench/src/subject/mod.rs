//! The measured processes: how each is started, called and checkpointed.

mod function;
mod program;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use farfork_types::Cid;

use crate::error::{BenchError, io};
use crate::exchange::Connection;
use crate::protocol::{Answerer, Protocol};
pub use function::{computing_in, examples};
pub use program::{compile, compile_footprint};

/// Descriptor of every subject's listening socket.
pub const LISTEN_FD: i32 = 3;
/// Calls after which a subject counts as warm.
pub const WARM_CALLS: u64 = 16;

/// A kind of process.
pub struct Subject {
    /// Name in reports.
    pub name: String,
    /// Approximate footprint in megabytes.
    pub megabytes: u64,
    /// Its protocol.
    pub protocol: Box<dyn Protocol>,
    /// How a local fork of it is made.
    pub forking: Forking,
    /// The operation that prepares it for a checkpoint, if it has one.
    prepare: Option<Vec<u8>>,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// How a local fork of a subject is made.
pub enum Forking {
    /// The warm process forks a child when a request demands it.
    OnRequest,
    /// A second warm process, started by these arguments, forks a child for each connection.
    Server(Vec<String>),
    /// It cannot be forked. The reason is for reports.
    Impossible(&'static str),
}

/// A running process of a subject. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Path of its socket.
    pub socket: PathBuf,
}

/// The warm process of a subject, and its image.
#[derive(Debug)]
pub struct Warm {
    /// The parent. It goes on running.
    pub parent: Server,
    /// The second process that forks, for [`Forking::Server`].
    pub forker: Option<Server>,
    /// Its image.
    pub cid: Cid,
}

impl Subject {
    /// Starts a process of this subject that accepts on `listener`.
    pub fn start(&self, listener: OwnedFd, socket: &Path) -> Result<Server, BenchError> {
        self.run(&self.arguments, listener, socket)
    }

    /// The same by a command that executes its last arguments.
    pub fn start_by(
        &self,
        command: &[String],
        listener: OwnedFd,
        socket: &Path,
    ) -> Result<Server, BenchError> {
        self.run(&[command, &self.arguments[..]].concat(), listener, socket)
    }

    fn run(&self, words: &[String], fd: OwnedFd, socket: &Path) -> Result<Server, BenchError> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mapping = FdMapping { parent_fd: fd, child_fd: LISTEN_FD };
        command.fd_mappings(vec![mapping]).map_err(|_| BenchError::Lacking {
            doing: format!("start {}", words[0]),
            reason: "its listening socket cannot be passed".to_owned(),
            remedy: "raise the limit of open files",
        })?;
        let child = command.spawn().map_err(io("start", &words[0]))?;
        Ok(Server { child, socket: socket.to_owned() })
    }

    /// Starts the warm process, and the second one for [`Forking::Server`].
    pub fn warm(&self, directory: &Path) -> Result<(Server, Option<Server>), BenchError> {
        let parent = self.start_warm(&self.arguments, &directory.join("warm.sock"))?;
        let forker = match &self.forking {
            Forking::Server(words) => Some(self.start_warm(words, &directory.join("forker.sock"))?),
            _ => None,
        };
        Ok((parent, forker))
    }

    fn start_warm(&self, words: &[String], socket: &Path) -> Result<Server, BenchError> {
        let (listener, mut connection) =
            Connection::with_listener(socket).map_err(io("listen at", socket))?;
        let server = self.run(words, listener, socket)?;
        for call in 0..WARM_CALLS {
            let number = call * self.protocol.same_input();
            self.call(&mut connection, number, "warm", Answerer::Itself)?;
        }
        Ok(server)
    }

    /// Prepares the warm process for a checkpoint. It then waits in `accept` without connections.
    pub fn settle(&self, server: &Server) -> Result<(), BenchError> {
        self.settle_at(server.pid(), &server.socket)
    }

    /// The same for any process that listens at `socket`.
    pub fn settle_at(&self, pid: i32, socket: &Path) -> Result<(), BenchError> {
        if let Some(prepare) = &self.prepare {
            let mut connection = Connection::open(socket).map_err(io("connect to", socket))?;
            let done = connection
                .send_bytes(prepare)
                .and_then(|()| connection.receive(&*self.protocol))
                .and_then(|()| connection.wait_for_end());
            done.map_err(|error| self.wrong("prepare", &error))?;
        }
        await_no_connection(pid);
        Ok(())
    }

    /// Sends a request and checks the answer. Returns the pid that answered, as in its PID namespace.
    pub fn call(
        &self,
        connection: &mut Connection,
        number: u64,
        case: &str,
        answerer: Answerer,
    ) -> Result<i32, BenchError> {
        connection
            .send(&*self.protocol, number, answerer)
            .and_then(|()| connection.receive(&*self.protocol))
            .map_err(|error| self.wrong(case, &error))?;
        self.check(connection, number, case)
    }

    /// Checks the last answer on a connection.
    pub fn check(
        &self,
        connection: &Connection,
        number: u64,
        case: &str,
    ) -> Result<i32, BenchError> {
        let result = self.protocol.check(number, connection.answer());
        result.map_err(|reason| self.wrong(case, &reason))
    }

    /// The error for a wrong answer of this subject.
    pub fn wrong(&self, case: &str, reason: &dyn std::fmt::Display) -> BenchError {
        BenchError::Answer { case: self.case(case), reason: reason.to_string() }
    }

    /// Name of a case in reports.
    pub fn case(&self, start: &str) -> String {
        format!("{}/{start}", self.name)
    }
}

/// Waits until a subject has closed its connection, which takes a moment.
fn await_no_connection(pid: i32) {
    let begun = Instant::now();
    let sockets = || -> usize {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    };
    while sockets() > 1 && begun.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Server {
    /// Pid of the process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

/// The source directory of farfork, set up: the current directory or one above it.
pub fn source_root() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let is_root = |path: &&Path| {
        ["functions/embed/main.py", "bench/programs/fork_server.py", ".venv/bin/python"]
            .iter()
            .all(|needed| path.join(needed).exists())
    };
    here.ancestors().find(is_root).map(Path::to_owned)
}

/// The same for benchmarks that cannot run without it.
pub fn needed_root() -> Result<PathBuf, BenchError> {
    source_root().ok_or_else(|| BenchError::Lacking {
        doing: "measure the sample functions".to_owned(),
        reason: "this is not farfork's source directory, or it is not set up".to_owned(),
        remedy: "run setup/all.sh in the source directory, and the benchmark there",
    })
}

/// Space for an image of each subject, two more of the largest, and rounding.
pub fn pool_bytes(subjects: &[Subject]) -> u64 {
    let sum: u64 = subjects.iter().map(|subject| subject.megabytes + 64).sum();
    let largest = subjects.iter().map(|subject| subject.megabytes).max().unwrap_or(0);
    (sum + 2 * largest + 512) << 20
}
