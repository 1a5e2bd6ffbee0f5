//! `farfork checkpoint`.

use std::error::Error;
use std::process::ExitCode;

use farfork_checkpoint::refuse::Refusal;
use farfork_checkpoint::{
    Checkpoint, CheckpointError, CheckpointOptions, Disposition, External, Target,
};
use farfork_image::catalog::{Catalog, ImageName};
use farfork_pool::{Pool, PoolError};
use farfork_types::Cid;
use farfork_types::wire::{AddressRange, InheritedFd, Verified};
use serde::Serialize;

use crate::output::print_json;
use crate::pool::PoolArg;
use crate::progress::Background;
use crate::trial::{self, TrialArgs};
use crate::{CommandResult, error_text, hot, named, size};

/// What to checkpoint, and under which name.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// Pid of the process.
    #[arg(long)]
    pid: i32,
    /// Name of the image: USER/FUNCTION[:TAG]. An existing name moves to the new image, and the old
    /// image is removed with its last name.
    #[arg(long, required_unless_present = "dry_run")]
    name: Option<ImageName>,
    /// Checkpoint all descendants of the process, too. The tree is one image and becomes one clone.
    #[arg(long)]
    tree: bool,
    /// Kill the process at the moment that the image shows.
    #[arg(long)]
    kill: bool,
    /// Keep established TCP connections for one clone (farfork restore --pid-mode same). Until it
    /// starts, no packets of theirs are sent or received.
    #[arg(long, requires = "kill")]
    tcp_established: bool,
    /// Carry contexts of Linux AIO. You assert that no request is in flight: a clone would never see
    /// its completion.
    #[arg(long)]
    aio_idle: bool,
    /// Make descriptor N external, whatever it is: the caller of farfork restore supplies each clone with
    /// one of its own (--inherit-fd N=PATH).
    #[arg(long, value_name = "N")]
    external_fd: Option<u32>,
    /// Declare these addresses of the process hot, as farfork hot set does.
    #[arg(long = "hot", value_name = "START-END", num_args = 1..)]
    hot: Vec<AddressRange>,
    /// List all reasons to refuse, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    trial: TrialArgs,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn target(&self) -> Target {
        if self.tree { Target::Tree(self.pid) } else { Target::Process(self.pid) }
    }

    fn terms(&self) -> CheckpointOptions {
        let disposition = match (self.kill, self.tcp_established) {
            (false, _) => Disposition::Continue,
            (true, false) => Disposition::Kill,
            (true, true) => Disposition::HandOver,
        };
        CheckpointOptions { disposition, aio_is_idle: self.aio_idle, supplied: self.external_fd }
    }
}

#[derive(Serialize)]
struct Made {
    cid: String,
    name: String,
    processes: usize,
    copied_bytes: u64,
    pool_bytes: u64,
    frozen_us: u64,
    copying_us: u64,
    total_us: u64,
    external: Vec<External>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verified>,
}

#[derive(Serialize)]
struct Refused {
    refusals: Vec<Refusal>,
}

