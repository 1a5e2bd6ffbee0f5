//! The function under QEMU's user mode: which pages miss the caches, in which stage.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_types::misses::{Answer, Order, PageMisses, Phase};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::time::Timespec;
use serde_json::Value;

use crate::error::{ProfileError, io};
use crate::model::Misses;
use crate::process::{CALL_TIMEOUT, Process, words};

const QEMU: &str = "qemu-x86_64";
/// All features except FMA, which QEMU 7.2 computes wrongly.
const PROCESSOR: &str = "max,-fma";
/// A file beside this program.
const PLUGIN: &str = "libfarfork_caches_qemu.so";
/// Names another place of it.
const PLUGIN_VARIABLE: &str = "FARFORK_CACHES_PLUGIN";
/// Limit of QEMU's start, until its plugin connects.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Functions report stages there (`farfork.Stages`).
const STAGE_VARIABLE: &str = "FARFORK_STAGE_FD";

/// An emulated function.
struct Emulated {
    process: Process,
    plugin: BufReader<UnixStream>,
    stages: BufReader<UnixStream>,
}

/// The misses of a warm call, with a last-level cache of this size.
///
/// # Errors
/// QEMU or its plugin is missing, or the function fails.
pub fn misses(
    name: &str,
    python: &Path,
    function: &Path,
    args: &Value,
    cache_bytes: u64,
) -> Result<Misses, ProfileError> {
    let place = tempfile::tempdir().map_err(io("make a directory for a socket"))?;
    let mut emulated = Emulated::start(name, python, function, &place.path().join("plugin"))?;
    emulated.order(&Order::Begin(vec![cache_bytes]))?;
    emulated.process.ready()?;
    emulated.call(args)?;
    emulated.order(&Order::Enter(Phase::Measured))?;
    emulated.order(&Order::TakePages)?;
    // The caches are as a call before has left them.
    emulated.call(args)?;
    emulated.order(&Order::TakePages)?;
    emulated.call(args).map(Misses::new)
}

impl Emulated {
    fn start(
        name: &str,
        python: &Path,
        function: &Path,
        socket: &Path,
    ) -> Result<Emulated, ProfileError> {
        let plugin = plugin()?;
        let listener = UnixListener::bind(socket).map_err(io("listen for QEMU's plugin"))?;
        listener.set_nonblocking(true).map_err(io("listen for QEMU's plugin"))?;
        let (ours, theirs) = UnixStream::pair().map_err(io("make a pair of sockets"))?;
        ours.set_read_timeout(Some(CALL_TIMEOUT)).map_err(io("limit the time of a stage"))?;
        fcntl_setfd(&theirs, FdFlags::empty())
            .map_err(|errno| io("pass on a socket")(errno.into()))?;
        let mut command = Command::new(QEMU);
        command.args(["-cpu", PROCESSOR, "-plugin"]);
        command.arg(format!("{},socket={}", plugin.display(), socket.display()));
        command.args(words(python, function)).env(STAGE_VARIABLE, theirs.as_raw_fd().to_string());
        let mut process = Process::start(name, command)?;
        drop(theirs);
        let plugin = BufReader::new(accepted(&listener, &mut process)?);
        Ok(Emulated { process, plugin, stages: BufReader::new(ours) })
    }

    /// Makes a call; returns the misses by stage, those outside of stages without a name.
    fn call(&mut self, args: &Value) -> Result<Vec<(String, Vec<PageMisses>)>, ProfileError> {
        self.process.send(args)?;
        let deadline = Instant::now() + CALL_TIMEOUT;
        let mut stages = Vec::new();
        while next_is_stage(&self.stages, &self.process, deadline)? {
            let mut line = String::new();
            let read = self.stages.read_line(&mut line).map_err(io("hear of a stage"))?;
            if read == 0 {
                break;
            }
            let pages = self.take()?;
            // Before a stage begins, misses are outside of it.
            let name = line.trim_end().strip_prefix("end ").unwrap_or_default();
            stages.push((name.to_owned(), pages));
            let _ = self.stages.get_mut().write_all(b"\n");
        }
        self.process.receive()?;
        stages.push((String::new(), self.take()?));
        Ok(stages)
    }

    fn take(&mut self) -> Result<Vec<PageMisses>, ProfileError> {
        let line = self.order(&Order::TakePages)?;
        Ok(line.map(|seen| seen.pages).unwrap_or_default())
    }

