//! `farfork images tier` and `pull`: parts of images, and copies, on other nodes.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

use farfork_far::open_far_side;
use farfork_far::place::Place;
use farfork_far::start;
use farfork_image::catalog::ImageName;
use farfork_image::chunked::Chunked;
use farfork_image::format::far_chunks;
use farfork_image::tier::{self, FarNode};
use farfork_node::{node_of, paths};
use farfork_pages::{Access, cold_chunks};
use farfork_pool::{ImageFile, Pool};
use farfork_types::Cid;
use rustix::fs::{Advice, fadvise};

use crate::far::{STDIN, key_file};
use crate::pool::PoolArg;
use crate::progress::Progress;
use crate::{checkpoint, restore, size};

/// Another node, and its key.
#[derive(clap::Args)]
pub(crate) struct NodeArgs {
    /// File with the key of that node; "images pull" takes - for the first line of stdin. Default: far.key in
    /// the run directory.
    #[arg(long = "far-key", value_name = "FILE", env = "FARFORK_FAR_KEY")]
    key: Option<PathBuf>,
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
        Ok(FarNode { address: address.to_owned(), key, deadline_ms: self.far_deadline_ms })
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
    let cid = restore::resolve(&pool, &args.image)?;
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
    if chosen == before && is_there {
        eprintln!("nothing to move: {}", line(&file));
        return Ok(());
    }
    let side = side(&node, cid)?;
    let whole = file.with_far_file(side.try_clone()?)?;
    let mut progress = Progress::new("comparing");
    let shown = &mut |done, all| progress.windows(done, all);
    tier::retier(&pool, &whole, &chosen, &node, shown)?;
    drop(progress);
    // What was compared need not stay in this machine's memory.
    let _ = fadvise(&side, 0, None, Advice::DontNeed);
    eprintln!("{}", line(&pool.find(cid)?));
    Ok(())
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
    start::ensure(&place, &command)?;
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
    Ok(())
}
