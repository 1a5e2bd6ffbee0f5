//! `farfork images tier` and `pull`: parts of images, and copies, on other nodes.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

use farfork_far::place::Place;
use farfork_far::start;
use farfork_far::{hold, open_far_side};
use farfork_image::catalog::ImageName;
use farfork_image::chunked::Chunked;
use farfork_image::format::far_chunks;
use farfork_image::holds::holder;
use farfork_image::tier::{self, FarNode};
use farfork_node::{node_of, paths};
use farfork_pages::{Access, cold_chunks};
use farfork_pool::{ImageFile, Pool};
use farfork_types::{Cid, PAGE_BYTES};
use rustix::fs::{Advice, fadvise};

use crate::far::{STDIN, TlsArgs, key_file};
use crate::pool::PoolArg;
use crate::progress::Progress;
use crate::vm::record;
use crate::{checkpoint, named, size};

/// Another node, and its key.
#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// File with the key of that node; "images pull" takes - for the first line of stdin. Default: far.key in
    /// the run directory.
    #[arg(long = "far-key", value_name = "FILE", env = "FARFORK_FAR_KEY")]
    key: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Limit of a read from that node, in milliseconds.
    #[arg(long, value_name = "MS", env = "FARFORK_FAR_DEADLINE_MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(50..=600_000))]
    far_deadline_ms: u64,
}

/// What lies where.
#[derive(clap::Args)]
pub(crate) struct TierArgs {
    #[command(flatten)]
    pool: PoolArg,
    /// Name or id of the image.
    image: String,
    /// Move cold parts to this node, which has a copy of the image ("farfork images pull"). Without it, the node
    /// that has some already.
    #[arg(long, value_name = "ADDRESS:PORT")]
    far: Option<String>,
    #[command(flatten)]
    node: NodeArgs,
    /// Move all parts, whether clones use them or not.
    #[arg(long)]
    all: bool,
    /// Bring all parts back into the pool.
    #[arg(long, conflicts_with_all = ["far", "all"])]
    back: bool,
}

/// What is copied.
#[derive(clap::Args)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pool: PoolArg,
    /// Name or id of the image at the other node.
    image: String,
    /// The node that serves it ("farfork far serve").
    #[arg(long, value_name = "ADDRESS:PORT")]
    far: String,
    #[command(flatten)]
    node: NodeArgs,
    /// Name of the image: USER/FUNCTION[:TAG]. Default: its name at the other node, or pulled/ID.
    #[arg(long)]
    name: Option<ImageName>,
}

impl NodeArgs {
    fn at(&self, address: &str) -> Result<FarNode, Box<dyn Error>> {
        let place = Place::of(&paths::run_directory(), address);
        let key = key_file(self.key.as_deref(), &place)?;
        let (tls, deadline_ms) = (self.tls.files()?, self.far_deadline_ms);
        Ok(FarNode { address: address.to_owned(), key, tls, deadline_ms })
    }
}

/// The image `cid` of a node, as a file here.
fn side(node: &FarNode, cid: Cid) -> Result<File, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    Ok(open_far_side(&paths::run_directory(), &program, node, cid)?)
}

/// Moves parts of an image.
pub(crate) fn tier(args: &TierArgs) -> Result<(), Box<dyn Error>> {
    let pool = args.pool.open()?;
    let cid = named::resolve(&pool, &args.image)?;
    let file = pool.find(cid)?;
    let image = Chunked::read_from(&file)?;
    let chosen = chunks(args, &pool, &image)?;
    let before = far_chunks(&file);
    let node = match (&args.far, file.far()) {
        (Some(_), _) if args.node.key.as_deref() == Some(Path::new(STDIN)) => {
            return Err("give --far-key a file: restores of the image read the key there".into());
        }
        (Some(address), _) => args.node.at(address)?,
        (None, Some(far)) => node_of(far),
        (None, None) if args.back => {
            return Err(format!("all of image {cid} is in the pool").into());
        }
        (None, None) => {
            return Err("name the node that takes the cold parts: --far ADDRESS:PORT".into());
        }
    };
    let is_there = file.far().is_none_or(|far| far.source == node.address);
    if !chosen.is_empty() {
        hold(&node, cid, &holder(&pool))?;
    }
    if chosen == before && is_there {
        eprintln!("nothing to move: {}", line(&file));
        return Ok(());
    }
    let moved = retier(&pool, &file, &chosen, &node);
    let now = if moved.is_ok() { !chosen.is_empty() } else { !before.is_empty() && is_there };
    if !now {
        named::release(&holder(&pool), cid, &node);
    }
    if moved.is_ok()
        && !is_there
        && let Some(far) = file.far()
    {
        named::release(&holder(&pool), cid, &node_of(far));
    }
    moved?;
    eprintln!("{}", line(&pool.find(cid)?));
    Ok(())
}

