//! Two nodes with a cable between them: a process is prepared on one, and resumed on the other, which
//! has no pool.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The time for anything that should happen at once.
const SOON: Duration = Duration::from_secs(30);
/// The limit of a fetch.
const DEADLINE_MS: u32 = 1500;

/// The node whose process is prepared.
pub const HOME: &str = "a";
/// The node on which clones start.
pub const AWAY: &str = "b";

/// Two nodes.
pub struct Bed {
    name: String,
    directory: PathBuf,
}

/// A seed, as `farfork prepare --json` has it.
pub struct Seed {
    /// The word.
    pub handle: String,
    /// All of the answer.
    pub report: Value,
}

/// Why there can be no beds here.
pub fn missing() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if let Err(Trouble::Skipped(reason)) = testbed::possible() {
            return Some(reason);
        }
        if !Path::new("/dev/fuse").exists() {
            return Some("clones of seeds need /dev/fuse".to_owned());
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
pub fn demand(holds: bool, what: &str, seen: &dyn std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(Trouble::Failed(format!("expected {what}, saw {seen:?}"))) }
}

fn run(program: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    farfork::must_run(command).map(drop)
}

impl Bed {
    /// Two nodes.
    pub fn set(test: &str) -> Outcome<Bed> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = testbed::work_dir(&format!("seeds-{test}"))?;
        let bed = Bed { name: format!("s{}x{number}", std::process::id()), directory };
        let cables = [HOME, AWAY].map(|side| format!("{side}{}", bed.name));
        for side in [HOME, AWAY] {
            run("ip", &["netns", "add", &bed.node(side)])?;
            run("ip", &["-n", &bed.node(side), "link", "set", "lo", "up"])?;
        }
        let peer = ["type", "veth", "peer", "name", &cables[1], "netns", &bed.node(AWAY)];
        run("ip", &[&["-n", &bed.node(HOME), "link", "add", &cables[0]][..], &peer].concat())?;
        for (side, cable, address) in
            [(HOME, &cables[0], "10.78.0.1/24"), (AWAY, &cables[1], "10.78.0.2/24")]
        {
            run("ip", &["-n", &bed.node(side), "addr", "add", address, "dev", cable])?;
            run("ip", &["-n", &bed.node(side), "link", "set", cable, "up"])?;
        }
        Ok(bed)
    }

    fn node(&self, side: &str) -> String {
        format!("farfork-{}-{side}", self.name)
    }

    fn run_directory(&self, side: &str) -> PathBuf {
        self.directory.join(side)
    }

    fn inside(&self, side: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.node(side))).arg("--");
        command
    }

    /// `farfork`, run on one of the nodes.
    pub fn on(&self, side: &str, arguments: &[&str]) -> Outcome<Command> {
        let mut command = self.inside(side);
        command.args(["timeout", "--kill-after=5", "120"]).arg(farfork::binary()?).args(arguments);
        command.env(farfork::RUN, self.run_directory(side)).env("FARFORK_NODE", side);
        command.env("FARFORK_FAR_DEADLINE_MS", DEADLINE_MS.to_string());
        command.env("FARFORK_SEED_LISTEN", "10.78.0.1").stdin(Stdio::null());
        Ok(command)
    }

    /// A program on the node whose processes are prepared.
    pub fn parent(&self, program: &Program) -> Outcome<Subject> {
        let built = compile::command(program)?;
        let mut command = self.inside(HOME);
        command.arg(built.get_program()).args(built.get_args()).current_dir("/");
        let mut subject = Subject::start("parent", &mut command, SOON)?;
        subject.await_ready()?;
        Ok(subject)
    }

    /// `farfork prepare`.
    pub fn prepare(&self, parent: &Subject, more: &[&str]) -> Outcome<Seed> {
        let pid = parent.pid().to_string();
        let report = self.json(HOME, &[&["prepare", "--json", "--pid", &pid], more].concat())?;
        let handle = report["handle"].as_str().unwrap_or_default().to_owned();
        Ok(Seed { handle, report })
    }

    /// An attached clone.
    pub fn resume(&self, seed: &Seed, more: &[&str]) -> Outcome<Subject> {
        let arguments = [&["resume", &seed.handle], more].concat();
        Subject::start("clone", &mut self.on(AWAY, &arguments)?, SOON)
    }

    /// A detached clone, its pid, and what has its pipes.
    pub fn detached(&self, seed: &Seed, more: &[&str]) -> Outcome<(Subject, i32)> {
        let mut clone = self.resume(seed, &[&["--detach"], more].concat())?;
        clone.leave()?;
        clone.hear(Duration::from_millis(50));
        let pid = clone.transcript().lines().find_map(|line| line.trim().parse().ok());
        match pid {
            Some(pid) => Ok((clone, pid)),
            None => clone.fail("no pid"),
        }
    }

    /// What `farfork resume --json` prints of a detached clone. The clone, which has the same output, says
    /// nothing before its input ends.
    pub fn resumed(&self, seed: &Seed) -> Outcome<Value> {
        let mut command = self.on(AWAY, &["resume", &seed.handle, "--json", "--detach"])?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |error| Trouble::during("farfork resume", error);
        let mut child = command.spawn().map_err(failed)?;
        let output = child.stdout.take().ok_or_else(|| Trouble::Failed("no output".into()))?;
        let document = serde_json::Deserializer::from_reader(output).into_iter().next();
        drop(child.stdin.take());
        child.wait().map_err(failed)?;
        let document = document.and_then(Result::ok);
        document.ok_or_else(|| Trouble::Failed("farfork resume printed no document".into()))
    }

    /// A command that has to work; the document that it prints.
    pub fn json(&self, side: &str, arguments: &[&str]) -> Outcome<Value> {
        let output = farfork::must_run(self.on(side, arguments)?)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| Trouble::during("reading JSON", farfork::text(&output)))
    }

    /// A command that has to fail with this exit status; what it printed.
    pub fn refused(&self, side: &str, arguments: &[&str], status: i32) -> Outcome<String> {
        let output = farfork::run(self.on(side, arguments)?)?;
        let text = farfork::text(&output);
        demand(output.status.code() == Some(status), &format!("exit status {status}"), &text)?;
        Ok(text)
    }

    /// The end of a detached clone.
    pub fn wait(&self, pid: i32) -> Outcome<Value> {
        let output = farfork::run(self.on(AWAY, &["wait", "--json", &pid.to_string()])?)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| Trouble::during("farfork wait", farfork::text(&output)))
    }

    /// What the keeper of a seed reports; null if there is none.
    pub fn status(&self, seed: &Seed) -> Outcome<Value> {
        let all = self.json(HOME, &["seeds", "--json"])?;
        let of = |status: &&Value| status["id"] == seed.report["id"];
        Ok(all.as_array().and_then(|all| all.iter().find(of)).cloned().unwrap_or_default())
    }

    fn end_all(&self) {
        for side in [HOME, AWAY] {
            let run_directory = self.run_directory(side);
            for socket in std::fs::read_dir(&run_directory).into_iter().flatten().flatten() {
                let _ = testbed::end_agent(&socket.path());
            }
            for what in ["seeds", "far"] {
                let document = match what {
                    "seeds" => self.json(side, &["seeds", "--json"]),
                    _ => self.json(side, &["far", "status", "--json"]),
                };
                for one in document.iter().filter_map(Value::as_array).flatten() {
                    // Without its holder a far process goes, too.
                    let pid = one["keeper_pid"].as_i64().or(one["holder_pid"].as_i64());
                    end(pid.unwrap_or(0) as i32, Signal::SIGKILL);
                }
            }
            for place in
                std::fs::read_dir(run_directory.join("far")).into_iter().flatten().flatten()
            {
                let images = place.path().join("pool/images");
                let _ = nix::mount::umount2(&images, nix::mount::MntFlags::MNT_DETACH);
            }
        }
    }
}

/// Sends a process a signal.
pub fn end(pid: i32, signal: Signal) {
    if pid > 1 {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end_all();
        for side in [HOME, AWAY] {
            let _ = run("ip", &["netns", "del", &self.node(side)]);
        }
    }
}
