//! Two nodes for tests of what crosses a network: network namespaces with one cable between them, each with
//! a run directory of its own.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::patience::Patience;
use crate::subject::Subject;
use crate::{Outcome, Trouble, farfork, testbed};

/// The time for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(30);

/// The node that has what others fetch.
pub const HOME: &str = "a";
/// The node on which clones start.
pub const AWAY: &str = "b";

/// Two nodes with a cable.
pub struct Nodes {
    name: String,
    directory: PathBuf,
    /// The first three numbers of their addresses.
    net: &'static str,
}

/// Why there can be no such nodes here.
pub fn missing() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if let Err(Trouble::Skipped(reason)) = testbed::possible() {
            return Some(reason);
        }
        if !Path::new("/dev/fuse").exists() {
            return Some("clones whose memory is elsewhere need /dev/fuse".to_owned());
        }
        let works = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
        let has_namespaces = works(Command::new("ip").args(["netns", "list"]))
            && works(Command::new("nsenter").arg("--version"));
        (!has_namespaces)
            .then(|| "nodes with a network of their own need ip and nsenter".to_owned())
    };
    REASON.get_or_init(find).clone()
}

/// Demands a condition.
pub fn demand(holds: bool, what: &str, seen: &dyn Debug) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Failed(format!("expected {what}, saw {seen:?}"))) }
}

/// Demands that fewer bytes than `limit` are fetched while something runs that needs nothing new. A kernel may drop a cached page
/// that no process uses, also without memory pressure (DAMON): then it runs again, up to three times. What is fetched by every run
/// is seen.
pub fn demand_few_fetched(
    limit: u64,
    fetched: impl Fn() -> Outcome<u64>,
    mut run: impl FnMut() -> Outcome,
) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let before = fetched()?;
        run()?;
        seen.push(fetched()? - before);
        if seen.last() < Some(&limit) {
            return Ok(());
        }
    }
    demand(false, &format!("fewer than {limit} bytes to be fetched"), &seen)
}

