//! `farfork vm serve`.

use std::error::Error;
use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode, Stdio};

use farfork_image::vm::Snapshot;
use farfork_pageserver::{Event, Holder, Record, Recording};
use farfork_pool::Pool;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::{events, files, record};
use crate::CommandResult;

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
    let file = files::open(pool, image)?;
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
        if let Err(refused) = record::add(pool, cid, &needed) {
            eprintln!("farfork: the pages that the machine needed were not recorded: {refused}");
        }
    };
    let recording = Recording { record, known: record::known(pool, cid)?, save: &mut save };
    let mut holder = Holder::listen(socket, (&snapshot, &file), &mut start, &mut show, recording)?;
    holder.run(signals.as_fd())?;
    Ok(ExitCode::SUCCESS)
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
