//! Starting the far process of a source when a command needs it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use farfork_mount::close_output;
use farfork_types::{Cid, TlsFiles};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use crate::control::{Answer, Ask, Status, ask, listening_process};
use crate::error::FarError;
use crate::holder_lock::HolderLock;
use crate::place::Place;
use crate::place_lock::PlaceLock;
use crate::protocol::PageRange;
use crate::source::SourceAt;

/// How long a far process may take to mount.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a command looks for a far process that its holder is about to start.
const LOOK: Duration = Duration::from_millis(20);
/// How long the kernel may take to say that a file system has ended.
const ENDED_LOOK: Duration = Duration::from_secs(1);

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

/// Has the pages of a seed of `place` fetched in the background, which begins after this has returned.
///
/// # Errors
/// As with [`ask`]; the far process does not know the image.
pub fn prefetch(place: &Place, cid: Cid) -> Result<(), FarError> {
    match ask(&place.socket(), &Ask::Prefetch { cid: cid.to_string() })? {
        Answer::Begun => Ok(()),
        other => Err(unexpected(other)),
    }
}

/// The pages of an image of `place` that clones were seen to need, in the order in which they should come. The answer
/// takes `limit` at most.
///
/// # Errors
/// As with [`ask`]; the far process does not know the image, or its node does not answer in time.
pub fn touched(place: &Place, cid: Cid, limit: Duration) -> Result<Vec<PageRange>, FarError> {
    let limit_ms = limit.as_millis() as u64;
    match ask(&place.socket(), &Ask::Touched { cid: cid.to_string(), limit_ms })? {
        Answer::Touched { ranges } => Ok(ranges),
        other => Err(unexpected(other)),
    }
}

/// Which pages of a virtual machine's image its machines needed at the source of `place`: pages side by side, in the
/// order in which they were needed.
///
/// # Errors
/// As with [`find`].
pub fn record(place: &Place, image: &str) -> Result<Vec<PageRange>, FarError> {
    match ask(&place.socket(), &Ask::Record { image: image.to_owned() })? {
        Answer::Recorded { pages } => Ok(pages),
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
    ensure_with(place, command, None)
}

/// The same for a source that is to be proved with the files `tls`, which stand in `command`, too.
///
/// # Errors
/// As with [`ensure`]; [`FarError::OtherTls`] if it is mounted without them, or with others.
pub fn ensure_with(
    place: &Place,
    command: &[OsString],
    tls: Option<&TlsFiles>,
) -> Result<(), FarError> {
    let failed = || FarError::io("start a far process in", place.directory());
    // Of several commands one starts it.
    let _lock = PlaceLock::wait(place).map_err(failed())?;
    match living_status(place)? {
        Some(status) if !is_replaced(place, &status, tls)? => return Ok(()),
        _ => {}
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

/// What the far process of `place` has done; `None` if nothing is mounted there. Between the death of a far process and the
/// start of the next one nothing listens, but its holder lives: a second one would take the mount away from clones.
fn living_status(place: &Place) -> Result<Option<Status>, FarError> {
    let (mut until, mut has_killed) = (Instant::now() + START_TIMEOUT, false);
    loop {
        let error = match status(place) {
            // The next one finds out that the file system has ended, and goes.
            Ok(_) if has_killed && Instant::now() < until => {
                std::thread::sleep(LOOK);
                continue;
            }
            Ok(status) => return Ok(Some(status)),
            Err(error) => error,
        };
        if !has_killed && is_silent(&error) && has_ended(place) {
            kill_silent(place).map_err(FarError::io("kill a far process in", place.directory()))?;
            (until, has_killed) = (Instant::now() + START_TIMEOUT, true);
            continue;
        }
        let is_absent = is_absent(&error);
        let failed = FarError::io("look for the holder of far memory in", place.directory());
        if is_absent && !HolderLock::is_held(place).map_err(failed)? {
            return Ok(None);
        }
        if !is_absent && !is_cut_off(&error) || Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether the kernel has ended the file system that is mounted there, because its far process answered nothing. Before that the
/// question is not answered either.
fn has_ended(place: &Place) -> bool {
    let (images, (sender, answer)) = (place.images(), channel());
    std::thread::spawn(move || {
        sender.send(statfs(&images).is_err_and(|error| error == Errno::NOTCONN))
    });
    answer.recv_timeout(ENDED_LOOK).unwrap_or(false)
}

/// Whether the far process is there, and answers nothing.
fn is_silent(error: &FarError) -> bool {
    matches!(error, FarError::Io { source, .. } if source.kind() == io::ErrorKind::TimedOut)
}

/// Kills the far process, whose file system has ended. Its holder sees that, starts another one, which finds no file system,
/// and ends.
fn kill_silent(place: &Place) -> io::Result<()> {
    let (known, owner) = listening_process(&place.socket())?;
    let process = pidfd_open(known, PidfdFlags::empty())?;
    if owner != geteuid() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"));
    }
    // The pid may have become another process before it was opened; that one does not listen there.
    if listening_process(&place.socket())? == (known, owner) {
        pidfd_send_signal(process, Signal::KILL)?;
    }
    Ok(())
}

/// Whether the far process was killed before it answered.
fn is_cut_off(error: &FarError) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionReset, UnexpectedEof];
    matches!(error, FarError::Io { source, .. } if kinds.contains(&source.kind()))
}

/// Whether nothing listens there.
fn is_absent(error: &FarError) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    matches!(error, FarError::Io { source, .. } if kinds.contains(&source.kind()))
}

/// Whether the mount of a far process gives way to another one. A command that gives certificates must not go on
/// without them; one that gives none may use a mount that has some. A mount without images, as a refusal leaves
/// it, is not worth keeping.
fn is_replaced(place: &Place, status: &Status, tls: Option<&TlsFiles>) -> Result<bool, FarError> {
    let mounted = match &status.tls {
        found if tls.is_none() || found.as_ref() == tls => return Ok(false),
        None => "without certificates",
        Some(_) => "with other certificates",
    };
    if status.images.is_empty() && stop(place).is_ok() {
        return Ok(true);
    }
    let source_address = status.source.trim_start_matches("tcp://").to_owned();
    Err(FarError::OtherTls { source_address, mounted })
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
