//! Starting the far process of a source when a command needs it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::control::{Answer, Ask, Status, ask};
use crate::error::FarError;
use crate::place::Place;
use crate::source::SourceAt;

/// How long a far process may take to mount.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// What the far process of `place` has done; an error if none runs.
///
/// # Errors
/// As with [`ask`].
pub fn status(place: &Place) -> Result<Status, FarError> {
    match ask(&place.socket(), &Ask::Status)? {
        Answer::Status(status) => Ok(status),
        other => Err(unexpected(other)),
    }
}

/// The id of an image at the source of `place`, whose far process runs.
///
/// # Errors
/// As with [`ask`]; the source cannot be reached, or has no such image.
pub fn find(place: &Place, image: &str, prefetch: bool) -> Result<String, FarError> {
    search(place, image, prefetch, None)
}

/// The same for an image of the node `source`, at a `place` whose images have nodes of their own.
///
/// # Errors
/// As with [`find`]; [`FarError::Io`] if no far process runs.
pub fn find_at(
    place: &Place,
    image: &str,
    prefetch: bool,
    source: SourceAt,
) -> Result<String, FarError> {
    search(place, image, prefetch, Some(source))
}

fn search(
    place: &Place,
    image: &str,
    prefetch: bool,
    source: Option<SourceAt>,
) -> Result<String, FarError> {
    let image = image.to_owned();
    match ask(&place.socket(), &Ask::Find { image, prefetch, source })? {
        Answer::Found { cid } => Ok(cid),
        other => Err(unexpected(other)),
    }
}

/// Ends the far process of `place`.
///
/// # Errors
/// As with [`ask`]; clones use its file system.
pub fn stop(place: &Place) -> Result<(), FarError> {
    match ask(&place.socket(), &Ask::Stop)? {
        Answer::Stopping => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> FarError {
    FarError::Process(match answer {
        Answer::Failed { why } => why,
        other => format!("the far process gave an unexpected answer: {other:?}"),
    })
}

/// Sees to it that a far process serves `place`. If none does, `command` (a program and its arguments) is
/// started as one, in a session of its own.
///
/// # Errors
/// It cannot be started, or says why it has ended.
pub fn ensure(place: &Place, command: &[OsString]) -> Result<(), FarError> {
    let directory = place.directory();
    let failed = || FarError::io("start a far process in", directory);
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed())?;
    let mut options = OpenOptions::new();
    let lock = options.write(true).create(true).truncate(false).mode(0o600).open(place.lock());
    let lock = lock.map_err(failed())?;
    // Of several commands one starts it.
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed()(errno.into()))?;
    if status(place).is_ok() {
        return Ok(());
    }
    let mut child = start(place, command).map_err(failed())?;
    match await_ready(&mut child) {
        Ok(true) => {
            std::thread::spawn(move || child.wait());
            Ok(())
        }
        Ok(false) => {
            let _ = child.wait();
            Err(FarError::Process(last_words(place)))
        }
        Err(error) => {
            let _ = child.kill();
            Err(failed()(error))
        }
    }
}

/// Waits until the far process says that it listens; false if it has ended.
fn await_ready(child: &mut Child) -> io::Result<bool> {
    let Some(mut output) = child.stdout.take() else { return Ok(false) };
    let until = Instant::now() + START_TIMEOUT;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let mut polls = [PollFd::new(&output, PollFlags::IN)];
        match poll(&mut polls, left.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(output.read(&mut [0])? == 1),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Says to the command that has started this far process, or its holder, that it listens.
pub(crate) fn say_ready() -> io::Result<()> {
    let mut output = io::stdout().lock();
    // It may have gone.
    let _ = output.write_all(b"\n").and_then(|()| output.flush());
    close_output()
}

/// The command that waits sees the end of its pipe when no process has the other end.
pub(crate) fn close_output() -> io::Result<()> {
    let nothing = File::options().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

fn start(place: &Place, command: &[OsString]) -> io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let log = File::create(place.log())?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()
}

/// What it has printed last.
fn last_words(place: &Place) -> String {
    let log = fs::read_to_string(place.log()).unwrap_or_default();
    let last = log.lines().last().unwrap_or("").trim_start_matches("farfork: ").to_owned();
    if last.is_empty() {
        format!("the far process ended at once; see {}", place.log().display())
    } else {
        last
    }
}
