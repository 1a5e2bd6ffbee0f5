//! Forks of the calling process: MITOSIS's `fork_prepare`, `fork_resume` and `fork_reclaim` (§5).
//!
//! ```text
//!  this process          command, started by a shell that leaves it behind
//!  place: waits ◄─────── farfork prepare --reply-at PLACE      (state, then text: the handle)
//!    │ and its clones wake up at the same place, with another state
//! ```
//! The command works from outside: it must not be a child of the process that it prepares. The layout of the
//! place stands in `reply.rs` of `crates/fork/checkpoint`.
#![allow(unsafe_code)] // reason: memory that another process writes to

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::{NonNull, null_mut};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farfork_handle::Handle;
use farfork_sys::words;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::forks::PerProcess;

const MAGIC: [u8; 8] = *b"ffreply1";
const TEXT_BYTES: usize = 112;
const PLACE_BYTES: usize = 4096;
const WAITS: u64 = 0;
const IS_CLONE: u64 = 2;
/// How often the state is looked at.
const LOOK: Duration = Duration::from_micros(500);
/// How long the command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The shell leaves the command behind, as no child of this process.
const LEAVE_BEHIND: &str = "into=$1; shift; \
    ( \"$@\" >\"$into/out\" 2>\"$into/err\" </dev/null; : >\"$into/done\" ) 2>/dev/null &";

/// Why a process was not forked. The message is the command's where that has one.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// The command cannot be run.
    #[error("cannot {doing} {}: {}; see that \"farfork\" is in PATH, or set FARFORK_BIN", .what.to_string_lossy(), words::of(.source))]
    Run {
        /// What was being done.
        doing: &'static str,
        /// To what.
        what: OsString,
        /// The reason.
        source: io::Error,
    },
    /// The command has failed.
    #[error("{0}")]
    Refused(String),
    /// The command has not answered.
    #[error("the command farfork was killed, or did not answer in time; try again")]
    NoAnswer,
    /// This process has not prepared such a seed.
    #[error("this process has no seed {id:#018x}; a clone does not have the seeds of its parent")]
    NotOwn {
        /// Its id.
        id: u64,
    },
    /// An address is not one.
    #[error("invalid address '{0}' (expected e.g. 10.0.0.1:7070)")]
    BadAddress(String),
}

impl ForkError {
    /// The number for C.
    pub fn errno(&self) -> i32 {
        match self {
            ForkError::Run { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            ForkError::Refused(_) => libc::EPERM,
            ForkError::NoAnswer => libc::ETIMEDOUT,
            ForkError::NotOwn { .. } => libc::ENOENT,
            ForkError::BadAddress(_) => libc::EINVAL,
        }
    }
}

/// Seeds that this process has prepared and not reclaimed. A child after `fork()` has none.
static OWN: PerProcess<Vec<Handle>> = PerProcess::new();

fn own() -> MutexGuard<'static, Vec<Handle>> {
    OWN.lock()
}

/// In which of the two a fork returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In the process that was prepared: the seed's id and key.
    Prepared {
        /// Its id.
        id: u64,
        /// Its key, which is a secret.
        key: u64,
    },
    /// In a clone of it.
    Clone,
}

/// Prepares this process. It stands still for as long as a checkpoint without its pages takes.
///
/// # Errors
/// The process goes on as before.
pub fn prepare() -> Result<Side, ForkError> {
    let place = Place::new()?;
    let folder = Folder::new()?;
    let pid = std::process::id().to_string();
    let reply_at = (place.0.as_ptr() as usize).to_string();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(LEAVE_BEHIND).arg("sh").arg(&folder.0).arg(program());
    shell.args(["prepare", "--pid", &pid, "--short-key", "--reply-at", &reply_at]);
    match shell.status() {
        // A handler of SIGCHLD may have reaped it.
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => {
            return Err(failed("start", "/bin/sh")(error));
        }
        _ => {}
    }
    let state = place.wait(&folder.0.join("done"));
    if state == IS_CLONE {
        // The folder is the parent's, and so are the seeds that it has prepared before.
        std::mem::forget(folder);
        own().clear();
        return Ok(Side::Clone);
    }
    if state == WAITS {
        return Err(folder.refusal());
    }
    let handle: Handle = place.text().parse().map_err(|_| ForkError::NoAnswer)?;
    let (id, key) = handle.short().ok_or(ForkError::NoAnswer)?;
    own().push(handle);
    Ok(Side::Prepared { id, key })
}

/// Starts a clone of a seed on this machine; its pid. Its standard input is empty, and what it prints is dropped.
/// Without an address, the seed is this process's own.
///
/// # Errors
/// No clone runs.
pub fn resume(address: Option<&str>, id: u64, key: u64) -> Result<i32, ForkError> {
    let handle = match address {
        Some(text) => {
            let address = text.parse().map_err(|_| ForkError::BadAddress(text.to_owned()))?;
            Handle::of_short(address, id, key)
        }
        None => own_seed(id)?,
    };
    let said = run(&["resume", "--detach", &handle.to_string()])?;
    // The clone may have printed behind it.
    said.lines().next().and_then(|line| line.trim().parse().ok()).ok_or(ForkError::NoAnswer)
}

