//! The agent of one emulated node, in PID, mount and network namespaces of its own.
//!
//! ```text
//!  sh, which enters the node's cgroup and becomes unshare ──► agent, pid 1 of its namespace ──► ghosts, clones
//! ```
//! All processes in the namespace end with the agent. It outlives the platform that has started it: a
//! record in the platform's state (`NODE.agent`) names the process for the next platform of that state,
//! and how it was started. A platform holds a lock on another file (`agents.lock`) while it lives; an
//! agent exits when the lock stays free.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use farfork_node::{NodeError, paths};
use farfork_sys::cgroup::MemoryGroup;
use farfork_sys::{pidfd, proc, words};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Settings;
use super::requests::{self, RequestClass};

/// How long an agent may take to answer, and to end.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long instances and ghosts of an earlier platform may take to end.
const CLEARING: Duration = Duration::from_secs(10);
/// Period of checks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Accessed pages are forgotten after this long, as calls may come to access others.
const RESET_ACCESSED_S: u64 = 600;

/// Enters a memory cgroup, and executes its arguments.
const ENTER: &str = "echo $$ >\"$0\" && exec \"$@\"";

/// Puts the agent into namespaces of its own (package util-linux).
const NODE: [&str; 8] =
    ["unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc", "--"];

/// Extension of records.
const RECORD: &str = "agent";

/// A started agent, perhaps of an earlier platform.
#[derive(Debug)]
pub struct Agent {
    /// Its node.
    pub node: String,
    /// `unshare`, which exits when all processes of the namespace have ended.
    process: OwnedFd,
    pid: i32,
    /// Its socket.
    pub socket: PathBuf,
    /// The process, if it is a child of this process.
    child: Option<Child>,
    record: PathBuf,
}

/// How an agent was started: command, environment, program, pool and memory. Only compared, to end
/// agents that would be started differently now, such as those of another version of farfork.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaunchSpec(Value);

/// The record of a running agent.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    identity: String,
    socket: PathBuf,
    #[serde(rename = "terms")]
    launch: LaunchSpec,
}

/// An agent of a platform that has ended.
#[derive(Debug)]
pub struct SurvivingAgent {
    /// The agent.
    pub agent: Agent,
    /// How it was started.
    pub launch: LaunchSpec,
}

impl LaunchSpec {
    /// How the agent of a node would be started now.
    pub fn new(settings: &Settings, node: &str, budget: &MemoryGroup) -> LaunchSpec {
        let exactly = |word: &OsStr| word.as_encoded_bytes().escape_ascii().to_string();
        let command = command(settings, node, budget);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        // The variables that the agent reads, and the path where it finds runc.
        let is_read =
            |name: &OsStr| name == "PATH" || name.to_string_lossy().starts_with("FARFORK_");
        let variables: BTreeMap<_, _> = std::env::vars_os()
            .filter(|(name, _)| is_read(name))
            .map(|(name, value)| (exactly(&name), exactly(&value)))
            .collect();
        let file = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        LaunchSpec(json!({
            "command": words.map(exactly).collect::<Vec<_>>(),
            "environment": variables,
            "program": file(&settings.program),
            "pool": file(&settings.pool),
            "memory_bytes": settings.node_memory_bytes,
        }))
    }
}

/// The file that a platform holds a lock on while it lives.
pub fn lock_path(state: &Path) -> PathBuf {
    state.join("agents.lock")
}

fn command(settings: &Settings, node: &str, budget: &MemoryGroup) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", ENTER]).arg(budget.entrance());
    command.args(NODE).arg(&settings.program);
    command.args(["node", "--name", node, "--pool"]).arg(&settings.pool);
    command.args(["--profile-every", &settings.profile_every.to_string()]);
    command.args(["--reset-accessed-s", &RESET_ACCESSED_S.to_string()]);
    command.arg("--keeper").arg(lock_path(&settings.state));
    command.args(["--abandoned-exit-s", &settings.agents_outlive.as_secs().to_string()]);
    command
}

fn records(state: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(state).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == RECORD))
}

impl SurvivingAgent {
    /// All agents with records in a platform's state, which only this platform uses. Removes
    /// records of agents that have ended.
    pub fn all(state: &Path) -> Vec<SurvivingAgent> {
        let known = |path: PathBuf| {
            let left = SurvivingAgent::read(&path);
            if left.is_none() {
                let _ = fs::remove_file(&path);
            }
            left
        };
        records(state).filter_map(known).collect()
    }

    /// The nodes of all records, including those of ended agents.
    pub fn nodes(state: &Path) -> Vec<String> {
        let node = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        records(state).filter_map(node).collect()
    }

    fn read(path: &Path) -> Option<SurvivingAgent> {
        let node = path.file_stem()?.to_str()?.to_owned();
        let read: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let Record { pid, identity, socket, launch } = read;
        // Opened before the check, so that the check is about the opened process.
        let process = pidfd::open(pid).ok()?;
        let agent = Agent { node, process, pid, socket, child: None, record: path.to_owned() };
        let is_it = proc::identity(pid).is_ok_and(|now| now == identity) && !agent.has_ended();
        is_it.then_some(SurvivingAgent { agent, launch })
    }
}

impl Agent {
    /// Starts the agent of a node inside its cgroup.
    pub fn start(node: &str, settings: &Settings, budget: &MemoryGroup) -> Result<Agent, String> {
        let wrong = |source: io::Error| words::of(&source);
        let log = log(&settings.state, node).map_err(wrong)?;
        let launch = LaunchSpec::new(settings, node, budget);
        let mut command = command(settings, node, budget);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // A group of its own: Ctrl-C must reach only the platform, which ends agents in order.
        command.process_group(0).current_dir("/");
        let mut child = command.spawn().map_err(wrong)?;
        let pid = child.id() as i32;
        let process = pidfd::open(pid).map_err(|source| {
            let _ = child.kill().and_then(|()| child.wait());
            wrong(source)
        })?;
        let (node, record) = (node.to_owned(), settings.state.join(format!("{node}.{RECORD}")));
        let socket = paths::socket(&node);
        let agent = Agent { node, process, pid, socket, child: Some(child), record };
        if let Err(error) = agent.write(launch) {
            tracing::warn!(agent.node, %error, "cannot record the agent: it is lost if the platform is killed");
        }
        Ok(agent)
    }

