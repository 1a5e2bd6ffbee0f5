//! `farfork checkpoint`.

use std::error::Error;
use std::process::ExitCode;

use farfork_checkpoint::refuse::Refusal;
use farfork_checkpoint::{Checkpoint, CheckpointError, Fate};
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::format::Image;
use farfork_pool::{Pool, PoolError};
use farfork_sys::network_lock;
use farfork_types::Cid;
use serde::Serialize;

use crate::output::print_json;
use crate::pool::PoolArg;
use crate::progress::Background;
use crate::{CommandResult, size};

/// What to checkpoint, and under which name.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// The process.
    #[arg(long)]
    pid: i32,
    /// USER/FUNCTION[:TAG]; an existing name moves to the new image, and the old one goes when
    /// no other name holds it.
    #[arg(long, required_unless_present = "dry_run")]
    name: Option<ImageName>,
    /// End the process at the moment that the image shows.
    #[arg(long)]
    kill: bool,
    /// Keep open TCP connections for a clone in the process's place, which goes on with them:
    /// farfork restore --pid-mode same. Until then their peers hear nothing.
    #[arg(long, requires = "kill")]
    tcp_established: bool,
    /// List everything that would be refused, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn fate(&self) -> Fate {
        match (self.kill, self.tcp_established) {
            (false, _) => Fate::GoesOn,
            (true, false) => Fate::Dies,
            (true, true) => Fate::HandsOver,
        }
    }
}

#[derive(Serialize)]
struct Made {
    cid: String,
    name: String,
    copied_bytes: u64,
    pool_bytes: u64,
    frozen_us: u64,
    copying_us: u64,
    total_us: u64,
}

#[derive(Serialize)]
struct Refused {
    refusals: Vec<Refusal>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let Some(name) = args.name.as_ref().filter(|_| !args.dry_run) else {
        return dry_run(args);
    };
    let pool = args.pool.open()?;
    let made = match checkpoint(&pool, args) {
        Err(CheckpointError::Refused(refusals)) if args.json => {
            eprintln!("farfork: {}", CheckpointError::Refused(refusals.clone()));
            print_json(&Refused { refusals })?;
            return Ok(ExitCode::FAILURE);
        }
        other => other?,
    };
    publish(&pool, name, made.cid)?;
    made.settle()?;
    report(name, &made, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Checkpoints, and shows on a terminal how far that is.
fn checkpoint(pool: &Pool, args: &Args) -> Result<Checkpoint, CheckpointError> {
    let shown = (!args.json).then(|| Background::start("checkpointing")).flatten();
    farfork_checkpoint::checkpoint(pool, args.pid, args.fate(), &mut |done, all| {
        if let Some(shown) = &shown {
            shown.bytes(done, all);
        }
    })
}

fn dry_run(args: &Args) -> CommandResult {
    let refusals = farfork_checkpoint::dry_run(args.pid, args.fate())?;
    let is_clear = refusals.is_empty();
    for refusal in refusals.iter().filter(|_| !args.json) {
        println!("{refusal}");
    }
    if args.json {
        print_json(&Refused { refusals })?;
    } else if is_clear {
        println!("process {} can be checkpointed", args.pid);
    }
    Ok(if is_clear { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives the image its name; an image that loses its last name goes.
pub(crate) fn publish(pool: &Pool, name: &ImageName, cid: Cid) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::open(pool)?;
    let Some(old) = catalog.set(name, cid)?.filter(|old| *old != cid) else { return Ok(()) };
    if catalog.names_of(old)?.is_empty() {
        remove(pool, old)?;
    }
    Ok(())
}

/// Removes an image that may be gone already, and lets its connections end.
pub(crate) fn remove(pool: &Pool, cid: Cid) -> Result<(), PoolError> {
    if let Ok(image) = Image::read(pool, cid)
        && let Some(connection) = image.model.connections().next()
    {
        // Gone already when a clone has gone on with them.
        let _ = network_lock::unlock(None, &connection.lock);
    }
    match pool.remove(cid) {
        Err(PoolError::NoImage { .. }) => Ok(()),
        other => other,
    }
}

fn report(name: &ImageName, made: &Checkpoint, json: bool) -> Result<(), Box<dyn Error>> {
    let micros = |duration: std::time::Duration| duration.as_micros() as u64;
    if json {
        print_json(&Made {
            cid: made.cid.to_string(),
            name: name.to_string(),
            copied_bytes: made.copied_bytes,
            pool_bytes: made.pool_bytes,
            frozen_us: micros(made.frozen),
            copying_us: micros(made.copying),
            total_us: micros(made.total),
        })?;
        return Ok(());
    }
    println!("{}", made.cid);
    eprintln!(
        "{name}: {} copied, {} of the pool; frozen {:.1} ms, {:.1} ms in all",
        size::show(made.copied_bytes),
        size::show(made.pool_bytes),
        made.frozen.as_secs_f64() * 1e3,
        made.total.as_secs_f64() * 1e3,
    );
    Ok(())
}