/// Ends a seed of this process. Clones that may still fetch pages have ten seconds to do so.
///
/// # Errors
/// [`ForkError::NotOwn`]; the seed has ended before.
pub fn reclaim(id: u64) -> Result<(), ForkError> {
    let handle = own_seed(id)?;
    run(&["reclaim", &handle.to_string()])?;
    own().retain(|known| *known != handle);
    Ok(())
}

/// Where a seed of this process is served, for clones on other machines.
///
/// # Errors
/// [`ForkError::NotOwn`].
pub fn address(id: u64) -> Result<String, ForkError> {
    Ok(own_seed(id)?.address.to_string())
}

fn own_seed(id: u64) -> Result<Handle, ForkError> {
    let own = own();
    let known = own.iter().find(|handle| handle.short().is_some_and(|short| short.0 == id));
    known.cloned().ok_or(ForkError::NotOwn { id })
}

fn program() -> OsString {
    std::env::var_os("FARFORK_BIN").unwrap_or_else(|| "farfork".into())
}

fn failed(doing: &'static str, what: impl AsRef<OsStr>) -> impl Fn(io::Error) -> ForkError {
    move |source| ForkError::Run { doing, what: what.as_ref().to_owned(), source }
}

/// Runs a command: what it has printed.
fn run(arguments: &[&str]) -> Result<String, ForkError> {
    let (folder, program) = (Folder::new()?, program());
    let file = |name: &str| {
        let path = folder.0.join(name);
        File::create(&path).map_err(failed("make", path))
    };
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?);
    let status = command.status().map_err(failed("run", &program))?;
    match status.success() {
        true => Ok(folder.said("out")),
        false => Err(folder.refusal()),
    }
}

/// Memory of this process alone, in which it waits.
struct Place(NonNull<u8>);

impl Place {
    fn new() -> Result<Place, ForkError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let mapped =
            unsafe { mmap_anonymous(null_mut(), PLACE_BYTES, protection, MapFlags::PRIVATE) };
        let mapped = mapped.map_err(|errno| failed("map", "memory")(errno.into()))?;
        let at = NonNull::new(mapped.cast::<u8>()).ok_or(ForkError::NoAnswer)?;
        // SAFETY: it has a page.
        unsafe { at.as_ptr().cast::<[u8; 8]>().write_volatile(MAGIC) };
        Ok(Place(at))
    }

    fn state(&self) -> u64 {
        // SAFETY: within the page, at a multiple of 8. Another process writes it while this one stands still.
        unsafe { &*self.0.as_ptr().add(8).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }

    /// The state, when it has changed or the command has ended.
    fn wait(&self, done: &Path) -> u64 {
        let until = Instant::now() + LIMIT;
        loop {
            let has_ended = done.exists() || Instant::now() > until;
            let state = self.state();
            if state != WAITS || has_ended {
                return state;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn text(&self) -> String {
        // SAFETY: within the page.
        let text = unsafe { self.0.as_ptr().add(16).cast::<[u8; TEXT_BYTES]>().read_volatile() };
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_BYTES);
        String::from_utf8_lossy(&text[..end]).into_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PLACE_BYTES) };
    }
}

/// A directory for what a command prints, which goes with this.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, ForkError> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| failed("draw", "a name")(error.into()))?;
        let name = format!("farfork-fork-{:016x}", u64::from_le_bytes(random));
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).map_err(failed("make", &path))?;
        Ok(Folder(path))
    }

    fn said(&self, name: &str) -> String {
        let bytes = fs::read(self.0.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn refusal(&self) -> ForkError {
        match self.said("err").trim().trim_start_matches("farfork: ") {
            "" => ForkError::NoAnswer,
            said => ForkError::Refused(said.to_owned()),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_layout_that_the_command_knows() {
        let place = Place::new().unwrap();
        let at = place.0.as_ptr();
        // SAFETY: within the page.
        let bytes = unsafe { at.cast::<[u8; 16]>().read() };
        assert_eq!(bytes, *b"ffreply1\0\0\0\0\0\0\0\0");
        assert!((at as usize).is_multiple_of(8));
        // SAFETY: within the page.
        unsafe {
            at.add(8).cast::<u64>().write(1);
            at.add(16).cast::<[u8; 4]>().write(*b"abc\0");
        }
        assert_eq!((place.state(), place.text().as_str()), (1, "abc"));
    }

    #[test]
    fn what_is_not_this_processs_is_refused_without_a_command() {
        let unknown = reclaim(7).unwrap_err();
        assert_eq!(
            (unknown.errno(), address(7).unwrap_err().errno()),
            (libc::ENOENT, libc::ENOENT)
        );
        assert!(unknown.to_string().contains("0x0000000000000007"), "{unknown}");
        assert_eq!(resume(Some("nowhere"), 7, 8).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(resume(None, 7, 8).unwrap_err().errno(), libc::ENOENT);
    }
}
