//! Two nodes, a pool at one of them, and servers of far memory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use serde_json::Value;

/// The time for anything that should happen at once.
const SOON: Duration = Duration::from_secs(30);
/// The limit of a read, in most tests.
pub const DEADLINE: Duration = Duration::from_millis(700);

/// One pair of nodes.
pub struct Bed {
    test: &'static str,
    number: usize,
    pub run: PathBuf,
    pub key: PathBuf,
    pub pool: PathBuf,
    server: Option<Child>,
}

/// Beds whose namespaces are to be removed.
static BEDS: Mutex<Vec<(usize, PathBuf)>> = Mutex::new(Vec::new());

/// Why there can be no beds here.
pub fn missing() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if let Err(Trouble::Skipped(reason)) = testbed::possible() {
            return Some(reason);
        }
        if !Path::new("/dev/fuse").exists() {
            return Some("far memory needs /dev/fuse".to_owned());
        }
        let works = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
        let has_namespaces = works(Command::new("ip").args(["netns", "list"]))
            && works(Command::new("nsenter").arg("--version"));
        (!has_namespaces)
            .then(|| "nodes with a network of their own need ip and nsenter".to_owned())
    };
    REASON.get_or_init(find).clone()
}

fn run(program: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    farfork::must_run({
        command.args(arguments);
        command
    })
    .map(drop)
}

impl Bed {
    /// Two nodes with a cable, and a pool of one of them.
    pub fn set(test: &'static str) -> Outcome<Bed> {
        let pool = testbed::pool()?.to_owned();
        let directory = testbed::work_dir(&format!("far-{test}"))?;
        let mut beds = BEDS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = beds.len();
        let (run_directory, key) = (directory.join("run"), directory.join("key"));
        beds.push((number, run_directory.clone()));
        drop(beds);
        let bed = Bed { test, number, run: run_directory, key, pool, server: None };
        let [serving, using] = [bed.node("a"), bed.node("b")];
        let [near, far] = [format!("fa{}", bed.unique()), format!("fb{}", bed.unique())];
        for node in [&serving, &using] {
            run("ip", &["netns", "add", node])?;
            run("ip", &["-n", node, "link", "set", "lo", "up"])?;
        }
        let peer = ["type", "veth", "peer", "name", &far, "netns", &using];
        run("ip", &[&["-n", &serving, "link", "add", &near][..], &peer].concat())?;
        for (node, cable, address) in
            [(&serving, &near, "10.77.0.1/24"), (&using, &far, "10.77.0.2/24")]
        {
            run("ip", &["-n", node, "addr", "add", address, "dev", cable])?;
            run("ip", &["-n", node, "link", "set", cable, "up"])?;
        }
        Ok(bed)
    }

    fn unique(&self) -> String {
        format!("{}x{}", std::process::id(), self.number)
    }

    fn node(&self, side: &str) -> String {
        format!("farfork-{}-{side}", self.unique())
    }

