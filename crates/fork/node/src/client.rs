//! Calling an agent.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_types::elastic::ShareSet;
use farfork_types::wire::{
    Call, CloneState, GhostCall, GhostState, Promoted, Promotion, Reply, RestoreCall, Running,
    Verified, VerifyCall,
};
use farfork_types::{Cid, LocalShare};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::channel::{Channel, limit_waiting};
use crate::error::NodeError;
use crate::paths;
pub use crate::registry::CloneEnd;

/// How long a new agent may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long without a clone, an agent that started by itself goes.
pub const IDLE: Duration = Duration::from_secs(60);

/// How much longer than the trial itself its answer may take: the image is read before, and what is left
/// of the clone goes after it.
const TRIAL_MARGIN: Duration = Duration::from_secs(15);

/// A call to the agent of one node.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
}

/// A clone that was started.
#[derive(Debug)]
pub struct StartedClone {
    /// The agent's report; its pid is as seen here.
    pub running: Running,
    /// For a clone that waited in its ghost: microseconds from the request until it was woken. They are
    /// not part of `running.restore_us`.
    pub asked_us: Option<f64>,
    /// The connection on which its end is reported, unless it is detached.
    pub client: Client,
}

impl Client {
    /// Connects to the agent of `node`, if one runs, and waits for its answers as long as it takes.
    pub fn connect(node: &str) -> Result<Client, NodeError> {
        Ok(Client { channel: Channel::new(Client::reach(node, None)?)? })
    }

    /// Connects to the agent of `node`, if one runs, with a limit of time for each answer: an agent can hang,
    /// or be stopped. The wait for the end of a clone is not limited.
    ///
    /// # Errors
    /// [`NodeError::Late`] from here on if it takes longer.
    pub fn connect_within(node: &str, limit: Duration) -> Result<Client, NodeError> {
        Ok(Client { channel: Channel::within(Client::reach(node, Some(limit))?, limit)? })
    }

    fn reach(node: &str, limit: Option<Duration>) -> Result<OwnedFd, NodeError> {
        paths::check_name(node)?;
        let path = paths::socket(node);
        let unreachable = |source| NodeError::Socket { doing: "reach", path: path.clone(), source };
        let failed = |errno: Errno| unreachable(io::Error::from(errno));
        paths::demand_own(&path).map_err(unreachable)?;
        let kind = SockType::SeqPacket;
        let socket =
            socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
        if let Some(limit) = limit {
            limit_waiting(&socket, limit).map_err(failed)?;
        }
        let address = UnixAddr::new(&path).map_err(failed)?;
        // If an agent does not accept connections, its queue is full after a few.
        connect(socket.as_raw_fd(), &address).map_err(|errno| match limit {
            Some(limit) if errno == Errno::EAGAIN => NodeError::Late(limit),
            _ => failed(errno),
        })?;
        Ok(socket)
    }

    /// Connects to the agent of `node`, starting one if none runs.
    pub fn connect_or_start(node: &str) -> Result<Client, NodeError> {
        paths::check_name(node)?;
        if let Ok(client) = Client::connect(node) {
            return Ok(client);
        }
        let mut agent = StartedAgent::start(node)?;
        let begun = Instant::now();
        loop {
            // In this order: one that has just ended may have found another in its place.
            let reason = agent.reason_of_end();
            match (Client::connect(node), reason) {
                (Err(_), Some(reason)) => return Err(NodeError::Agent(reason)),
                (Err(_), None) if begun.elapsed() < START_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                (other, _) => {
                    agent.leave();
                    return other;
                }
            }
        }
    }