    fn write(&self, launch: LaunchSpec) -> io::Result<()> {
        let (pid, socket) = (self.pid, self.socket.clone());
        let record = Record { pid, identity: proc::identity(pid)?, socket, launch };
        // A partly written record does not parse, and counts as none.
        fs::write(&self.record, serde_json::to_vec(&record)?)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    fn ends_within(&self, time: Duration) -> bool {
        let mut polls = [PollFd::new(&self.process, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        retry_on_intr(|| poll(&mut polls, time.as_ref())).is_ok_and(|ended| ended > 0)
    }

    /// Waits until it answers.
    pub fn await_answer(&self, settings: &Settings) -> Result<(), String> {
        let begun = Instant::now();
        while requests::connect(&self.node, RequestClass::Look)
            .and_then(|client| client.list())
            .is_err()
        {
            if self.has_ended() {
                let log = fs::read_to_string(log_path(&settings.state, &self.node));
                let log = log.unwrap_or_default();
                let last = log.lines().last().unwrap_or("its log is empty").to_owned();
                return Err(format!("it has exited: {last}"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("it did not answer within {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether it answers and is empty: instances have ended with their platform, and this stops
    /// ghosts.
    pub fn is_clear(&self) -> bool {
        let ((sender, receiver), node) = (mpsc::channel(), self.node.clone());
        // In a thread, as requests to an agent that hangs block.
        thread::spawn(move || {
            while !is_empty(&node).unwrap_or(false) && sender.send(false).is_ok() {
                thread::sleep(LOOK_AGAIN);
            }
            let _ = sender.send(true);
        });
        let begun = Instant::now();
        while begun.elapsed() < CLEARING && !self.has_ended() {
            if receiver.recv_timeout(LOOK_AGAIN).unwrap_or(false) {
                return true;
            }
        }
        false
    }

    /// Kills the first process of its namespace; `unshare` exits once all processes there have
    /// ended.
    pub fn end(self) {
        for child in proc::children(self.pid) {
            if !self.has_ended() {
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
        }
        let begun = Instant::now();
        while !self.ends_within(LOOK_AGAIN) && begun.elapsed() < PATIENCE {
            farfork_node::thaw_ghosts(&self.socket);
        }
        if !self.has_ended() {
            tracing::warn!(node = self.node, "a killed agent does not end");
            let _ = pidfd::send_signal(&self.process, Signal::SIGKILL as i32);
            self.ends_within(PATIENCE);
        }
        let _ = fs::remove_file(&self.record);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Reaps it if it has ended.
        let _ = self.child.as_mut().map(Child::try_wait);
    }
}

/// Stops the ghosts of a node; returns whether no clone is left.
fn is_empty(node: &str) -> Result<bool, NodeError> {
    requests::connect(node, RequestClass::Container)?.stop_ghosts(None)?;
    Ok(requests::connect(node, RequestClass::Look)?.list()?.is_empty())
}

fn log_path(directory: &Path, node: &str) -> PathBuf {
    directory.join(format!("{node}.log"))
}

fn log(directory: &Path, node: &str) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(log_path(directory, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> LaunchSpec {
        LaunchSpec(json!({ "memory_bytes": 4 }))
    }

    /// A stand-in for an agent: a process that exits after its child.
    fn agent(state: &Path, node: &str) -> Agent {
        let child = Command::new("sh").args(["-c", "sleep 60; true"]).spawn().unwrap();
        let pid = child.id() as i32;
        while proc::children(pid).is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        let record = state.join(format!("{node}.{RECORD}"));
        let process = pidfd::open(pid).unwrap();
        let (node, socket) = (node.to_owned(), "/run/a.sock".into());
        Agent { node, process, pid, socket, child: Some(child), record }
    }

    #[test]
    fn an_agent_is_found_by_its_record_and_can_be_ended() {
        let state = tempfile::tempdir().unwrap();
        let mut started = agent(state.path(), "node1");
        started.write(launch()).unwrap();
        let mut found = SurvivingAgent::all(state.path());
        let SurvivingAgent { agent, launch: how } = found.remove(0);
        assert_eq!((agent.node.as_str(), agent.pid, how), ("node1", started.pid, launch()));
        assert!(found.is_empty() && !agent.has_ended());
        agent.end();
        assert!(started.has_ended() && !started.record.exists());
        started.child.as_mut().unwrap().wait().unwrap();
    }

    #[test]
    fn a_record_of_another_process_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let other = agent(state.path(), "node1");
        let pid = other.pid;
        let identity = proc::identity(1).unwrap();
        let record = Record { pid, identity, socket: other.socket.clone(), launch: launch() };
        fs::write(&other.record, serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(SurvivingAgent::all(state.path()).is_empty());
        assert!(!other.record.exists() && !other.has_ended(), "the process is not touched");
        fs::write(&other.record, "{").unwrap();
        assert!(SurvivingAgent::all(state.path()).is_empty() && !other.record.exists());
        other.write(launch()).unwrap();
        let record = other.record.clone();
        let kept = fs::read(&record).unwrap();
        other.end();
        fs::write(&record, kept).unwrap();
        assert!(SurvivingAgent::all(state.path()).is_empty(), "it has ended");
    }
}
