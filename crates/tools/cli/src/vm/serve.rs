//! `farfork vm serve`.

use std::collections::HashSet;
use std::error::Error;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode, Stdio};

use farfork_image::vm::Snapshot;
use farfork_pageserver::{Event, Holder, Record, Recording};
use farfork_pool::{PageBits, Pool, PoolError};
use farfork_types::Cid;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::events;
use crate::{CommandResult, restore};

/// The command that serves what this one holds.
pub(super) const SERVER: &str = "serve-pages";

/// Holds machines, and has a process of this program serve them.
pub(super) fn run(
    pool: &Pool,
    image: &str,
    socket: &Path,
    record: Record,
    json: bool,
) -> CommandResult {
    let file = pool.find(restore::resolve(pool, image)?)?;
    let snapshot = Snapshot::read_from(&file)?;
    let signals = signals()?;
    let mut start = |channel: OwnedFd| {
        let mut command = process::Command::new("/proc/self/exe");
        // Keys that interrupt this process must not kill the server first.
        command.args(["vm", SERVER]).process_group(0);
        command.stdin(Stdio::from(channel)).stdout(Stdio::null()).spawn()
    };
    let mut show = |event: Event| match event {
        event if json => println!("{}", events::json(&event)),
        Event::Listening { path } => println!("{}", path.display()),
        event => eprintln!("{event}"),
    };
    let cid = file.id.cid;
    let mut save = |needed: Vec<u32>| {
        let saved = pool
            .add_users_bits(cid, &bits_of(&needed))
            .and_then(|()| pool.add_access_order(cid, &needed));
        if let Err(refused) = saved {
            eprintln!("farfork: the pages that the machine needed were not recorded: {refused}");
        }
    };
    let recording = Recording { record, known: known(pool, cid)?, save: &mut save };
    let mut holder = Holder::listen(socket, (&snapshot, &file), &mut start, &mut show, recording)?;
    holder.run(signals.as_fd())?;
    Ok(ExitCode::SUCCESS)
}

/// Pages that machines needed before, in order; last those whose order is not known.
fn known(pool: &Pool, cid: Cid) -> Result<Vec<u32>, PoolError> {
    let accessed = pool.access(cid)?.accessed;
    let is_set = |page: u32| {
        accessed.get(page as usize / 64).is_some_and(|word| word >> (page % 64) & 1 != 0)
    };
    let mut known = pool.access_order(cid)?;
    known.retain(|page| is_set(*page));
    let ordered: HashSet<u32> = known.iter().copied().collect();
    let pages = 0..accessed.len() as u32 * 64;
    known.extend(pages.filter(|page| is_set(*page) && !ordered.contains(page)));
    Ok(known)
}

fn bits_of(pages: &[u32]) -> PageBits {
    let words = pages.iter().max().map_or(0, |last| *last as usize / 64 + 1);
    let mut accessed = vec![0; words];
    pages.iter().for_each(|page| accessed[*page as usize / 64] |= 1 << (page % 64));
    PageBits { accessed, ..PageBits::default() }
}

/// Interrupts and requests to end, from here on to be read.
fn signals() -> Result<SignalFd, Box<dyn Error>> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    let failed = |_| "cannot wait for signals";
    set.thread_block().map_err(failed)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&set, flags).map_err(failed)?)
}

/// Serves what a holder sends over stdin.
pub(super) fn serve_pages() -> CommandResult {
    farfork_pageserver::serve(stdin().as_fd().try_clone_to_owned()?)?;
    Ok(ExitCode::SUCCESS)
}
