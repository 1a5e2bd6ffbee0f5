//! `farfork region`: files for objects in shared memory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farfork::{Check, GuardLibrary, Info, Node, Region};
use farfork_types::align_up;

use crate::output::print_json;
use crate::{CommandResult, size};
use farfork_types::printable;

/// A region has whole pages.
const PAGE_BYTES: u64 = 4096;

/// What to do with a region.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a region: a file that programs open with ff_open.
    Create {
        /// A file that does not exist yet, on a tmpfs such as /dev/shm, or on a DAX file system.
        path: PathBuf,
        /// Size of the file, e.g. 64M. All of it is taken at once.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Show space, clients and mailboxes.
    Info {
        /// The region.
        path: PathBuf,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Recover dead clients, and account for every object. Fails if objects are lost, double or foreign.
    Check {
        /// The region.
        path: PathBuf,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Recover clients as soon as they die, until this process is ended. Without it, they are recovered when another
    /// client opens the region or needs memory.
    Watch {
        /// The region.
        path: PathBuf,
    },
    /// Watch, and complete guarded operations of dead clients with a library that has their code, until this process is
    /// ended. A process that exceeds an operation's grace period is killed. The code runs with the rights of this command.
    Guard {
        /// The region.
        path: PathBuf,
        /// A shared library with a table "ff_guard_operations", see farfork.h.
        #[arg(long)]
        library: PathBuf,
        /// Longest time that an operation may run, e.g. 500ms or 10s, without waits for locks. 0s: no limit.
        /// Operations that the region does not know yet get 10s.
        #[arg(long, value_parser = duration)]
        grace: Option<Duration>,
    },
    /// Delete a region that no client uses.
    Destroy {
        /// The region.
        path: PathBuf,
    },
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Create { path, size, json } => {
            let path = std::path::absolute(path)?;
            Region::create(&path, align_up(*size, PAGE_BYTES))?;
            match json {
                true => print_json(&info(&path)?)?,
                false => println!("{}", path.display()),
            }
        }
        Command::Info { path, json } => {
            let info = info(path)?;
            match json {
                true => print_json(&info)?,
                false => print_info(&info),
            }
        }
        Command::Check { path, json } => return check(path, *json),
        Command::Watch { path } => {
            // A signal ends it; nothing has to be put in order.
            Region::<Node>::open(path)?.watch(&AtomicBool::new(false))?;
        }
        Command::Guard { path, library, grace } => {
            let library = GuardLibrary::load(library)?;
            let path = std::path::absolute(path)?;
            let register = |region: &Region| library.register(region, *grace);
            farfork::guard(&path, &register, &AtomicBool::new(false))?;
        }
        Command::Destroy { path } => Region::destroy(path)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A time, e.g. 500ms or 10s.
fn duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid time '{text}' (expected e.g. 500ms or 10s)");
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| invalid())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(invalid()),
    }
}

fn info(path: &Path) -> Result<Info, Box<dyn std::error::Error>> {
    Ok(Region::<Node>::open(path)?.info()?)
}

fn print_info(info: &Info) {
    println!("region {}: {} at {:#x}", info.uuid, size::show(info.bytes), info.address);
    println!(
        "{} objects, {} of them in mailboxes; {} of {} free, {} whole spans of 64K",
        info.objects,
        info.objects_in_mailboxes,
        size::show(info.free_bytes),
        size::show(info.data_bytes),
        info.spans_free
    );
    for client in &info.clients {
        let (id, pid, objects) = (client.id, client.pid, client.objects);
        println!("client {id} (pid {pid}): {objects} objects, {}", size::show(client.bytes));
    }
    if info.clients_dead > 0 {
        println!("{} dead clients: the next check recovers them", info.clients_dead);
    }
    let client = |id: u8| if id == 0 { "none".to_owned() } else { id.to_string() };
    for mailbox in &info.mailboxes {
        println!(
            "mailbox {}: {} of {} slots full, sender {}, receiver {}",
            printable(&mailbox.name),
            mailbox.messages,
            mailbox.slots,
            client(mailbox.sender),
            client(mailbox.receiver)
        );
    }
    for operation in &info.operations {
        println!(
            "operation {} version {}: grace period {} ms, {} completed for dead clients, {} abandoned",
            printable(&operation.name),
            operation.version,
            operation.grace_us / 1000,
            operation.completed,
            operation.abandoned
        );
    }
}

fn check(path: &Path, json: bool) -> CommandResult {
    let check = Region::<Node>::open(path)?.check()?;
    if json {
        print_json(&check)?;
    } else {
        print_check(&check);
    }
    if !check.is_clean() {
        return Err(format!(
            "the region at {} is damaged: a client wrote where it must not; make a new region",
            path.display()
        )
        .into());
    }
    Ok(ExitCode::SUCCESS)
}

fn print_check(check: &Check) {
    let Check { bytes, bytes_free, bytes_owned, bytes_in_mailboxes, bytes_linked, .. } = check;
    println!(
        "{bytes} bytes: {bytes_free} free, {bytes_owned} owned, {bytes_in_mailboxes} in mailboxes, \
         {bytes_linked} in structures"
    );
    let Check { owned, in_mailboxes, linked, .. } = check;
    println!("{owned} objects owned, {in_mailboxes} in mailboxes, {linked} in structures");
    println!("{} lost, {} double, {} foreign", check.lost, check.double, check.foreign);
    println!("{} dead clients recovered", check.clients_recovered);
}