fn retier(
    pool: &Pool,
    file: &ImageFile,
    chosen: &BTreeSet<usize>,
    node: &FarNode,
) -> Result<(), Box<dyn Error>> {
    let side = side(node, file.id.cid)?;
    let whole = file.with_far_file(side.try_clone()?)?;
    let mut progress = Progress::new("comparing");
    let shown = &mut |done, all| progress.windows(done, all);
    let moved = tier::retier(pool, &whole, chosen, node, shown);
    // What was compared need not stay in this machine's memory.
    let _ = fadvise(&side, 0, None, Advice::DontNeed);
    Ok(moved?)
}

/// The parts that are to lie far.
fn chunks(
    args: &TierArgs,
    pool: &Pool,
    image: &Chunked,
) -> Result<BTreeSet<usize>, Box<dyn Error>> {
    if args.back {
        return Ok(BTreeSet::new());
    }
    if args.all {
        return Ok((0..image.chunks()).collect());
    }
    let cid = image.id().cid;
    let bits = pool.access(cid)?;
    if bits.is_empty() {
        let how = match image {
            Chunked::Processes(_) => {
                "clones use: record that first (\"farfork images profile\", or clones with --profile), declare \
                 pages hot (\"farfork hot set\"), or move all parts (--all)"
            }
            Chunked::VirtualMachine(_) => {
                "machines use: restore one first (\"farfork vm serve\"), or move all parts (--all)"
            }
        };
        return Err(format!("it is not known which parts of image {cid} {how}").into());
    }
    Ok(match image {
        Chunked::Processes(image) => cold_chunks(&image.model, &Access::from(bits)),
        Chunked::VirtualMachine(snapshot) => snapshot.cold_chunks(&bits.accessed),
    })
}

/// Where the bytes of an image are.
fn line(file: &ImageFile) -> String {
    match file.far() {
        None => format!("all of image {} is in the pool", file.id.cid),
        Some(far) => format!(
            "{} of image {} at {}, {} in the pool",
            size::show(far.bytes()),
            file.id.cid,
            far.source,
            size::show(file.id.bytes - far.bytes())
        ),
    }
}

/// Copies an image from another node, with its id.
pub(crate) fn pull(args: &PullArgs) -> Result<(), Box<dyn Error>> {
    let pool = args.pool.open()?;
    let node = args.node.at(&args.far)?;
    let place = Place::of(&paths::run_directory(), &node.address);
    let program = std::env::current_exe()?;
    let command = farfork_far::mount_command(&program, "mount", &place, &node, None);
    start::ensure_with(&place, &command, node.tls.as_ref())?;
    let cid: Cid = start::find(&place, &args.image, false)?.parse()?;
    if pool.find(cid).is_ok() {
        return Err(format!("the pool at {} has image {cid} already", pool.path().display()).into());
    }
    let name = match (&args.name, args.image.parse()) {
        (Some(name), _) => name.clone(),
        (None, Ok(name)) => name,
        (None, Err(_)) => format!("pulled/{cid}").parse()?,
    };
    let from = Pool::open(&place.pool())?.find(cid)?;
    let mut progress = Progress::new("copying");
    let shown = &mut |done, all| progress.windows(done, all);
    let (cid, _held) = tier::pull(&pool, Some(name.user()), &from, shown)?;
    drop(progress);
    let _ = fadvise(from.file(), 0, None, Advice::DontNeed);
    checkpoint::publish(&pool, &name, cid)?;
    println!("{cid}");
    eprintln!("{name}");
    // An image is whole without.
    if let Err(why) = copy_record(&pool, &place, cid) {
        eprintln!("farfork: what machines need of image {cid} was not copied: {why}");
    }
    Ok(())
}

/// Copies which pages of a virtual machine's memory its machines needed at the other node.
fn copy_record(pool: &Pool, place: &Place, cid: Cid) -> Result<(), Box<dyn Error>> {
    let Chunked::VirtualMachine(snapshot) = Chunked::read_from(&pool.find(cid)?)? else {
        return Ok(());
    };
    let pages = snapshot.map.memory_bytes() / PAGE_BYTES;
    let mut needed = Vec::new();
    for (first, count) in start::record(place, &cid.to_string())? {
        let end = first.saturating_add(count).min(pages);
        needed.extend((first..end).map(|page| page as u32));
        if needed.len() as u64 > pages {
            return Err("it names pages more than once".into());
        }
    }
    if !needed.is_empty() {
        record::add(pool, cid, &needed)?;
    }
    Ok(())
}
