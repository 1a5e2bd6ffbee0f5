//! The process that serves machines. It may be killed at any time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use farfork_image::error::ImageError;
use farfork_image::vm::Snapshot;
use farfork_pool::ImageFile;
use farfork_sys::sync::locked;
use farfork_sys::words;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::cache::{Cache, Shared};
use crate::channel;
use crate::counters::Counters;
use crate::filler::Source;
use crate::guard::{self, Guard};
use crate::handover::{Region, Regions};
use crate::hot::{HotPages, Replay};
use crate::ledger::Ledger;
use crate::machine::{Ending, Machine};
use crate::message::{Command, Report, VERSION};
use crate::turns::Turns;

/// Why a server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The connection to the holder does not work.
    #[error("cannot receive machines: {}; start farfork vm serve again", words::words(.0.raw_os_error()))]
    Channel(Errno),
    /// Something else started it.
    #[error(
        "cannot serve machines: the first message is not from farfork vm serve of this version"
    )]
    Protocol,
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Serves the machines that the holder sends over `channel` until the holder has closed it and all have
/// ended.
///
/// # Errors
/// [`ServerError`].
pub fn serve(channel: OwnedFd) -> Result<(), ServerError> {
    let channel = Arc::new(channel);
    let (source, mut hot) = match receive_first(&channel)? {
        First::Serve(source, hot) => (*source, hot),
        First::Guard(machine, sockets) => {
            guard::run(&channel, machine, sockets);
            return Ok(());
        }
    };
    let source = Arc::new(source);
    report(&channel, &Report::Ready);
    let cached = AtomicU64::new(0);
    let machines = Sockets::default();
    thread::scope(|threads| {
        loop {
            refresh(threads, &source, &hot, &cached);
            let received = channel::receive(&*channel, RecvFlags::empty());
            let Some((command, descriptors)) = received.map_err(ServerError::Channel)? else {
                guarded(threads, &machines);
                return Ok(());
            };
            let (machine, taken) = match command {
                Command::Serve { .. } | Command::Guard { .. } => return Err(ServerError::Protocol),
                Command::Hot => {
                    hot = other_hot(&source, descriptors)?;
                    // Not a number of pages: they are read anew.
                    cached.store(u64::MAX, Ordering::Relaxed);
                    continue;
                }
                Command::Adopt {
                    machine,
                    memory_bytes,
                    regions,
                    is_fresh,
                    is_filled,
                    withheld,
                } => {
                    let replay = match is_filled {
                        true => Replay::default(),
                        false => Replay::of(hot.ranges_but(withheld)),
                    };
                    let regions = (regions, memory_bytes);
                    (machine, take(&source, regions, descriptors, (replay, is_fresh)))
                }
            };
            let channel = Arc::clone(&channel);
            match taken {
                Err(errno) => {
                    let failed = Some(words::words(errno.raw_os_error()).to_owned());
                    report(
                        &channel,
                        &Report::Ended { machine, failed, counters: Counters::default() },
                    );
                }
                Ok(taken) => {
                    machines.add(machine, &taken);
                    let machines = &machines;
                    threads.spawn(move || {
                        run(&channel, machine, taken);
                        machines.remove(machine);
                    });
                }
            }
        }
    })
}

/// Sockets of machines that are served.
#[derive(Default)]
struct Sockets(Mutex<BTreeMap<u64, OwnedFd>>);

impl Sockets {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, OwnedFd>> {
        locked(&self.0)
    }

    fn add(&self, number: u64, machine: &Machine) {
        if let Ok(socket) = machine.socket().try_clone() {
            self.all().insert(number, socket);
        }
    }

    fn remove(&self, number: u64) {
        self.all().remove(&number);
    }
}

/// The holder has ended. If it was killed, machines are left, and no process would start the next server.
fn guarded<'s>(threads: &'s thread::Scope<'s, '_>, machines: &'s Sockets) {
    let left = machines.all();
    if left.is_empty() {
        return;
    }
    // What reads it may be gone as well.
    let _ = writeln!(
        io::stderr(),
        "farfork: farfork vm serve was killed; its server goes on with {} machines, and takes no new ones",
        left.len()
    );
    match Guard::start(left.iter().map(|(machine, socket)| (*machine, socket))) {
        // Until the last machine has ended.
        Ok(guard) => drop(threads.spawn(move || {
            while !machines.all().is_empty() {
                thread::sleep(Duration::from_millis(50));
            }
            drop(guard);
        })),
        Err(error) => drop(writeln!(
            io::stderr(),
            "farfork: cannot start a process that ends the machines should this one be killed: {}",
            words::of(&error)
        )),
    }
}

