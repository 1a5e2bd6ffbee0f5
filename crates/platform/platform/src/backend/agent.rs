//! The agent of one emulated node, in PID, mount and network namespaces of its own.
//!
//! ```text
//!  sh, which enters the node's cgroup and becomes unshare ──► agent, pid 1 of its namespace ──► ghosts, clones
//! ```
//! All that is in the namespace ends with the agent. It outlives whoever has started it: a file in the
//! platform's state (`NODE.agent`) tells the next one of that state which process it is, and what it was
//! started with. A platform holds a lock on another (`agents.lock`) as long as it lives; where none comes to
//! hold it, the agent leaves.

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
use super::ask::{self, Wish};

/// How long an agent may take to answer, and to end.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long what an earlier platform has left on a node may take to go.
const CLEARING: Duration = Duration::from_secs(10);
/// How often it is looked at whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// So long it is remembered which pages calls of a function access: they may come to access others.
const RESET_ACCESSED_S: u64 = 600;

/// Enters a memory cgroup, and goes on as what follows.
const ENTER: &str = "echo $$ >\"$0\" && exec \"$@\"";

/// What makes an agent a node of its own (of the package util-linux).
const NODE: [&str; 8] =
    ["unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "--mount-proc", "--"];

/// What names of records end with.
const RECORD: &str = "agent";

/// An agent that was started, perhaps by an earlier platform.
#[derive(Debug)]
pub struct Agent {
    /// Its node.
    pub node: String,
    /// `unshare`, which ends when all in the namespace are gone.
    process: OwnedFd,
    pid: i32,
    /// Where it listens.
    pub socket: PathBuf,
    /// The process, if it is a child of this one.
    child: Option<Child>,
    record: PathBuf,
}

/// What an agent was started with: command, environment, program, pool and memory. Only to be compared, so
/// that one of another version of farfork is known and ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Terms(Value);

/// What is known of an agent as long as it lives, in a file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    identity: String,
    socket: PathBuf,
    terms: Terms,
}

/// An agent that lives, of a platform that does not.
#[derive(Debug)]
pub struct Left {
    /// It.
    pub agent: Agent,
    /// What it was started with.
    pub terms: Terms,
}

impl Terms {
    /// Those on which the agent of a node would be started now.
    pub fn of(settings: &Settings, node: &str, budget: &MemoryGroup) -> Terms {
        let exactly = |word: &OsStr| word.as_encoded_bytes().escape_ascii().to_string();
        let command = command(settings, node, budget);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        // Those that the agent reads, and where it finds runc.
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
        Terms(json!({
            "command": words.map(exactly).collect::<Vec<_>>(),
            "environment": variables,
            "program": file(&settings.program),
            "pool": file(&settings.pool),
            "memory_bytes": settings.node_memory_bytes,
        }))
    }
}

/// What the platform of a state holds a lock on as long as it lives.
pub fn keeper(state: &Path) -> PathBuf {
    state.join("agents.lock")
}

fn command(settings: &Settings, node: &str, budget: &MemoryGroup) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", ENTER]).arg(budget.procs_file());
    command.args(NODE).arg(&settings.program);
    command.args(["node", "--name", node, "--pool"]).arg(&settings.pool);
    command.args(["--profile-every", &settings.profile_every.to_string()]);
    command.args(["--reset-accessed-s", &RESET_ACCESSED_S.to_string()]);
    command.arg("--keeper").arg(keeper(&settings.state));
    command.args(["--abandoned-exit-s", &settings.agents_outlive.as_secs().to_string()]);
    command
}

fn records(state: &Path) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(state).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == RECORD))
}

impl Left {
    /// All whose records are in a platform's state. Nobody else uses that. Records of those that have ended go.
    pub fn all(state: &Path) -> Vec<Left> {
        let known = |path: PathBuf| {
            let left = Left::of(&path);
            if left.is_none() {
                let _ = fs::remove_file(&path);
            }
            left
        };
        records(state).filter_map(known).collect()
    }

    /// The nodes of all records, also of agents that have ended.
    pub fn nodes(state: &Path) -> Vec<String> {
        let node = |path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        records(state).filter_map(node).collect()
    }

    fn of(path: &Path) -> Option<Left> {
        let node = path.file_stem()?.to_str()?.to_owned();
        let read: Record = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let Record { pid, identity, socket, terms } = read;
        // In this order: what is opened is what is asked about then.
        let process = pidfd::open(pid).ok()?;
        let agent = Agent { node, process, pid, socket, child: None, record: path.to_owned() };
        let is_it = proc::identity(pid).is_ok_and(|now| now == identity) && !agent.has_ended();
        is_it.then_some(Left { agent, terms })
    }
}

