//! A Python program that opens descriptors and stops itself.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const PRELUDE: &str = "
import ctypes, fcntl, os, select, signal, socket, struct, sys
signal.alarm(60)  # rather than wait for ever
os.closerange(3, 4096)  # whatever the caller of the tests left open
libc = ctypes.CDLL(None, use_errno=True)
def timerfd(clock, flags, first_ns, every_ns):
    fd = libc.timerfd_create(clock, 0)
    parts = (*divmod(every_ns, 10**9), *divmod(first_ns, 10**9))
    assert libc.timerfd_settime(fd, flags, (ctypes.c_long * 4)(*parts), None) == 0
    return fd
def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
";

/// A stopped process, killed when dropped.
pub struct Subject(Child);

impl Subject {
    /// Runs `script`, which calls `stop()` when it is ready. Standard streams are `/dev/null`.
    pub fn start(script: &str) -> Subject {
        Subject::start_with(script, Stdio::null)
    }

    /// The same with other standard streams.
    pub fn start_with(script: &str, stream: impl Fn() -> Stdio) -> Subject {
        match Subject::run(script, stream) {
            Ok(subject) => subject,
            Err(state) => panic!("the program ended early: {state:?}"),
        }
    }

    /// Runs `script`, which kills itself where the machine does not let it be ready.
    pub fn try_start(script: &str) -> Option<Subject> {
        match Subject::run(script, Stdio::null) {
            Err(WaitStatus::Signaled(_, Signal::SIGKILL, _)) => None,
            Err(state) => panic!("the program ended early: {state:?}"),
            Ok(subject) => Some(subject),
        }
    }

    fn run(script: &str, stream: impl Fn() -> Stdio) -> Result<Subject, WaitStatus> {
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{PRELUDE}\n{script}")]);
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let subject = Subject(command.spawn().expect("python3 is there"));
        let state = waitpid(Pid::from_raw(subject.pid()), Some(WaitPidFlag::WUNTRACED)).unwrap();
        if matches!(state, WaitStatus::Stopped(..)) { Ok(subject) } else { Err(state) }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Lets it go on to its end; whether it was content with what it found.
    pub fn finishes_well(mut self) -> bool {
        kill(Pid::from_raw(self.pid()), Signal::SIGCONT).unwrap();
        self.0.wait().unwrap().success()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
