//! Kills a process at a chosen system call of a restore, of the making of a ghost, or of a call to a platform, seen
//! from outside.
//!
//! A step is the entry to a system call: between two of them a process changes nothing that
//! another can see. They are counted by `ptrace`, because what is killed must be the program that
//! users run: a hook in the restorer would be there in a clone's window, or be left out of the
//! build that is tested. What this cannot do is to stop a process in the middle of a call.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use farfork_plan::window;
use farfork_tests::{Outcome, Trouble};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::scene::{PATIENCE, during, fail};

/// A process that takes part in a restore, or in the creation of a ghost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The gateway of a platform, from its first connection on.
    Gateway,
    /// `farfork restore` or `ghost start`, from its connection to the agent on.
    Client,
    /// The agent, from its first accepted connection on.
    Agent,
    /// What inits are forked from.
    Template,
    /// The `runc` that the agent calls.
    Runc,
    /// Any process that `runc` starts on the way to a container's first process.
    Stage,
    /// The clone's init; that of a ghost which is made from its first call on.
    Init,
    /// The clone, until it leaves for its parent's code.
    Clone,
}

/// Which process is killed, and when.
#[derive(Clone, Copy, Debug)]
pub struct Blow {
    /// Whose steps are counted.
    pub at: Role,
    /// The process that is killed.
    pub to: Role,
    /// After how many steps.
    pub step: u64,
    /// Whether it only stands still at that step, and dies when the clone is about to leave.
    /// Steps are counted from the init's birth on then.
    pub is_late: bool,
}

/// A thread that traces the processes of one restore.
pub struct Tracer {
    bell: Pid,
    thread: JoinHandle<Outcome<Option<Instant>>>,
}

impl Tracer {
    /// Takes hold of the process that the others descend from: the client or the agent, or else the
    /// template, or an init, or a clone, that waits for its request. Those that make a ghost descend from the
    /// agent.
    pub fn follow(root: (u32, Role), blow: Blow) -> Outcome<Tracer> {
        Tracer::follow_beside(None, root, blow)
    }

    /// The same, where an init is known that is not followed, but may have to be killed.
    pub fn follow_beside(init: Option<u32>, root: (u32, Role), blow: Blow) -> Outcome<Tracer> {
        let (sender, receiver) = channel();
        let thread = thread::spawn(move || Tracing::begin(init, root, blow, &sender)?.run());
        match receiver.recv() {
            Ok(bell) => Ok(Tracer { bell, thread }),
            Err(_) => fail(format!("cannot trace {root:?}: {:?}", thread.join())),
        }
    }

    /// Lets go of all; when the blow was struck, if it was.
    pub fn finish(self) -> Outcome<Option<Instant>> {
        let _ = kill(self.bell, Signal::SIGKILL);
        self.thread.join().unwrap_or_else(|_| fail("the tracer panicked"))
    }
}

struct Tracing {
    /// A child whose end wakes this thread; and the end of its patience.
    bell: Child,
    blow: Blow,
    root: Pid,
    root_role: Role,
    /// Whose child the root is: inits are, too.
    agent: Option<Pid>,
    is_counting: bool,
    is_held: bool,
    /// The clone has left for its parent's code.
    has_left: bool,
    struck: Option<Instant>,
    count: u64,
    /// By thread: its process, and what that is.
    known: HashMap<Pid, (Pid, Role)>,
}

/// Threads of the caller only: other tests have children of their own.
const OWN: WaitPidFlag = WaitPidFlag::__WALL.union(WaitPidFlag::__WNOTHREAD);