impl Agent {
    /// Starts the agent of a node inside its cgroup.
    pub fn start(node: &str, settings: &Settings, budget: &MemoryGroup) -> Result<Agent, String> {
        let wrong = |source: io::Error| words::of(&source);
        let log = log(&settings.state, node).map_err(wrong)?;
        let terms = Terms::of(settings, node, budget);
        let mut command = command(settings, node, budget);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // Ctrl-C is for this process alone, which ends them in order.
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
        if let Err(error) = agent.write(terms) {
            tracing::warn!(agent.node, %error, "the agent is lost if this platform is killed");
        }
        Ok(agent)
    }

    fn write(&self, terms: Terms) -> io::Result<()> {
        let (pid, socket) = (self.pid, self.socket.clone());
        let record = Record { pid, identity: proc::identity(pid)?, socket, terms };
        // One that is written in part only is none.
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
        while ask::agent(&self.node, Wish::Look).and_then(|client| client.list()).is_err() {
            if self.has_ended() {
                let said = fs::read_to_string(log_path(&settings.state, &self.node));
                let said = said.unwrap_or_default();
                let last = said.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(format!("it has ended: {last}"));
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("it does not answer after {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Whether it answers, and nothing is on it any more: instances end with their platform, and ghosts
    /// that nobody knows are stopped.
    pub fn is_clear(&self) -> bool {
        let ((tell, told), node) = (mpsc::channel(), self.node.clone());
        // One that hangs answers nothing for ever.
        thread::spawn(move || {
            while !is_empty(&node).unwrap_or(false) && tell.send(false).is_ok() {
                thread::sleep(LOOK_AGAIN);
            }
            let _ = tell.send(true);
        });
        let begun = Instant::now();
        while begun.elapsed() < CLEARING && !self.has_ended() {
            if told.recv_timeout(LOOK_AGAIN).unwrap_or(false) {
                return true;
            }
        }
        false
    }

    /// Kills the first process of its namespace; `unshare` ends once all in there are gone.
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
            tracing::warn!(node = self.node, "an agent that was killed does not end");
            let _ = pidfd::send_signal(&self.process, Signal::SIGKILL as i32);
            self.ends_within(PATIENCE);
        }
        let _ = fs::remove_file(&self.record);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that has ended is reaped.
        let _ = self.child.as_mut().map(Child::try_wait);
    }
}

/// Stops the ghosts of a node; whether no clone is left.
fn is_empty(node: &str) -> Result<bool, NodeError> {
    ask::agent(node, Wish::Container)?.stop_ghosts(None)?;
    Ok(ask::agent(node, Wish::Look)?.list()?.is_empty())
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

    fn terms() -> Terms {
        Terms(json!({ "memory_bytes": 4 }))
    }

    /// Something like an agent: a process with a child, which ends after that.
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
    fn an_agent_is_found_by_its_record_and_ends_for_who_has_not_started_it() {
        let state = tempfile::tempdir().unwrap();
        let mut started = agent(state.path(), "node1");
        started.write(terms()).unwrap();
        let mut found = Left::all(state.path());
        let Left { agent, terms: with } = found.remove(0);
        assert_eq!((agent.node.as_str(), agent.pid, with), ("node1", started.pid, terms()));
        assert!(found.is_empty() && !agent.has_ended());
        agent.end();
        assert!(started.has_ended() && !started.record.exists());
        started.child.as_mut().unwrap().wait().unwrap();
    }

    #[test]
    fn a_record_of_another_process_finds_none_and_goes() {
        let state = tempfile::tempdir().unwrap();
        let other = agent(state.path(), "node1");
        let pid = other.pid;
        let identity = proc::identity(1).unwrap();
        let record = Record { pid, identity, socket: other.socket.clone(), terms: terms() };
        fs::write(&other.record, serde_json::to_vec(&record).unwrap()).unwrap();
        assert!(Left::all(state.path()).is_empty());
        assert!(!other.record.exists() && !other.has_ended(), "it is nobody's");
        fs::write(&other.record, "{").unwrap();
        assert!(Left::all(state.path()).is_empty() && !other.record.exists());
        other.write(terms()).unwrap();
        let record = other.record.clone();
        let kept = fs::read(&record).unwrap();
        other.end();
        fs::write(&record, kept).unwrap();
        assert!(Left::all(state.path()).is_empty(), "it has ended");
    }
}
