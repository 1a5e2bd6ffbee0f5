//! `farfork vm serve`.

use std::io::stdin;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode, Stdio};

use farfork_image::vm::Snapshot;
use farfork_pageserver::{Event, Holder, Learnt, Record, Recording};
use farfork_pool::Pool;
use serde_json::json;

use super::metrics::Metrics;
use super::{events, files, record, signals};
use crate::CommandResult;

/// The command that serves what this one holds.
pub(super) const SERVER: &str = "serve-pages";

/// How machines are served, and what is printed.
pub(super) struct Terms {
    /// Which machines to record.
    pub(super) record: Record,
    /// How many machines to fill at once; as many as there are processors if it is not given.
    pub(super) fill_at_once: Option<NonZeroUsize>,
    /// Whether events are JSON documents.
    pub(super) json: bool,
}

/// Holds machines, and has a process of this program serve them.
pub(super) fn run(
    pool: Pool,
    image: &str,
    socket: &Path,
    Terms { record, fill_at_once, json }: Terms,
    metrics: Option<SocketAddr>,
) -> CommandResult {
    let (served, file) = files::borrow(pool, image)?;
    let pool = served.image().pool();
    let snapshot = Snapshot::read_from(&file)?;
    let signals = signals::blocked()?;
    let metrics = metrics.map(Metrics::serve).transpose()?;
    if let Some((_, address)) = &metrics {
        match json {
            true => println!("{}", json!({ "event": "metrics", "address": address })),
            false => eprintln!("metrics are at http://{address}/metrics"),
        }
    }
    let mut start = |channel: OwnedFd| {
        let mut command = process::Command::new("/proc/self/exe");
        // Keys that interrupt this process must not kill the server first.
        command.args(["vm", SERVER]).process_group(0);
        command.stdin(Stdio::from(channel)).stdout(Stdio::null()).spawn()
    };
    let mut show = |event: Event| {
        if let Some((metrics, _)) = &metrics {
            metrics.note(&event);
        }
        match event {
            event if json => println!("{}", events::json(&event)),
            Event::Listening { path } => println!("{}", path.display()),
            event => eprintln!("{event}"),
        }
    };
    let cid = file.id.cid;
    let mut save = |learnt: Learnt| {
        if let Err(refused) = record::put(pool, cid, &learnt.hot, learnt.forgotten > 0) {
            eprintln!("farfork: the pages that machines need were not recorded: {refused}");
        }
    };
    let recording = Recording { record, known: record::known(pool, cid)?, save: &mut save };
    let mut holder = Holder::listen(socket, (&snapshot, &file), &mut start, &mut show, recording)?;
    if let Some(machines) = fill_at_once {
        holder = holder.with_replays(machines.get());
    }
    holder.run(signals.as_fd())?;
    Ok(ExitCode::SUCCESS)
}

/// Serves what a holder sends over stdin.
pub(super) fn serve_pages() -> CommandResult {
    farfork_pageserver::serve(stdin().as_fd().try_clone_to_owned()?)?;
    Ok(ExitCode::SUCCESS)
}