/// The space that the pool lacks.
#[derive(Serialize)]
struct NoRoom {
    asked_bytes: u64,
    free_bytes: u64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let Some(name) = args.name.as_ref().filter(|_| !args.dry_run) else {
        return dry_run(args);
    };
    let path = args.pool.path()?;
    let pool = Pool::open(&path)?;
    let made = match checkpoint(&pool, args) {
        Err(CheckpointError::Refused(refusals)) if args.json => {
            eprintln!("farfork: {}", CheckpointError::Refused(refusals.clone()));
            print_json(&Refused { refusals })?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error) if args.json => {
            if let Some(&PoolError::Full { asked, free, .. }) = error.pool() {
                print_json(&NoRoom { asked_bytes: asked, free_bytes: free })?;
            }
            return Err(error.into());
        }
        other => other?,
    };
    let trial = args.trial.wanted(args.kill);
    let verified = match trial.map(|trial| trial.run(path, made.cid)).transpose() {
        Ok(verified) => verified,
        Err(error) => {
            let cid = made.cid;
            // Those that were to be killed go on at once.
            drop(made);
            named::remove(&pool, cid)?;
            return Err(trial::refused(args.pid, &*error).into());
        }
    };
    publish(&pool, name, made.cid)?;
    made.settle()?;
    if !args.hot.is_empty()
        && let Err(error) = hot::declare(&pool, made.cid, &args.hot)
    {
        let why = error_text(&*error);
        eprintln!("farfork: the image was created, but its memory was not declared hot: {why}");
    }
    report(name, &made, verified, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Checkpoints, and shows the progress on a terminal.
fn checkpoint(pool: &Pool, args: &Args) -> Result<Checkpoint, CheckpointError> {
    let shown = (!args.json).then(|| Background::start("checkpointing")).flatten();
    let user = args.name.as_ref().map(ImageName::user);
    farfork_checkpoint::checkpoint(pool, user, args.target(), args.terms(), &mut |done, all| {
        if let Some(shown) = &shown {
            shown.bytes(done, all);
        }
    })
}

fn dry_run(args: &Args) -> CommandResult {
    let (model, refusals) = farfork_checkpoint::dry_run(args.target(), args.terms())?;
    let is_clear = refusals.is_empty();
    for refusal in refusals.iter().filter(|_| !args.json) {
        println!("{refusal}");
    }
    let processes = model.map_or(0, |model| model.members.len());
    if args.json {
        print_json(&Refused { refusals })?;
    } else if is_clear && processes > 1 {
        println!("process {} can be checkpointed, {processes} processes in all", args.pid);
    } else if is_clear {
        println!("process {} can be checkpointed", args.pid);
    }
    Ok(if is_clear { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives the image its name. An image that loses its last name is removed.
pub(crate) fn publish(pool: &Pool, name: &ImageName, cid: Cid) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::of(pool);
    let Some(old) = catalog.set(name, cid)?.filter(|old| *old != cid) else { return Ok(()) };
    named::remove(pool, old)?;
    Ok(())
}

fn report(
    name: &ImageName,
    made: &Checkpoint,
    verify: Option<Verified>,
    json: bool,
) -> Result<(), Box<dyn Error>> {
    let micros = |duration: std::time::Duration| duration.as_micros() as u64;
    if json {
        print_json(&Made {
            cid: made.cid.to_string(),
            name: name.to_string(),
            processes: made.processes,
            copied_bytes: made.copied_bytes,
            pool_bytes: made.pool_bytes,
            frozen_us: micros(made.frozen),
            copying_us: micros(made.copying),
            total_us: micros(made.total),
            external: made.external.clone(),
            verify,
        })?;
        return Ok(());
    }
    println!("{}", made.cid);
    let of = if made.processes > 1 {
        format!(" of {} processes", made.processes)
    } else {
        String::new()
    };
    eprintln!(
        "{name}: {} copied{of}, {} of the pool; frozen {:.1} ms, {:.1} ms in all",
        size::show(made.copied_bytes),
        size::show(made.pool_bytes),
        made.frozen.as_secs_f64() * 1e3,
        made.total.as_secs_f64() * 1e3,
    );
    if let Some(verify) = verify {
        trial::show(&verify);
    }
    show_external(&made.external);
    Ok(())
}

fn show_external(external: &[External]) {
    for External { process, fd, what } in external.iter().filter(|own| !own.has_default()) {
        let place = InheritedFd { process: *process, fd: *fd };
        eprintln!(
            "descriptor {place} ({what}) leads outside: clones need it from farfork restore \
             --inherit-fd {place}=PATH"
        );
    }
    let streams = external.iter().filter(|own| own.has_default());
    let streams: Vec<String> = streams.map(|own| format!("{} ({})", own.fd, own.what)).collect();
    if !streams.is_empty() {
        eprintln!("standard streams {} come from the caller of restore", streams.join(", "));
    }
}
