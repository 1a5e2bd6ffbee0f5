//! A process of the function, which answers lines by lines.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::error::{ProfileError, io};

/// Limit of a call. Under an emulator the first one takes minutes.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(1800);
/// What the interpreter runs.
const ANSWER: &str = include_str!("answer.py");
/// Threads of libraries: one, so that calls are comparable.
const THREADS: [&str; 3] = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];

/// The words that run a function under an interpreter.
pub fn words(python: &Path, function: &Path) -> [String; 4] {
    let text = |path: &Path| path.display().to_string();
    [text(python), "-c".to_owned(), ANSWER.to_owned(), text(function)]
}

/// A running function. Dropped, it is killed, and with it what it has started in its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: BufReader<UnixStream>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have been waited for already; its group is there as long as a process is in it.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a command, which answers lines on its standard output.
    pub fn start(name: &str, mut command: Command) -> Result<Process, ProfileError> {
        let (ours, theirs) = UnixStream::pair().map_err(io("make a pair of sockets"))?;
        ours.set_read_timeout(Some(CALL_TIMEOUT)).map_err(io("limit the time of a call"))?;
        let input = OwnedFd::from(theirs.try_clone().map_err(io("duplicate a socket"))?);
        command.stdin(input).stdout(OwnedFd::from(theirs)).envs(THREADS.map(|name| (name, "1")));
        command.process_group(0);
        let program = command.get_program().display().to_string();
        let child = command.spawn().map_err(|error| ProfileError::Lacking {
            doing: format!("run {program}"),
            reason: farfork_sys::words::of(&error),
            remedy: match program.contains("qemu") {
                true => "apt-get install qemu-user".to_owned(),
                false => "name a Python with the package farfork by --python".to_owned(),
            },
        })?;
        // It holds the other end: without this, reads would not see the process exit.
        drop(command);
        Ok(Process { name: name.to_owned(), child, lines: BufReader::new(ours) })
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The connection, for waiting.
    pub fn connection(&self) -> &UnixStream {
        self.lines.get_ref()
    }

    /// Whether a line of its answer was read already.
    pub fn has_answered(&self) -> bool {
        !self.lines.buffer().is_empty()
    }

    /// Waits until the function is loaded.
    pub fn ready(&mut self) -> Result<(), ProfileError> {
        self.line().map(drop)
    }

    /// Sends the arguments of a call.
    pub fn send(&mut self, args: &Value) -> Result<(), ProfileError> {
        let sent = self.lines.get_mut().write_all(format!("{args}\n").as_bytes());
        sent.map_err(|error| self.failed(farfork_sys::words::of(&error)))
    }

    /// Receives the result of a call.
    pub fn receive(&mut self) -> Result<Value, ProfileError> {
        let mut answer = self.line()?;
        match answer["error"].as_str() {
            Some(said) => Err(self.failed(format!("its call failed: {said}"))),
            None => Ok(answer["result"].take()),
        }
    }

    fn line(&mut self) -> Result<Value, ProfileError> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(0) => {
                let status = self.child.wait().map(|status| status.to_string());
                let status = status.unwrap_or_else(|_| "an unknown status".to_owned());
                Err(self.failed(format!(
                    "its process ended with {status} (see above for what it printed)"
                )))
            }
            Ok(_) => serde_json::from_str(&line)
                .map_err(|wrong| self.failed(format!("it answers {line:?}: {wrong}"))),
            Err(error) => {
                Err(self.failed(format!("no answer: {}", farfork_sys::words::of(&error))))
            }
        }
    }

    /// An error of this function.
    pub fn failed(&self, reason: String) -> ProfileError {
        ProfileError::Function { function: self.name.clone(), reason }
    }

    /// Bytes that it has resident.
    pub fn resident_bytes(&self) -> u64 {
        self.kilobytes("smaps_rollup", "Rss:") << 10
    }

    /// Forgets how much it had resident at most.
    pub fn forget_peak(&self) {
        // Without the right to it, the peak is that since the start.
        let _ = fs::write(format!("/proc/{}/clear_refs", self.pid()), "5");
    }

    /// Bytes that it had resident at most.
    pub fn peak_bytes(&self) -> u64 {
        self.kilobytes("status", "VmHWM:") << 10
    }

    fn kilobytes(&self, file: &str, key: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_the_function_has_started_is_killed_with_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let mut process = Process::start("test", command).unwrap();
        let pid = process.line().unwrap().as_i64().unwrap();
        let stat = format!("/proc/{pid}/stat");
        assert!(Path::new(&stat).exists());
        drop(process);
        let begun = Instant::now();
        // Gone, or dead until its new parent has waited for it.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(begun.elapsed() < Duration::from_secs(30), "process {pid} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