    /// Starts a clone; `fds` are this process's 0, 1, 2 and one per number to inherit.
    pub fn restore(
        self,
        call: RestoreCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<StartedClone, NodeError> {
        let requested_ns = call.requested_ns;
        let mut asked_us = None;
        self.channel.send(&Call::Restore(call), fds)?;
        let mut received = self.channel.receive::<Reply>()?.ok_or_else(gone)?;
        if let (Reply::Ready, Some(waker)) = (&received.document, received.fds.first()) {
            // Wakes the clone directly. If it has ended the agent reports why.
            let now = now_ns();
            let woken = farfork_restore::wake(waker.as_fd(), now);
            asked_us = Some(now.saturating_sub(requested_ns) as f64 / 1000.0);
            received = match (self.channel.receive::<Reply>()?, woken) {
                (Some(received), _) => received,
                (None, woken) => {
                    woken.map_err(NodeError::Connection)?;
                    return Err(gone());
                }
            };
        }
        match received.document {
            Reply::Running(mut running) => {
                running.pid = received.about.unwrap_or(running.pid);
                // From here on the clone lives without the agent. Before that nothing may be reported of it: it ends
                // with the agent, or would live on unknown if that is killed just after it let it live.
                let process = Pid::from_raw(running.pid)
                    .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                self.channel.send(&Call::Seen { pid: running.pid }, &[])?;
                self.done().inspect_err(|_| {
                    // It has ended, or is another user's, if this fails.
                    let _ = process.map(|process| pidfd_send_signal(process, Signal::KILL));
                })?;
                let client = Client { channel: self.channel.without_limit()? };
                Ok(StartedClone { running, asked_us, client })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Tries whether clones of an image can start on the node. Waits as long as the call says, and
    /// a margin.
    pub fn verify(self, call: VerifyCall) -> Result<Verified, NodeError> {
        let limit = Duration::from_secs(call.timeout_s).saturating_add(TRIAL_MARGIN);
        let channel = self.channel.with_limit(limit)?;
        channel.send(&Call::Verify(call), &[])?;
        match channel.receive::<Reply>()?.ok_or_else(gone)?.document {
            Reply::Verified(verified) => Ok(verified),
            other => Err(unexpected(other)),
        }
    }

    /// Waits for the end of the clone that this connection started. Returns its wait status, and a
    /// message if more is known.
    pub fn ended(&self) -> Result<(i32, Option<String>), NodeError> {
        self.end().map(|end| (end.wait_status, end.reason))
    }

    fn end(&self) -> Result<CloneEnd, NodeError> {
        match self.reply()? {
            Reply::Exited { wait_status, reason, missing } => {
                Ok(CloneEnd { wait_status, reason, missing })
            }
            other => Err(unexpected(other)),
        }
    }

    /// Waits for the end of the clone with this pid.
    pub fn wait(&self, pid: i32) -> Result<CloneEnd, NodeError> {
        self.channel.send_about(&Call::Wait { pid }, pid)?;
        self.end()
    }

    /// Sends a signal to the clone with this pid.
    pub fn kill(&self, pid: i32, signal: i32) -> Result<(), NodeError> {
        self.channel.send_about(&Call::Kill { pid, signal }, pid)?;
        self.done()
    }

    /// Freezes or thaws the container of the clone with this pid, which must be in a ghost. Its processes
    /// notice only that time has passed.
    pub fn pause(&self, pid: i32, paused: bool) -> Result<(), NodeError> {
        self.channel.send_about(&Call::Pause { pid, paused }, pid)?;
        self.done()
    }

    fn done(&self) -> Result<(), NodeError> {
        match self.reply()? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// How many clones of each image the node has.
    pub fn count(&self) -> Result<Vec<(Cid, u32)>, NodeError> {
        self.channel.send(&Call::Count, &[])?;
        let mut counts = Vec::new();
        loop {
            match self.reply()? {
                Reply::Clones { cid, count } => counts.extend(cid.parse().ok().zip(Some(count))),
                Reply::Done => return Ok(counts),
                other => return Err(unexpected(other)),
            }
        }
    }

    /// The clones of the node.
    pub fn list(&self) -> Result<Vec<CloneState>, NodeError> {
        self.channel.send(&Call::List, &[])?;
        let mut clones = Vec::new();
        loop {
            let received = self.channel.receive::<Reply>()?.ok_or_else(gone)?;
            match received.document {
                Reply::Clone(clone) => {
                    clones.push(CloneState { pid: received.about.unwrap_or(clone.pid), ..clone });
                }
                Reply::Done => return Ok(clones),
                other => return Err(unexpected(other)),
            }
        }
    }

    /// Makes pages of the clone with this pid local.
    pub fn promote(&self, pid: i32, pages: Promotion) -> Result<Promoted, NodeError> {
        self.channel.send_about(&Call::Promote { pid, pages }, pid)?;
        match self.reply()? {
            Reply::Promoted(promoted) => Ok(promoted),
            other => Err(unexpected(other)),
        }
    }

    /// Has a share of the memory of the clone with this pid near.
    pub fn set_share(&self, pid: i32, local: LocalShare) -> Result<ShareSet, NodeError> {
        self.channel.send_about(&Call::SetShare { pid, local }, pid)?;
        match self.reply()? {
            Reply::ShareSet(set) => Ok(set),
            other => Err(unexpected(other)),
        }
    }

    /// Bytes that one processor of the node reads from a pool in a second, as it is just now: see
    /// [`Pool::read_rate`](farfork_pool::Pool::read_rate).
    pub fn read_rate(&self, pool: &Path) -> Result<u64, NodeError> {
        self.channel.send(&Call::ReadRate { pool: pool.to_owned() }, &[])?;
        match self.reply()? {
            Reply::ReadRate { bytes_per_s } => Ok(bytes_per_s),
            other => Err(unexpected(other)),
        }
    }

    /// Makes a ghost.
    pub fn start_ghost(&self, call: GhostCall) -> Result<GhostState, NodeError> {
        self.channel.send(&Call::GhostStart(call), &[])?;
        self.ghost()?.ok_or_else(|| unexpected(Reply::Done))
    }

    /// The ghosts of the node, with those in which clones run.
    pub fn ghosts(&self) -> Result<Vec<GhostState>, NodeError> {
        self.channel.send(&Call::GhostList, &[])?;
        let mut ghosts = Vec::new();
        while let Some(ghost) = self.ghost()? {
            ghosts.push(ghost);
        }
        Ok(ghosts)
    }

    /// The next ghost of a reply, with pids as seen from here; None at the end.
    fn ghost(&self) -> Result<Option<GhostState>, NodeError> {
        let received = self.channel.receive::<Reply>()?.ok_or_else(gone)?;
        let ghost = match received.document {
            Reply::Ghost(ghost) => ghost,
            Reply::Done => return Ok(None),
            other => return Err(unexpected(other)),
        };
        let clone = self.channel.receive::<Reply>()?.ok_or_else(gone)?;
        let Reply::InGhost = clone.document else { return Err(unexpected(clone.document)) };
        let (init_pid, pid) = (received.about.unwrap_or_default(), clone.about.or(ghost.pid));
        Ok(Some(GhostState { init_pid, pid, ..ghost }))
    }

    /// Ends one ghost or all of them, with the clones in them.
    pub fn stop_ghosts(&self, id: Option<String>) -> Result<(), NodeError> {
        self.channel.send(&Call::GhostStop { id }, &[])?;
        self.done()
    }

    fn reply(&self) -> Result<Reply, NodeError> {
        Ok(self.channel.receive::<Reply>()?.ok_or_else(gone)?.document)
    }
}

/// Can be read when the clone has ended that this connection started.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn gone() -> NodeError {
    NodeError::Connection(io::ErrorKind::UnexpectedEof.into())
}

fn unexpected(reply: Reply) -> NodeError {
    match reply {
        Reply::Failed { message } => NodeError::Agent(message),
        other => NodeError::Protocol(format!("unexpected reply {other:?}")),
    }
}

/// An agent that was started and may fail.
struct StartedAgent {
    child: Child,
    /// What it writes to its standard error.
    stderr: File,
}

impl StartedAgent {
    /// Starts this program as an agent of its own session, which goes when it is idle.
    fn start(node: &str) -> Result<StartedAgent, NodeError> {
        let failed =
            |source| NodeError::Socket { doing: "start", path: paths::socket(node), source };
        let program = std::env::current_exe().map_err(failed)?;
        let log = memfd_create("farfork-node", MemfdFlags::CLOEXEC)
            .map(File::from)
            .map_err(|errno| failed(errno.into()))?;
        let stderr = log.try_clone().map_err(failed)?;
        let idle = IDLE.as_secs().to_string();
        let mut command = Command::new(program);
        command.args(["node", "--name", node, "--idle-exit-s", &idle]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        command.current_dir("/");
        Ok(StartedAgent { child: command.spawn().map_err(failed)?, stderr: log })
    }

    /// Its standard error, if it has exited.
    fn reason_of_end(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten()?;
        let mut text = String::new();
        let read = self.stderr.rewind().and_then(|()| self.stderr.read_to_string(&mut text));
        let said = text.trim().trim_start_matches("farfork: ");
        match read {
            Ok(_) if !said.is_empty() => Some(said.to_owned()),
            _ => Some("the node agent exited at once; run farfork node to see why".to_owned()),
        }
    }

    /// It is not waited for: a thread reaps it should it end before this process.
    fn leave(mut self) {
        std::thread::spawn(move || self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc;
    use nix::sys::socket::socketpair;
    use std::os::unix::process::ExitStatusExt;

    /// An agent that starts a clone, and lets it live on, or is killed when it has the pid that its client sees.
    fn agent(channel: &Channel, pid: i32, lets_live: bool) -> Result<(), NodeError> {
        let call = channel.receive::<Call>()?.ok_or_else(gone)?;
        assert!(matches!(call.document, Call::Restore(_)));
        channel.send_about(&Reply::Running(Running { pid, ..Running::default() }), pid)?;
        let seen = channel.receive::<Call>()?.ok_or_else(gone)?;
        assert_eq!(seen.document, Call::Seen { pid });
        if lets_live { channel.send(&Reply::Done, &[]) } else { Ok(()) }
    }

    /// What is reported of an attached clone whose agent does that.
    fn reported(pid: i32, lets_live: bool) -> Result<StartedClone, NodeError> {
        let (here, there) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .expect("a pair of sockets");
        let there = Channel::new(there)?;
        std::thread::scope(|scope| {
            let agent = scope.spawn(move || agent(&there, pid, lets_live));
            let call = RestoreCall {
                pool: "/pool".into(),
                cid: "0".repeat(32),
                name: "a/b".to_owned(),
                detach: false,
                same_pid: false,
                inherit: Vec::new(),
                requested_ns: 0,
                ghost: None,
                tiering: farfork_types::Tiering::default(),
                local_share: None,
                profile: false,
                timeout_s: 60,
            };
            let started = Client { channel: Channel::new(here)? }.restore(call, &[]);
            agent.join().expect("the agent's part")?;
            started
        })
    }

    #[test]
    fn a_clone_is_reported_once_it_lives_without_the_agent() {
        let mut clone = Command::new("sleep").arg("600").spawn().expect("a process");
        let pid = clone.id() as i32;
        assert!(reported(pid, true).is_ok());
        assert!(clone.try_wait().expect("its state").is_none(), "it lives on");
        // The init ends a clone whose agent is killed before, and the client one that no process knows of.
        let error = reported(pid, false).expect_err("a clone that ends is reported");
        assert!(matches!(error, NodeError::Connection(_)), "{error:?}");
        assert_eq!(clone.wait().expect("its end").signal(), Some(libc::SIGKILL));
    }
}