/// Sends a process a signal.
pub fn end(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// Runs `ip`; what it prints.
fn ip(arguments: &[&str]) -> Outcome<Output> {
    let mut command = Command::new("ip");
    command.args(arguments);
    farfork::must_run(command)
}

impl Nodes {
    /// Two nodes, whose files lie in `directory` and whose addresses begin with `net`, as in `10.77.0`.
    pub fn set(directory: PathBuf, net: &'static str) -> Outcome<Nodes> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let nodes = Nodes { name: format!("{}x{number}", std::process::id()), directory, net };
        for side in [HOME, AWAY] {
            ip(&["netns", "add", &nodes.namespace(side)])?;
            ip(&["-n", &nodes.namespace(side), "link", "set", "lo", "up"])?;
        }
        let peer = ["type", "veth", "peer", "name", &nodes.cable(AWAY), "netns"];
        let home = ["-n", &nodes.namespace(HOME), "link", "add", &nodes.cable(HOME)];
        ip(&[&home[..], &peer, &[&nodes.namespace(AWAY)]].concat())?;
        for side in [HOME, AWAY] {
            let (node, cable) = (nodes.namespace(side), nodes.cable(side));
            let address = format!("{}/24", nodes.address(side));
            ip(&["-n", &node, "addr", "add", &address, "dev", &cable])?;
            ip(&["-n", &node, "link", "set", &cable, "up"])?;
        }
        Ok(nodes)
    }

    fn namespace(&self, side: &str) -> String {
        format!("farfork-{}-{side}", self.name)
    }

    /// At most 15 letters.
    fn cable(&self, side: &str) -> String {
        format!("f{side}{}", self.name)
    }

    /// The address of a node.
    pub fn address(&self, side: &str) -> String {
        let last = if side == HOME { 1 } else { 2 };
        format!("{}.{last}", self.net)
    }

    /// A directory of the test.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// `$FARFORK_RUN` of a node.
    pub fn run_directory(&self, side: &str) -> PathBuf {
        self.directory.join(side)
    }

    /// A command to be completed, in the network of a node.
    pub fn inside(&self, side: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(side))).arg("--");
        command
    }

    /// `farfork`, run on a node, whose fetches have `deadline`. It is ended when it hangs.
    pub fn on(&self, side: &str, arguments: &[&str], deadline: Duration) -> Outcome<Command> {
        let mut command = self.inside(side);
        command.args(farfork::BACKSTOP);
        self.complete(command, side, arguments, deadline)
    }

    /// As [`Nodes::on`], but the process is `farfork` itself, which can be sent signals.
    pub fn server(&self, side: &str, arguments: &[&str], deadline: Duration) -> Outcome<Command> {
        self.complete(self.inside(side), side, arguments, deadline)
    }

    fn complete(
        &self,
        mut command: Command,
        side: &str,
        arguments: &[&str],
        deadline: Duration,
    ) -> Outcome<Command> {
        command.arg(farfork::binary()?).args(arguments);
        command.env(farfork::RUN, self.run_directory(side)).env("FARFORK_NODE", side);
        command.env("FARFORK_FAR_DEADLINE_MS", deadline.as_millis().to_string());
        Ok(command)
    }

    /// Pulls the cable.
    pub fn cut(&self) -> Outcome {
        farfork::must_run(self.set_cable("down")).map(drop)
    }

    /// Puts it back.
    pub fn mend(&self) -> Outcome {
        farfork::must_run(self.set_cable("up")).map(drop)
    }

    /// What pulls the cable ("down"), or puts it back ("up").
    pub fn set_cable(&self, state: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["-n", &self.namespace(HOME), "link", "set", &self.cable(HOME), state]);
        command
    }

    /// Ends agents, keepers and far processes, and takes the nodes away.
    fn tear_down(&self) {
        for side in [HOME, AWAY] {
            let run_directory = self.run_directory(side);
            for socket in std::fs::read_dir(&run_directory).into_iter().flatten().flatten() {
                let _ = testbed::end_agent(&socket.path());
            }
            for arguments in [&["seeds", "--json"][..], &["far", "status", "--json"]] {
                for one in self.listed(side, arguments).as_array().into_iter().flatten() {
                    let pid = |which: &str| one[which].as_i64().unwrap_or(0) as i32;
                    if pid("holder_pid") > 0 {
                        // A far process that goes on without its holder becomes one.
                        end(pid("pid"), Signal::SIGSTOP);
                        end(pid("holder_pid"), Signal::SIGKILL);
                        end(pid("pid"), Signal::SIGKILL);
                    }
                    end(pid("keeper_pid"), Signal::SIGKILL);
                }
            }
            unmount_all(&run_directory);
            // Detached clones of a test that failed would go on, and the next ones would share the processors with them.
            let left = ip(&["netns", "pids", &self.namespace(side)]).map(|output| output.stdout);
            for pid in String::from_utf8_lossy(&left.unwrap_or_default()).split_whitespace() {
                end(pid.parse().unwrap_or(0), Signal::SIGKILL);
            }
            let _ = ip(&["netns", "del", &self.namespace(side)]);
        }
    }

    fn listed(&self, side: &str, arguments: &[&str]) -> Value {
        let output = self.on(side, arguments, SOON).and_then(farfork::run);
        let text = output.map(|output| output.stdout).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.tear_down();
    }
}

/// Unmounts what far processes that were killed have left.
fn unmount_all(run_directory: &Path) {
    for place in std::fs::read_dir(run_directory.join("far")).into_iter().flatten().flatten() {
        let _ = umount2(&place.path().join("pool/images"), MntFlags::MNT_DETACH);
    }
}

/// The pid that a detached clone's command prints.
pub fn pid_of(clone: &mut Subject) -> Outcome<i32> {
    if !clone.leave()?.success() {
        return clone.fail("no pid");
    }
    // The clone keeps the pipes, so that they do not end: what was printed may come a while later.
    let mut patience = Patience::new(SOON);
    loop {
        clone.hear(Duration::from_millis(50));
        let pid = clone.transcript().lines().find_map(|line| line.trim().parse().ok());
        match pid {
            Some(pid) => return Ok(pid),
            None if !patience.is_over() => {}
            None => return clone.fail("no pid"),
        }
    }
}

/// Runs a command that has to work; the document that it prints.
pub fn json(mut command: Command) -> Outcome<Value> {
    command.stdin(Stdio::null());
    let output = farfork::must_run(command)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| Trouble::during("reading JSON", farfork::text(&output)))
}

/// Runs a command that has to fail; its exit status, and what it printed.
pub fn refused(mut command: Command) -> Outcome<(i32, String)> {
    command.stdin(Stdio::null());
    let output: Output = farfork::run(command)?;
    match output.status.code() {
        Some(0) => Err(Trouble::during("a command that should fail", farfork::text(&output))),
        code => Ok((code.unwrap_or(-1), farfork::text(&output))),
    }
}
