//! `farfork hot`.

use std::error::Error;
use std::process::ExitCode;

use farfork_image::format::Image;
use farfork_image::model::{Member, Model};
use farfork_pages::{Access, PageSet, place_of};
use farfork_pool::{PageBits, Pool};
use farfork_types::Cid;
use farfork_types::wire::AddressRange;

use crate::pool::PoolArg;
use crate::{CommandResult, named};

/// What to do with declared hot memory.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Declare memory hot.
    Set(Args),
    /// Undo "farfork hot set". Without ranges, for the whole image.
    Clear(Args),
}

/// Which memory.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pool: PoolArg,
    /// Name or id of the image.
    image: String,
    /// Hexadecimal addresses in the first process of the image, as in /proc/PID/maps. In a tree,
    /// PID:START-END names another process. Ranges are widened to whole pages.
    #[arg(value_name = "START-END")]
    ranges: Vec<AddressRange>,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    let (Command::Set(args) | Command::Clear(args)) = command;
    let pool = args.pool.open()?;
    let cid = named::resolve(&pool, &args.image)?;
    match command {
        Command::Set(_) if args.ranges.is_empty() => {
            return Ok(crate::usage_error("hot set needs the addresses of hot memory: START-END"));
        }
        Command::Set(_) => {
            let pages = declare(&pool, cid, &args.ranges)?;
            eprintln!("{pages} pages declared hot");
        }
        Command::Clear(_) if args.ranges.is_empty() => {
            let all = pool.access(cid)?.hot;
            if all.iter().any(|word| *word != 0) {
                pool.clear_hot(cid, &all)?;
            }
        }
        Command::Clear(_) => {
            let image = Image::read(&pool, cid)?;
            pool.clear_hot(cid, pages(&image.model, &args.ranges)?.words())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Declares memory of the image `cid` hot; returns how many pages that are.
pub(crate) fn declare(
    pool: &Pool,
    cid: Cid,
    ranges: &[AddressRange],
) -> Result<u64, Box<dyn Error>> {
    let image = Image::read(pool, cid)?;
    let hot = pages(&image.model, ranges)?;
    let count = hot.len();
    let access = Access { hot, ..Access::default() };
    pool.add_users_bits(cid, &PageBits::from(&access))?;
    Ok(count)
}

/// The pages of all ranges. Fails for a range that the image does not have.
fn pages(model: &Model, ranges: &[AddressRange]) -> Result<PageSet, Box<dyn Error>> {
    let mut all = PageSet::new();
    for range in ranges {
        all.merge(&pages_of(model, range)?);
    }
    Ok(all)
}

fn pages_of(model: &Model, range: &AddressRange) -> Result<PageSet, Box<dyn Error>> {
    let member = member(model, range.process)?;
    let (AddressRange { start, end, .. }, pid) = (*range, member.process.pid);
    let pages = place_of(member, start..end).ok_or_else(|| {
        format!(
            "process {pid} of the image has no memory at {start:x}-{end:x}; see /proc/PID/maps of \
             the parent"
        )
    })?;
    if pages.is_empty() {
        let why = "it is shared memory, was never touched, or is copied for every clone";
        return Err(format!("no page at {start:x}-{end:x} is mapped from the pool: {why}").into());
    }
    Ok(pages)
}

fn member(model: &Model, pid: Option<u32>) -> Result<&Member, String> {
    let Some(pid) = pid else { return Ok(model.root()) };
    let is_it = |member: &&Member| member.process.pid == pid;
    model.members.iter().find(is_it).ok_or_else(|| {
        format!("the image has no process {pid}; \"farfork images show\" lists its processes")
    })
}