/// Serves a machine to its end.
fn run(channel: &OwnedFd, machine: u64, mut taken: Machine) {
    let filled = |counters| report(channel, &Report::Filled { machine, counters });
    let failed = match taken.run(filled) {
        Ending::Ended => None,
        Ending::Failed(why) => Some(why),
    };
    let counters = taken.counters();
    drop(taken);
    report(channel, &Report::Ended { machine, failed, counters });
}

/// Has hot pages read that have come since this was done last. Machines that come meanwhile do without.
fn refresh<'s>(
    threads: &'s thread::Scope<'s, '_>,
    source: &Arc<Source>,
    hot: &HotPages,
    cached: &'s AtomicU64,
) {
    let count = hot.count();
    if cached.swap(count, Ordering::Relaxed) == count {
        return;
    }
    let (source, ranges) = (Arc::clone(source), hot.ranges());
    threads.spawn(move || {
        source.cache.replace(Cache::read(&source.snapshot, &source.file, &ranges));
    });
}

/// Hot pages that take the place of those before.
fn other_hot(source: &Source, descriptors: Vec<OwnedFd>) -> Result<HotPages, ServerError> {
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| ServerError::Protocol)?;
    let hot = HotPages::open(file, source.snapshot.map.memory_bytes());
    hot.map_err(|_| ServerError::Protocol)
}

/// What this process is to be.
enum First {
    Serve(Box<Source>, HotPages),
    Guard(u64, Vec<OwnedFd>),
}

fn receive_first(channel: impl AsFd) -> Result<First, ServerError> {
    let received = channel::receive(channel, RecvFlags::empty()).map_err(ServerError::Channel)?;
    let (cid, replays, descriptors) = match received {
        Some((Command::Serve { version: VERSION, cid, replays }, descriptors)) => {
            (cid, replays, descriptors)
        }
        Some((Command::Guard { machine }, descriptors)) => {
            return Ok(First::Guard(machine, descriptors));
        }
        _ => return Err(ServerError::Protocol),
    };
    let cid = cid.parse().map_err(|_| ServerError::Protocol)?;
    let mut files = descriptors.into_iter();
    let (Some(image), Some(hot), far, None) =
        (files.next(), files.next(), files.next(), files.next())
    else {
        return Err(ServerError::Protocol);
    };
    let file = ImageFile::handed_over(File::from(image), cid);
    let file = match far {
        Some(far) => file.and_then(|file| file.with_far_file(File::from(far))),
        None => file,
    };
    let file = file.map_err(|_| ServerError::Protocol)?;
    let snapshot = Snapshot::read_from(&file)?;
    let hot = HotPages::open(hot, snapshot.map.memory_bytes());
    let (cache, turns) = (Shared::default(), Turns::new(replays));
    let source = Source { snapshot, file, cache, turns };
    Ok(First::Serve(Box::new(source), hot.map_err(|_| ServerError::Protocol)?))
}

fn take(
    source: &Arc<Source>,
    (regions, memory_bytes): (Vec<Region>, u64),
    descriptors: Vec<OwnedFd>,
    replay: (Replay, bool),
) -> Result<Machine, Errno> {
    let regions = match regions.is_empty() {
        true => Regions::default(),
        false => Regions::checked(&regions, memory_bytes).map_err(|_| Errno::INVAL)?,
    };
    let [userfault, socket, ledger]: [OwnedFd; 3] =
        descriptors.try_into().map_err(|_| Errno::BADF)?;
    let ledger = Ledger::open(ledger, memory_bytes).map_err(|_| Errno::INVAL)?;
    Machine::new((userfault, socket), regions, ledger, Arc::clone(source), replay)
}

/// A holder that is gone is found out when the next machine is received.
fn report(channel: impl AsFd, report: &Report) {
    let _ = channel::send(channel, report, &[]);
}
