//! Two nodes with a cable between them: a process is prepared on one, and resumed on the other, which
//! has no pool.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farfork_tests::nodes::{self, AWAY, HOME, Nodes, SOON, demand};
use farfork_tests::program::Program;
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, compile, farfork, testbed};
use serde_json::Value;

/// The limit of a fetch: that of farfork, as a busy machine stands still now and then.
const PATIENT: Duration = Duration::from_secs(5);
/// The same where it is waited for.
const HASTY: Duration = Duration::from_millis(1500);

/// Two nodes.
pub struct Bed {
    nodes: Nodes,
    /// Whether shared memory is used.
    by_memory: bool,
    deadline: Duration,
}

/// A seed, as `farfork prepare --json` has it.
pub struct Seed {
    /// The word.
    pub handle: String,
    /// All of the answer.
    pub report: Value,
}

impl Bed {
    /// Two nodes.
    pub fn set(test: &str) -> Outcome<Bed> {
        let directory = testbed::work_dir(&format!("seeds-{test}"))?;
        Ok(Bed { nodes: Nodes::set(directory, "10.78.0")?, by_memory: false, deadline: PATIENT })
    }

    /// The same, on which a fetch that gets no answer fails soon.
    pub fn hasty(test: &str) -> Outcome<Bed> {
        Ok(Bed { deadline: HASTY, ..Bed::set(test)? })
    }

    /// The same, of which the second reads what the first has through shared memory.
    pub fn on_one_host(test: &str) -> Outcome<Bed> {
        Ok(Bed { by_memory: true, ..Bed::set(test)? })
    }

    /// Pulls the cable.
    pub fn cut(&self) -> Outcome {
        self.nodes.cut()
    }

    /// Puts it back.
    pub fn mend(&self) -> Outcome {
        self.nodes.mend()
    }

    /// What pulls the cable ("down"), or puts it back ("up").
    pub fn set_cable(&self, state: &str) -> Command {
        self.nodes.set_cable(state)
    }

    /// The agent of a node.
    pub fn agent(&self, side: &str) -> Outcome<i32> {
        let socket = self.nodes.run_directory(side).join(format!("{side}.sock"));
        testbed::agent_pid(&socket).map_err(|error| Trouble::during("asking an agent", error))
    }

    /// Files that keepers of a node have made.
    pub fn seed_files(&self, side: &str) -> usize {
        std::fs::read_dir(self.nodes.run_directory(side).join("seeds")).map_or(0, Iterator::count)
    }

    /// `farfork`, run on one of the nodes.
    pub fn on(&self, side: &str, arguments: &[&str]) -> Outcome<Command> {
        let mut command = self.nodes.on(side, arguments, self.deadline)?;
        command.env("FARFORK_SEED_LISTEN", self.nodes.address(HOME)).stdin(Stdio::null());
        // The nodes are on one host, and most of what is tested is what a network does.
        command.env("FARFORK_SEED_TCP_ONLY", (!self.by_memory).to_string());
        Ok(command)
    }

    /// A program on the node whose processes are prepared.
    pub fn parent(&self, program: &Program) -> Outcome<Subject> {
        self.parent_in(program, Path::new("/"))
    }

    /// The same, which makes its files in a directory.
    pub fn parent_in(&self, program: &Program, directory: &Path) -> Outcome<Subject> {
        let built = compile::command(program)?;
        let mut command = self.nodes.inside(HOME);
        command.arg(built.get_program()).args(built.get_args()).current_dir(directory);
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
        let pid = nodes::pid_of(&mut clone)?;
        Ok((clone, pid))
    }

    /// What `farfork resume --json` prints of a detached clone. The clone, which has the same output, says
    /// nothing before its input ends.
    pub fn resumed(&self, seed: &Seed) -> Outcome<Value> {
        self.resumed_with(seed, &[])
    }

    /// The same, with further arguments.
    pub fn resumed_with(&self, seed: &Seed, more: &[&str]) -> Outcome<Value> {
        let arguments = [&["resume", &seed.handle, "--json", "--detach"], more].concat();
        let mut command = self.on(AWAY, &arguments)?;
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
        nodes::json(self.on(side, arguments)?)
    }

    /// A command that has to fail with this exit status; what it printed.
    pub fn refused(&self, side: &str, arguments: &[&str], status: i32) -> Outcome<String> {
        let (code, text) = nodes::refused(self.on(side, arguments)?)?;
        demand(code == status, &format!("exit status {status}"), &text)?;
        Ok(text)
    }

    /// The end of a detached clone.
    pub fn wait(&self, pid: i32) -> Outcome<Value> {
        let output = farfork::run(self.on(AWAY, &["wait", "--json", &pid.to_string()])?)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|_| Trouble::during("farfork wait", farfork::text(&output)))
    }

    /// A directory of this test.
    pub fn directory(&self) -> &Path {
        self.nodes.directory()
    }

    /// A command to be completed, on one of the nodes.
    pub fn inside(&self, side: &str) -> Command {
        self.nodes.inside(side)
    }

    /// Keys of handles that lie on a node.
    pub fn keys_on(&self, side: &str) -> Outcome<usize> {
        let places = self.nodes.run_directory(side).join("far");
        let failed = |error| Trouble::during("looking for keys", error);
        let mut keys = 0;
        for place in std::fs::read_dir(places).map_err(failed)?.flatten() {
            keys += std::fs::read_dir(place.path().join("keys")).map_or(0, Iterator::count);
        }
        Ok(keys)
    }

    /// The file of one of them.
    pub fn key_away(&self, fingerprint: &str) -> Outcome<PathBuf> {
        let places = self.nodes.run_directory(AWAY).join("far");
        let places = std::fs::read_dir(places);
        let places = places.map_err(|error| Trouble::during("looking for keys", error))?;
        let mut paths = places.flatten().map(|place| place.path().join("keys").join(fingerprint));
        let found = paths.find(|path| path.exists());
        found.ok_or_else(|| Trouble::Failed(format!("no key {fingerprint}")))
    }

    /// Directories of mounts on the node where clones start.
    pub fn places_away(&self) -> usize {
        std::fs::read_dir(self.nodes.run_directory(AWAY).join("far")).map_or(0, Iterator::count)
    }

    /// What the keeper of a seed reports; null if there is none.
    pub fn status(&self, seed: &Seed) -> Outcome<Value> {
        let all = self.json(HOME, &["seeds", "--json"])?;
        let of = |status: &&Value| status["id"] == seed.report["id"];
        Ok(all.as_array().and_then(|all| all.iter().find(of)).cloned().unwrap_or_default())
    }
}