    fn order(
        &mut self,
        order: &Order,
    ) -> Result<Option<farfork_types::misses::Seen>, ProfileError> {
        let wrong = |reason: &dyn std::fmt::Display| {
            self.process.failed(format!("the emulator's plugin fails: {reason}"))
        };
        let text = serde_json::to_string(order).map_err(|error| wrong(&error))?;
        writeln!(self.plugin.get_ref(), "{text}").map_err(|error| wrong(&error))?;
        let mut line = String::new();
        self.plugin.read_line(&mut line).map_err(|error| wrong(&error))?;
        let answer: Answer = serde_json::from_str(&line).map_err(|error| wrong(&error))?;
        answer.map_err(|reason| wrong(&reason))
    }
}

/// Waits for a stage or for the answer.
fn next_is_stage(
    stages: &BufReader<UnixStream>,
    process: &Process,
    deadline: Instant,
) -> Result<bool, ProfileError> {
    // A line that was read with the one before is not in the socket any more.
    while stages.buffer().is_empty() && !process.has_answered() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(process.failed(format!("no answer in {} s", CALL_TIMEOUT.as_secs())));
        }
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut polls = [
            PollFd::new(stages.get_ref(), PollFlags::IN),
            PollFd::new(process.connection(), PollFlags::IN),
        ];
        match poll(&mut polls, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(polls[0].revents().contains(PollFlags::IN)),
            Err(errno) => return Err(io("wait for a call")(errno.into())),
        }
    }
    Ok(!stages.buffer().is_empty())
}

fn accepted(listener: &UnixListener, process: &mut Process) -> Result<UnixStream, ProfileError> {
    let begun = Instant::now();
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).map_err(io("talk to QEMU's plugin"))?;
            stream.set_read_timeout(Some(CALL_TIMEOUT)).map_err(io("talk to QEMU's plugin"))?;
            return Ok(stream);
        }
        // An end of file is the exit of QEMU.
        let mut polls = [PollFd::new(process.connection(), PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        if poll(&mut polls, Some(&wait)).is_ok_and(|ready| ready > 0) {
            return Err(process.receive().err().unwrap_or_else(|| {
                process.failed("QEMU answers before its plugin connects".to_owned())
            }));
        }
        if begun.elapsed() > START_TIMEOUT {
            return Err(process.failed("QEMU's plugin does not connect".to_owned()));
        }
    }
}

/// The path of the plugin.
fn plugin() -> Result<PathBuf, ProfileError> {
    if let Some(named) = env::var_os(PLUGIN_VARIABLE) {
        return Ok(named.into());
    }
    let program = env::current_exe().map_err(io("find this program"))?;
    let folders: Vec<&Path> = program.ancestors().skip(1).take(2).collect();
    let release = folders.last().map(|folder| folder.join("release"));
    let mut places = folders.iter().map(|folder| folder.to_path_buf()).chain(release);
    let found = places.find_map(|folder| Some(folder.join(PLUGIN)).filter(|path| path.exists()));
    found.ok_or_else(|| ProfileError::Lacking {
        doing: "count the misses of an emulated process".to_owned(),
        reason: format!("{PLUGIN} is not beside {}", program.display()),
        remedy: "build it: cargo build --release --package farfork-caches-qemu".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that does not answer, and lines that it has reported.
    fn reported(lines: &[u8]) -> (Process, BufReader<UnixStream>, UnixStream) {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = Process::start("test", command).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines).unwrap();
        (process, BufReader::new(ours), theirs)
    }

    #[test]
    fn two_stages_that_come_at_once_are_both_seen() {
        let (process, mut stages, _theirs) = reported(b"begin a\nend a\n");
        let deadline = Instant::now() + Duration::from_secs(5);
        for expected in ["begin a\n", "end a\n"] {
            assert!(next_is_stage(&stages, &process, deadline).unwrap(), "before {expected}");
            let mut line = String::new();
            stages.read_line(&mut line).unwrap();
            assert_eq!(line, expected);
        }
    }

    #[test]
    fn a_call_ends_at_its_time_limit() {
        let (process, stages, _theirs) = reported(b"");
        let deadline = Instant::now() + Duration::from_millis(20);
        let words = next_is_stage(&stages, &process, deadline).unwrap_err().to_string();
        assert!(words.contains("no answer in 1800 s"), "{words}");
    }
}