impl Tracing {
    fn begin(
        init: Option<u32>,
        (root, root_role): (u32, Role),
        blow: Blow,
        ready: &Sender<Pid>,
    ) -> Outcome<Tracing> {
        let bell = Command::new("sleep").arg(LONGEST_S.to_string()).stdin(Stdio::null()).spawn();
        let bell = bell.map_err(during("starting sleep"))?;
        let reported = Pid::from_raw(bell.id() as i32);
        let root = Pid::from_raw(root as i32);
        let is_counting = root_role == Role::Template || root_role != blow.at;
        let init = init.map(|pid| Pid::from_raw(pid as i32));
        let known = init.map(|init| (init, (init, Role::Init))).into_iter().collect();
        let (count, is_held, has_left, struck) = (0, false, false, None);
        let agent = parent_of(root);
        let mut tracing = Tracing {
            bell,
            blow,
            root,
            root_role,
            agent,
            is_counting,
            is_held,
            has_left,
            struck,
            count,
            known,
        };
        tracing.seize_all()?;
        let _ = ready.send(reported);
        Ok(tracing)
    }

    /// Until there is no thread that is not traced.
    fn seize_all(&mut self) -> Outcome {
        loop {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.root));
            let tasks = tasks.map_err(during("looking for threads"))?.flatten();
            let tasks = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
            let new: Vec<Pid> =
                tasks.map(Pid::from_raw).filter(|task| !self.known.contains_key(task)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for task in new {
                self.seize(task)?;
            }
        }
    }

    fn seize(&mut self, task: Pid) -> Outcome {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC;
        match ptrace::seize(task, options) {
            // A worker that has ended since it was listed; the whole process is missed elsewhere.
            Err(Errno::ESRCH) if task != self.root => return Ok(()),
            other => other.map_err(during("seizing"))?,
        }
        self.known.insert(task, (self.root, self.root_role));
        match ptrace::interrupt(task) {
            Err(Errno::ESRCH) if task != self.root => return Ok(()),
            other => other.map_err(during("interrupting"))?,
        }
        waitpid(task, Some(WaitPidFlag::__WALL)).map_err(during("waiting for a stop"))?;
        self.resume(task, None);
        Ok(())
    }

    fn run(&mut self) -> Outcome<Option<Instant>> {
        let bell = Pid::from_raw(self.bell.id() as i32);
        loop {
            match waitpid(None, Some(OWN)).map_err(during("waiting for a step"))? {
                WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _) if pid == bell => {
                    return Ok(self.struck);
                }
                WaitStatus::PtraceSyscall(task) => self.at_call(task),
                WaitStatus::PtraceEvent(task, _, EXECUTED) => self.at_program(task),
                WaitStatus::PtraceEvent(task, _, _) => self.at_event(task),
                WaitStatus::Stopped(task, signal) => self.resume(task, Some(signal)),
                _ => {}
            }
        }
    }

    /// The init is known before the template's next step.
    fn at_event(&mut self, task: Pid) {
        if let Ok(new) = ptrace::getevent(task) {
            self.role(Pid::from_raw(new as i32));
        }
        self.resume(task, None);
    }

    /// A container's first process becomes a ghost by this. It has one thread then.
    fn at_program(&mut self, task: Pid) {
        let arguments = fs::read(format!("/proc/{task}/cmdline")).unwrap_or_default();
        if arguments.ends_with(b"\0ghost\0") {
            self.known.retain(|_, (process, _)| *process != task);
            self.known.insert(task, (task, Role::Init));
        }
        self.resume(task, None);
    }

    /// A task that is gone meanwhile is waited for like any other. Where many processes create a container,
    /// most of their calls do not count as steps.
    fn resume(&mut self, task: Pid, signal: Option<Signal>) {
        let is_other = self.root_role == Role::Agent
            && self.role(task).is_some_and(|(_, role)| role != self.blow.at);
        let _ = if self.struck.is_some() || is_other {
            ptrace::cont(task, signal)
        } else {
            ptrace::syscall(task, signal)
        };
    }

    fn at_call(&mut self, task: Pid) {
        let is_entry = ptrace::syscall_info(task).is_ok_and(|info| info.op == ENTRY);
        let registers = farfork_sys::ptrace::registers(task.as_raw());
        let (Ok(registers), Some((process, role))) = (registers, self.role(task)) else {
            return self.resume(task, None);
        };
        let call = registers.orig_rax as i64;
        if !is_entry {
            let begins = match self.root_role {
                Role::Init | Role::Clone => call == libc::SYS_recvmsg,
                _ => [libc::SYS_accept4, libc::SYS_connect].contains(&call),
            };
            self.is_counting |= begins && registers.rax as i64 >= 0;
            return self.resume(task, None);
        }
        let has_program = role == self.root_role && role != Role::Clone
            || [Role::Runc, Role::Stage].contains(&role);
        // The clone's other calls are its parent's.
        let counts = has_program || (window::BASE..window::END).contains(&registers.rip);
        let has_victim = self.process_of(self.blow.to).is_some();
        let may_begin = has_victim && (!self.blow.is_late || self.process_of(Role::Init).is_some());
        if counts && role == self.blow.at && self.is_counting && may_begin && self.struck.is_none()
        {
            self.count += 1;
            if self.count == self.blow.step + 1 {
                self.is_held = self.blow.is_late;
                if self.is_held && !self.has_left {
                    return;
                }
                self.strike(process);
            }
        }
        if counts && role == Role::Clone && call == libc::SYS_rt_sigreturn {
            self.has_left = true;
            if self.is_held {
                self.strike(process);
            }
        }
        self.resume(task, None);
    }

    fn strike(&mut self, process: Pid) {
        let is_own = self.blow.at == self.blow.to && !self.is_held;
        let victim = if is_own { Some(process) } else { self.process_of(self.blow.to) };
        if let Some(victim) = victim {
            self.struck = kill(victim, Signal::SIGKILL).is_ok().then(Instant::now);
        }
        self.is_held = false;
    }

    fn process_of(&self, wanted: Role) -> Option<Pid> {
        let found = self.known.values().find(|(_, role)| *role == wanted);
        found.map(|(process, _)| *process)
    }

    fn role(&mut self, task: Pid) -> Option<(Pid, Role)> {
        if let Some(known) = self.known.get(&task) {
            return Some(*known);
        }
        let status = fs::read_to_string(format!("/proc/{task}/status")).ok()?;
        let field = |key: &str| -> Option<Pid> {
            let rest = status.lines().find_map(|line| line.strip_prefix(key))?;
            rest.trim().parse().ok().map(Pid::from_raw)
        };
        let (process, parent) = (field("Tgid:")?, field("PPid:")?);
        let role = match (process == self.root, self.root_role) {
            (true, root) => root,
            // It makes templates only when there is none.
            (false, Role::Agent) if parent == self.root => Role::Runc,
            (false, Role::Agent) => match self.known.get(&parent) {
                Some((_, Role::Init)) => Role::Clone,
                _ => Role::Stage,
            },
            // Templates; the agent is the parent of inits, too.
            (false, Role::Client) => Role::Template,
            (false, _) if Some(parent) == self.agent => Role::Init,
            (false, _) => Role::Clone,
        };
        self.known.insert(task, (process, role));
        Some((process, role))
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _ = self.bell.kill();
        let _ = self.bell.wait();
    }
}

/// Longer than any step of a test: processes that wait for a traced one give up before.
const LONGEST_S: u64 = 10 * PATIENCE.as_secs();

const EXECUTED: i32 = ptrace::Event::PTRACE_EVENT_EXEC as i32;
const ENTRY: u8 = libc::PTRACE_SYSCALL_INFO_ENTRY;

fn parent_of(process: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let rest = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    rest.trim().parse().ok().map(Pid::from_raw)
}

/// Says which blow a failure came after.
pub fn after(blow: Blow) -> impl Fn(Trouble) -> Trouble {
    move |trouble| match trouble {
        Trouble::Failed(why) => Trouble::Failed(format!("{blow:?}: {why}")),
        skipped => skipped,
    }
}
