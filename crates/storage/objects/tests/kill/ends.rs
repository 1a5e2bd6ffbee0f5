//! Clients that end, or pause, otherwise than by SIGKILL, in the middle of anything.
#![allow(unsafe_code)] // reason: signal handlers

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork::Client;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::child::{self, End};
use crate::random::{HELD, LONGEST_STOP, Stage, work};
use crate::stage::{demand, words};

/// How a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A signal that the process does not handle.
    Signal,
    /// `exit` in a signal handler, in the thread that is in an operation.
    ExitInHandler,
    /// `exit` in another thread than the one that is in an operation.
    ExitInThread,
    /// A thread is in an operation when the one that began the process calls `exit`.
    ExitOfFirst,
    /// `abort` in a signal handler.
    Abort,
}

pub const ALL: [Way; 5] =
    [Way::Signal, Way::ExitInHandler, Way::ExitInThread, Way::ExitOfFirst, Way::Abort];

extern "C" fn exit_in_handler(_: i32) {
    // SAFETY: ends the process, as a careless program does. It holds no lock of the C library's output.
    unsafe { libc::exit(0) }
}

extern "C" fn abort_in_handler(_: i32) {
    std::process::abort();
}

fn handle(handler: extern "C" fn(i32)) {
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler ends the process.
    unsafe { sigaction(Signal::SIGTERM, &action) }.expect("a handler");
}

/// Starts a client that ends in this way by SIGTERM, or by itself after so long.
fn start(way: Way, path: &Path, seed: u64, after: Duration) -> Pid {
    child::start(|| match way {
        Way::Signal => work(path, 0, seed, || ()),
        Way::ExitInHandler => {
            handle(exit_in_handler);
            work(path, 0, seed, || ());
        }
        Way::Abort => {
            handle(abort_in_handler);
            work(path, 0, seed, || ());
        }
        Way::ExitInThread => {
            std::thread::spawn(move || {
                sleep(after);
                std::process::exit(0);
            });
            work(path, 0, seed, || ());
        }
        Way::ExitOfFirst => {
            let path = path.to_owned();
            std::thread::spawn(move || work(&path, 0, seed, || ()));
            sleep(after);
            std::process::exit(0);
        }
    })
}

/// Clients end so often in this way, beside one that lives on and one that passes objects around with them.
pub fn leave_nothing(way: Way, ends: u64) -> Result<(), String> {
    let mut stage = Stage::new()?;
    for round in 1..=ends {
        let peer = child::start(|| work(&stage.path, 1, round, || ()));
        let after = Duration::from_micros(2000 + stage.random.below(4000));
        let client = start(way, &stage.path, round, after);
        if !matches!(way, Way::ExitInThread | Way::ExitOfFirst) {
            sleep(after);
            kill(client, Signal::SIGTERM).map_err(|error| error.to_string())?;
        }
        let ended = waitpid(client, None).map_err(|error| error.to_string())?;
        let failure = stage.failure();
        demand(failure.is_empty(), || format!("{failure}, {ended:?}"))?;
        kill(peer, Signal::SIGKILL).map_err(|error| error.to_string())?;
        demand(child::end(peer)? == End::Killed, || "the peer finished".to_owned())?;
        stage.account()?;
    }
    Ok(())
}

/// A freezer cgroup. Removed at the end.
struct Freezer {
    path: PathBuf,
    /// What is written to this file, to freeze and to thaw.
    file: File,
    kind: usize,
}

/// In a hierarchy of its own, and in the one of all controllers.
const KINDS: [(&str, &str, [&str; 2]); 2] =
    [("freezer", "freezer.state", ["FROZEN", "THAWED"]), ("", "cgroup.freeze", ["1", "0"])];

impl Freezer {
    /// `None` if this process may not make one.
    fn new() -> Option<Freezer> {
        let name = format!("farfork-objects-{}", std::process::id());
        KINDS.into_iter().enumerate().find_map(|(kind, (place, file, _))| {
            let path = Path::new("/sys/fs/cgroup").join(place).join(&name);
            fs::create_dir(&path).ok()?;
            match File::options().read(true).write(true).open(path.join(file)) {
                Ok(file) => Some(Freezer { path, file, kind }),
                Err(_) => {
                    let _ = fs::remove_dir(&path);
                    None
                }
            }
        })
    }

