//! `farfork vm`: snapshots of virtual machines.

mod events;
mod files;
mod map;
mod metrics;
pub(crate) mod record;
mod serve;
mod show;
mod signals;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_image::catalog::ImageName;
use farfork_pageserver::Record;

use crate::CommandResult;
use crate::pool::PoolArg;

pub(crate) use show::Description;

/// What to do with snapshots of virtual machines.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Import a Firecracker snapshot, and print the id of its image. Pages of zeros are not stored.
    Import(files::Import),
    /// Export a snapshot to the two files that were imported, bit for bit, or its state alone.
    Export {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// State file to write. An existing file is replaced when the new one is complete.
        snapshot: PathBuf,
        /// Memory file to write. Pages of zeros become holes. Default: no memory is written, as for "farfork vm serve".
        memfile: Option<PathBuf>,
    },
    /// Write a snapshot anew, so that the pages that its machines were seen to need lie beside each other, in
    /// this order, and print the id of the new image. Then "farfork images tier" can move the others to another
    /// node. The old image is removed with its last name.
    Repack {
        #[command(flatten)]
        pool: PoolArg,
        /// Name of the image.
        name: ImageName,
    },
    /// Show what a snapshot takes.
    Show {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Fill the memory of virtual machines that restore a snapshot with Firecracker's memory backend
    /// Uffd. Prints the path of the socket when monitors can connect. The first SIGINT or SIGTERM ends it
    /// when all machines have ended, the second kills their monitors. A guest that is loaded paused, and resumed
    /// when its machine is filled, does not wait for pages that earlier machines needed.
    Serve {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// Unix socket to listen at: the backend_path of Firecracker's snapshot/load.
        #[arg(long, value_name = "PATH")]
        socket: PathBuf,
        /// Record which pages each machine needs, so that later ones have them before they ask, and pages that machines do
        /// not need any more are forgotten: each has to ask for one in 64 of the recorded pages. Default: record
        /// machines until one has ended.
        #[arg(long, conflicts_with = "no_record")]
        record: bool,
        /// Record nothing.
        #[arg(long)]
        no_record: bool,
        /// Fill so many machines at once with the pages that earlier machines needed. Others wait for their turn, in the order
        /// in which they came; their faults are answered meanwhile. Default: the number of processors.
        #[arg(long, value_name = "MACHINES")]
        fill_at_once: Option<NonZeroUsize>,
        /// Serve metrics at http://ADDRESS/metrics, to everyone who reaches it. Counts of faults and pages are those of
        /// machines that have ended.
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<SocketAddr>,
        /// Print one JSON document for each event on stdout, in place of lines on stderr. "event" is
        /// metrics, listening, started, filled, adapted, ended, refused, failed, replaced, stopping or killed.
        #[arg(long)]
        json: bool,
    },
    /// Show a snapshot as the files "memory", for Firecracker's memory backend File, and "state" in a directory, and
    /// print the path of the first. Machines share its pages in the page cache as long as they only read them. Pages that
    /// earlier machines needed, as "farfork vm serve" has recorded them, are read in advance. The first SIGINT or
    /// SIGTERM ends it when no machine uses a file, the second at once: accesses to pages that are not in the cache
    /// then end in SIGBUS.
    Map(map::Args),
    /// Answer for what another process has mounted. farfork vm map starts it.
    #[command(name = map::SERVER, hide = true)]
    MapPages(map::Served),
    /// Serve what another process holds. farfork vm serve starts it.
    #[command(name = serve::SERVER, hide = true)]
    ServePages,
}

/// Machines that are recorded ask for one in so many hot pages: few enough that it is not felt.
const SHARE: u64 = 64;

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Import(args) => files::import(args)?,
        Command::Export { pool, image, snapshot, memfile } => {
            files::export(&pool.open()?, image, snapshot, memfile.as_deref())?;
        }
        Command::Serve { pool, image, socket, record, no_record, fill_at_once, metrics, json } => {
            let record = match (record, no_record) {
                (true, _) => Record::All { share: SHARE },
                (_, true) => Record::Nothing,
                _ => Record::First,
            };
            let terms = serve::Terms { record, fill_at_once: *fill_at_once, json: *json };
            return serve::run(pool.open()?, image, socket, terms, *metrics);
        }
        Command::Repack { pool, name } => files::repack(&pool.open()?, name)?,
        Command::ServePages => return serve::serve_pages(),
        Command::Map(args) => return map::run(args),
        Command::MapPages(served) => return map::serve(served),
        Command::Show { pool, image, json } => show::run(&pool.open()?, image, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}
