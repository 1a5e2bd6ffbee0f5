//! Two nodes, a pool at one of them, and servers of far memory.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_tests::nodes::{self, AWAY, HOME, Nodes, SOON};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use serde_json::Value;

/// The limit of a read, as it is without an option: a test on a busy machine must not end at it.
const PATIENT: Duration = Duration::from_secs(5);
/// The same in tests that wait until it has passed.
const HASTY: Duration = Duration::from_secs(2);

/// One pair of nodes.
pub struct Bed {
    test: &'static str,
    nodes: Nodes,
    pub key: PathBuf,
    pub pool: PathBuf,
    /// The limit of a read.
    pub deadline: Duration,
    server: Option<Child>,
}

impl Bed {
    /// Two nodes with a cable, and a pool of one of them.
    pub fn set(test: &'static str) -> Outcome<Bed> {
        let pool = testbed::pool()?.to_owned();
        let directory = testbed::work_dir(&format!("far-{test}"))?;
        let key = directory.join("key");
        let nodes = Nodes::set(directory, "10.77.0")?;
        Ok(Bed { test, nodes, key, pool, deadline: PATIENT, server: None })
    }

    /// The same, with reads that end sooner.
    pub fn hasty(test: &'static str) -> Outcome<Bed> {
        let mut bed = Bed::set(test)?;
        bed.deadline = HASTY;
        Ok(bed)
    }

    /// Where the server listens.
    pub fn address(&self) -> &'static str {
        "10.77.0.1:7473"
    }

    /// The run directory of the node on which clones start.
    pub fn run(&self) -> PathBuf {
        self.nodes.run_directory(AWAY)
    }

    /// A command that is run in the network of one side.
    pub fn on(&self, side: &str, arguments: &[&str]) -> Outcome<Command> {
        self.nodes.on(side, arguments, self.deadline)
    }

    /// The same, of which the process is `farfork` itself.
    pub fn process_on(&self, side: &str, arguments: &[&str]) -> Outcome<Command> {
        self.nodes.server(side, arguments, self.deadline)
    }

    /// Starts the server, of which both nodes use TCP, although they are on one host.
    pub fn serve(&mut self) -> Outcome {
        self.serve_with(&["--tcp-only"])
    }

    /// Starts the server with further options.
    pub fn serve_with(&mut self, more: &[&str]) -> Outcome {
        let serve = ["far", "serve", "--listen", self.address(), "--pool"];
        let mut command = self.nodes.server(HOME, &serve, self.deadline)?;
        command.arg(&self.pool).arg("--key").arg(&self.key).args(more).stdout(Stdio::piped());
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
        self.nodes.cut()
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
        let mut command = self.on(AWAY, &["restore", "--far", self.address(), "--far-key"])?;
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
        nodes::pid_of(clone)
    }

    /// `farfork wait --json`, and how long it took.
    pub fn wait(&self, pid: i32) -> Outcome<(Value, Duration)> {
        let begun = Instant::now();
        let output = farfork::run(self.on(AWAY, &["wait", "--json", &pid.to_string()])?)?;
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
    pub fn refused(&self, command: Command) -> Outcome<String> {
        nodes::refused(command).map(|(_, text)| text)
    }

    /// `farfork far unmount`.
    pub fn unmount(&self) -> Outcome<Command> {
        self.on(AWAY, &["far", "unmount", self.address()])
    }

    /// What `farfork far status --json` has of the one source.
    pub fn status(&self) -> Outcome<Value> {
        let all = nodes::json(self.on(AWAY, &["far", "status", "--json"])?)?;
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

    /// Waits until nothing more is fetched.
    pub fn await_prefetch(&self) -> Outcome {
        let (mut before, mut same) = (0, 0);
        testbed::eventually("the end of the prefetch", || {
            std::thread::sleep(Duration::from_millis(500));
            let now = self.fetched()?.0;
            let is_same = now > 0 && std::mem::replace(&mut before, now) == now;
            same = if is_same { same + 1 } else { 0 };
            // On a busy machine it stands still now and then.
            Ok(same == 3)
        })
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
    }
}