    fn set(&self, is_frozen: bool) -> Result<(), String> {
        let (_, name, [freeze, thaw]) = KINDS[self.kind];
        let word = if is_frozen { freeze } else { thaw };
        fs::write(self.path.join(name), word).map_err(|error| error.to_string())?;
        let is_there = || match fs::read_to_string(self.path.join("cgroup.events")) {
            Ok(events) => events.contains(if is_frozen { "frozen 1" } else { "frozen 0" }),
            Err(_) => fs::read_to_string(self.path.join(name)).is_ok_and(|now| now.trim() == word),
        };
        let begun = Instant::now();
        while !is_there() {
            demand(begun.elapsed() < LONGEST_STOP, || format!("it does not become {word}"))?;
            sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// What a client that does not go on would be waited for: a stopped process, a frozen group's file and its kind. 0 for none.
static STOPPED: AtomicI32 = AtomicI32::new(0);
static FROZEN: AtomicI32 = AtomicI32::new(0);
static KIND: AtomicUsize = AtomicUsize::new(0);

/// Lets it go on, so that a client that waits for it fails the test and does not hang.
extern "C" fn let_go(_: i32) {
    let (stopped, frozen) = (STOPPED.load(Ordering::Relaxed), FROZEN.load(Ordering::Relaxed));
    let (_, _, [_, thaw]) = KINDS[KIND.load(Ordering::Relaxed) % KINDS.len()];
    // SAFETY: both calls are async-signal-safe, and the word is as long as it says.
    unsafe {
        if stopped > 0 {
            libc::kill(stopped, libc::SIGCONT);
        }
        if frozen > 0 {
            libc::pwrite(frozen, thaw.as_ptr().cast(), thaw.len(), 0);
        }
    }
}

/// A client is frozen in the middle of anything. Another one works meanwhile, and all is accounted for.
pub fn frozen() -> Result<(), String> {
    let Some(freezer) = Freezer::new() else {
        println!("skipped: this process cannot make a freezer cgroup");
        return Ok(());
    };
    let mut stage = Stage::new()?;
    let client = child::start(|| {
        let own = std::process::id().to_string();
        fs::write(freezer.path.join("cgroup.procs"), own).expect("it joins the group");
        work(&stage.path, 0, 1, || ());
    });
    for _ in 0..100 {
        sleep(Duration::from_micros(stage.random.below(2000)));
        stage.observer.region().recover().map_err(words)?;
        freezer.set(true)?;
        let worked = use_beside(&mut stage.observer, Still::Frozen(&freezer));
        freezer.set(false)?;
        worked?;
    }
    kill(client, Signal::SIGKILL).map_err(|error| error.to_string())?;
    demand(child::end(client)? == End::Killed, || "the client finished".to_owned())?;
    stage.account()
}

/// Why a client does not go on.
enum Still<'a> {
    Stopped(Pid),
    Frozen(&'a Freezer),
}

/// A stopped client delays no other one.
pub fn use_beside_stopped(observer: &mut Client, client: Pid) -> Result<(), String> {
    use_beside(observer, Still::Stopped(client))
}

/// What a client does beside one that does not go on.
fn use_beside(observer: &mut Client, still: Still<'_>) -> Result<(), String> {
    match still {
        Still::Stopped(client) => STOPPED.store(client.as_raw(), Ordering::Relaxed),
        Still::Frozen(freezer) => {
            KIND.store(freezer.kind, Ordering::Relaxed);
            FROZEN.store(freezer.file.as_raw_fd(), Ordering::Relaxed);
        }
    }
    let action = SigAction::new(SigHandler::Handler(let_go), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler calls what may be called there.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map_err(|error| error.to_string())?;
    // SAFETY: has a signal sent later.
    unsafe { libc::alarm(LONGEST_STOP.as_secs() as u32 + 1) };
    let used = allocate_and_check(observer);
    // SAFETY: has it not sent.
    unsafe { libc::alarm(0) };
    STOPPED.store(0, Ordering::Relaxed);
    FROZEN.store(0, Ordering::Relaxed);
    used
}

fn allocate_and_check(observer: &mut Client) -> Result<(), String> {
    let begun = Instant::now();
    let objects: Vec<_> = (0..200).map(|_| observer.allocate(64).expect("an object")).collect();
    objects.into_iter().try_for_each(|object| observer.free(object)).map_err(words)?;
    let check = observer.region().check().map_err(words)?;
    // Those that died before were recovered before, and none has died since then.
    let is_right = check.is_clean() && check.owned >= HELD && check.clients_recovered == 0;
    demand(is_right, || format!("beside a client that does not go on: {check:?}"))?;
    let lasted = begun.elapsed();
    demand(lasted < LONGEST_STOP, || format!("it waited for that client: {lasted:?}"))
}
