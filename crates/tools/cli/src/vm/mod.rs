//! `farfork vm`: snapshots of virtual machines.

mod events;
mod files;
mod record;
mod serve;
mod show;

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
    Import {
        #[command(flatten)]
        pool: PoolArg,
        /// Name of the image: USER/FUNCTION[:TAG]. An existing name of a snapshot moves to the new image,
        /// and the old image is removed with its last name.
        #[arg(long)]
        name: ImageName,
        /// State file of the virtual machine.
        snapshot: PathBuf,
        /// Memory file of the virtual machine.
        memfile: PathBuf,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Export a snapshot to the two files that were imported, bit for bit.
    Export {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// State file to write. An existing file is replaced when the new one is complete.
        snapshot: PathBuf,
        /// Memory file to write. Pages of zeros become holes.
        memfile: PathBuf,
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
        /// Record which pages each machine needs, so that later ones have them before they ask. Default:
        /// record machines until one has ended.
        #[arg(long, conflicts_with = "no_record")]
        record: bool,
        /// Record nothing.
        #[arg(long)]
        no_record: bool,
        /// Print one JSON document for each event on stdout, in place of lines on stderr. "event" is
        /// listening, started, filled, ended, refused, failed, replaced, stopping or killed.
        #[arg(long)]
        json: bool,
    },
    /// Serve what another process holds. farfork vm serve starts it.
    #[command(name = serve::SERVER, hide = true)]
    ServePages,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Import { pool, name, snapshot, memfile, json } => {
            files::import(&pool.open()?, name, snapshot, memfile, *json)?;
        }
        Command::Export { pool, image, snapshot, memfile } => {
            files::export(&pool.open()?, image, snapshot, memfile)?;
        }
        Command::Serve { pool, image, socket, record, no_record, json } => {
            let record = match (record, no_record) {
                (true, _) => Record::All,
                (_, true) => Record::Nothing,
                _ => Record::First,
            };
            return serve::run(&pool.open()?, image, socket, record, *json);
        }
        Command::Repack { pool, name } => files::repack(&pool.open()?, name)?,
        Command::ServePages => return serve::serve_pages(),
        Command::Show { pool, image, json } => show::run(&pool.open()?, image, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}
