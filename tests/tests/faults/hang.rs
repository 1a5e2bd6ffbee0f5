//! Restores that hang: a tracer holds the clone, or its init, at its first instruction.

use std::process::{Child, Command, Stdio};

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, farfork};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Case;
use crate::scene::{PATIENCE, Scene, await_until, children, demand, during, fail, failed_in_words};

pub const CASES: &[Case] = &[
    ("of_an_init_is_ended_in_time", of_an_init_is_ended_in_time),
    ("of_a_clone_with_the_same_pid_is_ended_in_time", of_a_clone_with_the_same_pid),
    ("of_an_init_ends_with_its_caller", of_an_init_ends_with_its_caller),
    ("of_a_clone_with_the_same_pid_ends_with_its_caller", same_pid_ends_with_its_caller),
];

/// The first of these that has the number 0 is the template, its child 1 an init, 2 a clone.
const INIT: usize = 1;
const CLONE: usize = 2;

/// A tracer of the template and of all that comes from it.
struct Tracer {
    /// In the order of their appearance; nothing in the place of one that has ended.
    seen: Vec<Option<Pid>>,
    /// From this one on they stay where they begin.
    held_from: usize,
}

impl Tracer {
    fn of(template: i32, held_from: usize) -> Outcome<Tracer> {
        let template = Pid::from_raw(template);
        let children = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACEFORK;
        ptrace::seize(template, children).map_err(during("tracing the template"))?;
        Ok(Tracer { seen: vec![Some(template)], held_from })
    }

    /// Looks at all once; a process can only end when its tracer has seen it.
    fn step(&mut self) -> Outcome {
        for index in 0..self.seen.len() {
            let Some(pid) = self.seen[index] else { continue };
            let stays = index >= self.held_from;
            match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => self.seen[index] = None,
                Ok(WaitStatus::PtraceEvent(_, _, event)) => {
                    if event == ptrace::Event::PTRACE_EVENT_STOP as i32 && stays {
                        continue;
                    }
                    if event != ptrace::Event::PTRACE_EVENT_STOP as i32 {
                        let child = ptrace::getevent(pid).map_err(during("asking for a child"))?;
                        self.seen.push(Some(Pid::from_raw(child as i32)));
                    }
                    self.go_on(index, pid)?;
                }
                Ok(WaitStatus::Stopped(_, signal)) => {
                    ptrace::cont(pid, signal).map_err(during("letting go on"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The parent of what is held is needed no more, and lives as it always does.
    fn go_on(&mut self, index: usize, pid: Pid) -> Outcome {
        if index + 1 == self.held_from && self.is_holding() {
            self.seen[index] = None;
            return ptrace::detach(pid, None).map_err(during("letting go"));
        }
        ptrace::cont(pid, None).map_err(during("letting go on"))
    }

    /// Steps until `condition` holds.
    fn until(&mut self, what: &str, mut condition: impl FnMut(&Tracer) -> bool) -> Outcome {
        let mut failure = None;
        await_until(what, || {
            failure = failure.take().or(self.step().err());
            failure.is_some() || condition(self)
        })?;
        failure.map_or(Ok(()), Err)
    }

    fn is_holding(&self) -> bool {
        self.seen.len() > self.held_from
    }

    fn is_alone(&self) -> bool {
        self.seen[1..].iter().all(Option::is_none)
    }
}

/// A place with an agent, its template, and an image of a subject.
struct Stage {
    scene: Scene,
    subject: Subject,
    agent: u32,
    template: i32,
}

impl Stage {
    fn set(more: &[&str]) -> Outcome<Stage> {
        let mut scene = Scene::set(32)?;
        let agent = scene.agent()?;
        let mut subject = scene.subject("steady")?;
        let pid = subject.pid().to_string();
        scene.works(&[&["checkpoint", "--pid", &pid, "--name", "a/b"], more].concat())?;
        if !more.is_empty() {
            subject.finish()?; // a clone of it takes its pid
        }
        let Some(template) = children(agent).first().copied() else {
            return fail("no template");
        };
        Ok(Stage { scene, subject, agent, template })
    }

    fn restore(&self, more: &[&str]) -> Outcome<Child> {
        let mut command = Command::new(farfork::binary()?);
        command.args(["restore", "a/b"]).args(more);
        command.env("FARFORK_RUN", self.scene.directory().join("run"));
        command.env("FARFORK_POOL", self.scene.pool_path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(during("starting a restore"))
    }

    /// Nothing is left of a clone that did not start, and the next one does.
    fn is_clear(&self, tracer: &mut Tracer) -> Outcome {
        tracer.until("what was held has ended", Tracer::is_alone)?;
        if let Some(template) = tracer.seen[0].take() {
            ptrace::interrupt(template).map_err(during("stopping the template"))?;
            waitpid(template, Some(WaitPidFlag::__WALL)).map_err(during("waiting"))?;
            ptrace::detach(template, None).map_err(during("letting go of the template"))?;
        }
        await_until("the agent has waited for it", || children(self.agent) == [self.template])?;
        demand(self.scene.works(&["ps", "--json"])? == "[]", "a clone is listed")
    }

    fn next_clone_passes(&self, more: &[&str]) -> Outcome {
        let mut command = self.scene.command(&[&["restore", "a/b"], more].concat())?;
        Subject::start("clone", &mut command, PATIENCE)?.must_pass()
    }
}

fn is_ended_in_time(checkpoint: &[&str], restore: &[&str], held_from: usize) -> Outcome {
    let mut stage = Stage::set(checkpoint)?;
    let mut tracer = Tracer::of(stage.template, held_from)?;
    let mut child = stage.restore(&[restore, &["--timeout", "1"]].concat())?;
    tracer.until("the restore fails", |_| !matches!(child.try_wait(), Ok(None)))?;
    demand(tracer.is_holding(), "nothing was held")?;
    let output = child.wait_with_output().map_err(during("waiting"))?;
    failed_in_words("restore", &output, 1, &["did not start within 1 s", "--timeout"])?;
    stage.is_clear(&mut tracer)?;
    stage.next_clone_passes(restore)?;
    if checkpoint.is_empty() {
        stage.subject.must_pass()?;
    }
    stage.scene.strike()
}

fn ends_with_its_caller(checkpoint: &[&str], restore: &[&str], held_from: usize) -> Outcome {
    let mut stage = Stage::set(checkpoint)?;
    let mut tracer = Tracer::of(stage.template, held_from)?;
    let mut child = stage.restore(restore)?;
    tracer.until("something is held", Tracer::is_holding)?;
    child.kill().and_then(|()| child.wait()).map_err(during("ending the caller"))?;
    stage.is_clear(&mut tracer)?;
    stage.next_clone_passes(restore)?;
    if checkpoint.is_empty() {
        stage.subject.must_pass()?;
    }
    stage.scene.strike()
}

fn of_an_init_is_ended_in_time() -> Outcome {
    is_ended_in_time(&[], &[], INIT)
}

fn of_a_clone_with_the_same_pid() -> Outcome {
    is_ended_in_time(&["--kill"], &["--pid-mode", "same"], CLONE)
}

fn of_an_init_ends_with_its_caller() -> Outcome {
    ends_with_its_caller(&[], &[], INIT)
}

fn same_pid_ends_with_its_caller() -> Outcome {
    ends_with_its_caller(&["--kill"], &["--pid-mode", "same"], CLONE)
}