    /// Where the server listens.
    pub fn address(&self) -> &'static str {
        "10.77.0.1:7473"
    }

    /// A command that is run in the network of one side.
    fn on(&self, side: &str, arguments: &[&str]) -> Outcome<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.node(side)));
        command.arg(farfork::binary()?).args(arguments);
        command.env(farfork::RUN, &self.run);
        command.env("FARFORK_FAR_DEADLINE_MS", DEADLINE.as_millis().to_string());
        Ok(command)
    }

    /// Starts the server.
    pub fn serve(&mut self) -> Outcome {
        let mut command = self.on("a", &["far", "serve", "--listen", self.address(), "--pool"])?;
        command.arg(&self.pool).arg("--key").arg(&self.key).stdout(Stdio::piped());
        let mut server = command
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Trouble::during("starting the server", error))?;
        let mut line = String::new();
        let output = server.stdout.take();
        self.server = Some(server);
        let output = output.ok_or_else(|| Trouble::during("starting the server", "no output"))?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)
            .map_err(|error| Trouble::during("hearing from the server", error))?;
        match line.trim() == self.address() {
            true => Ok(()),
            false => Err(Trouble::during("hearing from the server", line)),
        }
    }

    /// Sends the server a signal; after SIGKILL it is gone.
    pub fn signal_server(&mut self, signal: nix::sys::signal::Signal) -> Outcome {
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        let pid = nix::unistd::Pid::from_raw(server.id().cast_signed());
        nix::sys::signal::kill(pid, signal)
            .map_err(|error| Trouble::during("signalling the server", error))?;
        if signal == nix::sys::signal::Signal::SIGKILL {
            let _ = server.wait();
            self.server = None;
        }
        Ok(())
    }

    /// Pulls the cable.
    pub fn cut(&self) -> Outcome {
        let cable = format!("fa{}", self.unique());
        run("ip", &["-n", &self.node("a"), "link", "set", &cable, "down"])
    }

    /// Checkpoints a program that waits, and ends it. Returns the image's name.
    pub fn image(&self, program: &Program) -> Outcome<String> {
        let name = format!("far/{}", self.test);
        let mut command = compile::command(program)?;
        command.current_dir(testbed::work_dir(&format!("far-{}", self.test))?);
        let mut parent = Subject::start("parent", &mut command, SOON)?;
        parent.await_ready()?;
        farfork::must_run(farfork::checkpoint(&self.pool, parent.pid(), &name, &["--kill"])?)?;
        Ok(name)
    }

    /// `farfork restore --far`, with further arguments.
    pub fn restore(&self, image: &str, more: &[&str]) -> Outcome<Command> {
        let mut command = self.on("b", &["restore", "--far", self.address(), "--far-key"])?;
        command.arg(&self.key).args(more).arg(image);
        Ok(command)
    }

    /// An attached clone.
    pub fn clone(&self, image: &str, more: &[&str]) -> Outcome<Subject> {
        Subject::start("clone", &mut self.restore(image, more)?, SOON)
    }

    /// A detached clone, its pid, and what has its pipes.
    pub fn detached(&self, image: &str, more: &[&str]) -> Outcome<(Subject, i32)> {
        let mut clone = self.clone(image, &[&["--detach"], more].concat())?;
        let pid = self.pid_of(&mut clone)?;
        Ok((clone, pid))
    }

    /// The pid that a detached restore prints.
    pub fn pid_of(&self, clone: &mut Subject) -> Outcome<i32> {
        clone.leave()?;
        clone.hear(Duration::from_millis(50));
        let pid = clone.transcript().lines().find_map(|line| line.trim().parse().ok());
        pid.map_or_else(|| clone.fail("no pid"), Ok)
    }

    /// `farfork wait --json`, and how long it took.
    pub fn wait(&self, pid: i32) -> Outcome<(Value, Duration)> {
        let begun = Instant::now();
        let output = farfork::run(self.on("b", &["wait", "--json", &pid.to_string()])?)?;
        let took = begun.elapsed();
        let end = serde_json::from_slice(&output.stdout);
        let end = end.map_err(|_| Trouble::during("farfork wait", farfork::text(&output)))?;
        Ok((end, took))
    }

    /// Demands that a clone ends with status 0.
    pub fn must_pass(&self, pid: i32) -> Outcome {
        let (end, _) = self.wait(pid)?;
        match end["status"] == 0 {
            true => Ok(()),
            false => Err(Trouble::during("a clone that should pass", end)),
        }
    }

    /// A command that is expected to fail; what it printed.
    pub fn refused(&self, mut command: Command) -> Outcome<String> {
        let output: Output = farfork::run({
            command.stdin(Stdio::null());
            command
        })?;
        match output.status.success() {
            true => Err(Trouble::during("a command that should fail", farfork::text(&output))),
            false => Ok(farfork::text(&output)),
        }
    }

    /// `farfork far unmount`.
    pub fn unmount(&self) -> Outcome<Command> {
        self.on("b", &["far", "unmount", self.address()])
    }

    /// What `farfork far status --json` has of the one source.
    pub fn status(&self) -> Outcome<Value> {
        let output = farfork::must_run(self.on("b", &["far", "status", "--json"])?)?;
        let all: Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| Trouble::during("far status", error))?;
        Ok(all[0].clone())
    }

    /// Bytes fetched of the first image, and its length.
    pub fn fetched(&self) -> Outcome<(u64, u64)> {
        let image = self.status()?["images"][0].clone();
        let number = |of: &str| {
            let none = || Trouble::during("far status", format!("no {of}"));
            image[of].as_u64().ok_or_else(none)
        };
        Ok((number("fetched_bytes")?, number("bytes")?))
    }

    /// The far process (`pid`), or its holder (`holder_pid`).
    pub fn far_process(&self, which: &str) -> Outcome<nix::unistd::Pid> {
        let pid = self.status()?[which].as_i64();
        let pid = pid.ok_or_else(|| Trouble::during("far status", format!("no {which}")))?;
        Ok(nix::unistd::Pid::from_raw(pid as i32))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let end =
            |pid: nix::unistd::Pid| nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        let _ = testbed::end_agent(&self.run.join("local.sock"));
        if let Ok(pid) = self.far_process("holder_pid") {
            let _ = end(pid);
        }
        for side in ["a", "b"] {
            let _ = run("ip", &["netns", "del", &self.node(side)]);
        }
    }
}

/// Unmounts what far processes that were killed have left.
pub fn tear_down() {
    for (_, run) in BEDS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        for place in std::fs::read_dir(run.join("far")).into_iter().flatten().flatten() {
            let images = place.path().join("pool/images");
            let _ = nix::mount::umount2(&images, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
