//! `farfork region`: files for objects in shared memory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use farfork::{Check, GuardLibrary, Info, Metadata, Node, Region, SPAN_BYTES};
use farfork_pool::Pool;
use farfork_types::align_up;

use crate::output::print_json;
use crate::{CommandResult, size};
use farfork_types::printable;

/// A region has whole pages.
const PAGE_BYTES: u64 = 4096;
/// Directory of metadata in this node's memory.
const NODE_LOCAL: &str = "/dev/shm";

/// What to do with a region.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a region: a file that programs open with ff_open.
    Create {
        #[command(flatten)]
        place: Place,
        /// Size of the file, e.g. 64M. All of it is taken at once.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// Let clients find misuse: double frees, writes beyond objects or after their free, foreign pointers, stale references,
        /// lost ids. Each object takes 16 bytes more, and calls are slower.
        #[arg(long)]
        checked: bool,
        /// Where to keep clients and owners of objects: in the region, or in a file of this node's memory (/dev/shm), which is faster
        /// if the region lies in slow memory. A lost file is rebuilt; messages and what they reach live on. Not with --pool.
        #[arg(long, value_enum, default_value_t = Placement::Region)]
        metadata: Placement,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Show space, clients and mailboxes.
    Info {
        #[command(flatten)]
        place: Place,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Recover dead clients, and account for every object. Fails if objects are lost, double or foreign.
    Check {
        #[command(flatten)]
        place: Place,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Recover clients as soon as they die, until this process is ended. Without it, they are recovered when another
    /// client opens the region or needs memory.
    Watch {
        #[command(flatten)]
        place: Place,
    },
    /// Watch, and complete guarded operations of dead clients with a library that has their code, until this process is
    /// ended. A process that exceeds an operation's grace period is killed. The code runs with the rights of this command.
    Guard {
        #[command(flatten)]
        place: Place,
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
        #[command(flatten)]
        place: Place,
    },
}

/// Where a region's metadata lies.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    /// Beside the objects.
    Region,
    /// In this node's memory.
    Node,
}

/// Where a region lies.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// A file, on a tmpfs such as /dev/shm or on a DAX file system. With --pool, USER/NAME: a region of that user.
    #[arg(value_name = "REGION")]
    path: PathBuf,
    /// The pool that has the region. Its bytes count towards what the user may have there.
    #[arg(long, value_name = "DIR")]
    pool: Option<PathBuf>,
}

impl Place {
    fn path(&self) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let Some((pool, user, name)) = self.in_pool()? else {
            return Ok(std::path::absolute(&self.path)?);
        };
        Ok(pool.region_path(user, name)?)
    }

    /// The pool, the user and the name.
    #[allow(clippy::type_complexity)] // reason: used once
    fn in_pool(&self) -> Result<Option<(Pool, &str, &str)>, Box<dyn std::error::Error>> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let given = self.path.display();
        let names = self.path.to_str().and_then(|path| path.split_once('/'));
        let (user, name) = names.ok_or_else(|| {
            format!("invalid region '{given}' of a pool (expected USER/NAME, e.g. guest/points)")
        })?;
        Ok(Some((Pool::open(&std::path::absolute(pool)?)?, user, name)))
    }
}

fn create(
    place: &Place,
    size: u64,
    is_checked: bool,
    placement: Placement,
) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let (unit, metadata) = match placement {
        Placement::Region => (PAGE_BYTES, Metadata::Region),
        Placement::Node => (SPAN_BYTES, Metadata::Node(NODE_LOCAL.into())),
    };
    let bytes = align_up(size, unit);
    let path = place.path()?;
    let Some((pool, user, name)) = place.in_pool()? else {
        Region::create_with(&path, bytes, is_checked, &metadata)?;
        return Ok(path);
    };
    if placement == Placement::Node {
        return Err(format!(
            "cannot create region {user}/{name} with its metadata in node-local memory: instances of functions do not \
             see this node's {NODE_LOCAL}; leave out --metadata, or give a path without --pool"
        )
        .into());
    }
    Region::check_size(&path, bytes)?;
    let mut writer = pool.begin(Some(user))?;
    let file = writer.reserve_region(bytes)?;
    Region::fill(file, &path, bytes, is_checked)?;
    Ok(writer.publish_region(name)?)
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Create { place, size, checked, metadata, json } => {
            let path = create(place, *size, *checked, *metadata)?;
            match json {
                true => print_json(&info(&path)?)?,
                false => println!("{}", path.display()),
            }
        }
        Command::Info { place, json } => {
            let info = info(&place.path()?)?;
            match json {
                true => print_json(&info)?,
                false => print_info(&info),
            }
        }
        Command::Check { place, json } => return check(&place.path()?, *json),
        Command::Watch { place } => {
            // A signal ends it; nothing has to be put in order.
            Region::<Node>::open(&place.path()?)?.watch(&AtomicBool::new(false))?;
        }
        Command::Guard { place, library, grace } => {
            let library = GuardLibrary::load(library)?;
            let register = |region: &Region| library.register(region, *grace);
            farfork::guard(&place.path()?, &register, &AtomicBool::new(false))?;
        }
        Command::Destroy { place } => Region::destroy(&place.path()?)?,
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
    let kind = if info.checked { "checked region" } else { "region" };
    println!("{kind} {}: {} at {:#x}", info.uuid, size::show(info.bytes), info.address);
    println!(
        "{} objects, {} of them in mailboxes; {} of {} free, {} whole spans of 64K",
        info.objects,
        info.objects_in_mailboxes,
        size::show(info.free_bytes),
        size::show(info.data_bytes),
        info.spans_free
    );
    if let Some(metadata) = &info.metadata {
        println!(
            "metadata in {}: {}, made {} times",
            metadata.path.display(),
            size::show(metadata.bytes),
            metadata.generation
        );
    }
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
    if check.unreachable > 0 {
        println!(
            "{} objects in circles that nothing holds: a program linked them, and they stay until the region is destroyed",
            check.unreachable
        );
    }
    println!("{} dead clients recovered", check.clients_recovered);
}
