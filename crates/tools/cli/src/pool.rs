//! `farfork pool`, and the pool of the other commands.

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::error::ImageError;
use farfork_image::format::Image;
use farfork_image::header::Kind;
use farfork_image::holds;
use farfork_image::vm::Snapshot;
use farfork_node::paths::{demand_own, make_run_directory};
use farfork_pool::{Finding, Forgotten, ImageFile, Pool, PoolError, Quota, unmount_tmpfs};
use farfork_sys::words;
use farfork_types::{CHUNK_BYTES, Cid, align_down, align_up};

use crate::output::print_json;
use crate::pool_directory::PoolDirectory;
use crate::{CommandResult, named, node, size};

/// What to do with a pool.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a pool.
    Create {
        /// A directory that does not exist yet, or that is empty.
        #[arg(value_name = "DIR")]
        path: PathBuf,
        /// Size of the pool, e.g. 4G.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// Mount a tmpfs with huge pages on the directory although it exists already. On one that this
        /// command creates, root mounts one unless it lies on memory with huge pages anyway (a tmpfs
        /// mounted with huge=always, or a DAX file system).
        #[arg(long)]
        mount: bool,
    },
    /// Show space, nodes, images, and users with their images and regions.
    Info {
        /// The pool. Default: $FARFORK_POOL, then the embedded pool.
        path: Option<PathBuf>,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Verify invariants and checksums, and reclaim space and pins of dead processes.
    Check {
        /// The pool. Default: $FARFORK_POOL, then the embedded pool.
        path: Option<PathBuf>,
    },
    /// Show how much users have and may have, or limit what one may have.
    Quota {
        /// The pool. Default: $FARFORK_POOL, then the embedded pool.
        #[arg(value_name = "DIR")]
        path: Option<PathBuf>,
        /// The user: the first part of the names of images. Default: all users.
        user: Option<String>,
        /// Most bytes that the user's images and regions may take, e.g. 4G.
        #[arg(long, value_parser = size::parse, requires = "user")]
        bytes: Option<u64>,
        /// Most images that the user may have.
        #[arg(long, requires = "user")]
        images: Option<u64>,
        /// Remove the user's limits.
        #[arg(long, requires = "user", conflicts_with_all = ["bytes", "images"])]
        unlimited: bool,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Remove a node that is gone for good, with its pins. Rows of the node with an agent or clones on
    /// this machine stay. You must be certain that no clone of the node runs on another machine.
    ForgetNode {
        /// Name of the node.
        #[arg(value_parser = node::name)]
        name: String,
        /// The pool. Default: $FARFORK_POOL, then the embedded pool.
        path: Option<PathBuf>,
    },
    /// Delete an unused pool with its images, and unmount its tmpfs.
    Destroy {
        /// The pool.
        path: PathBuf,
        /// Delete it although images are being written, or nodes pin images.
        #[arg(long)]
        force: bool,
    },
}

/// The pool of a command.
#[derive(clap::Args)]
pub(crate) struct PoolArg {
    /// The pool. Default: $FARFORK_POOL, then the embedded pool.
    #[arg(long = "pool", value_name = "DIR")]
    path: Option<PathBuf>,
}

impl PoolArg {
    /// Its absolute path.
    pub(crate) fn path(&self) -> Result<PathBuf, Box<dyn Error>> {
        chosen(self.path.as_deref())
    }

    /// The pool, open.
    pub(crate) fn open(&self) -> Result<Pool, Box<dyn Error>> {
        Ok(Pool::open(&self.path()?)?)
    }
}

fn chosen(given: Option<&Path>) -> Result<PathBuf, Box<dyn Error>> {
    match given.map(Path::to_owned).or_else(|| env::var_os("FARFORK_POOL").map(PathBuf::from)) {
        Some(path) => Ok(std::path::absolute(path)?),
        None => embedded(),
    }
}

/// The embedded pool, created at its first use: a quarter of the machine's memory.
fn embedded() -> Result<PathBuf, Box<dyn Error>> {
    let path = farfork_node::paths::embedded_pool();
    demand_own(&path).map_err(|error| {
        format!("cannot use the pool at {}: {}", path.display(), words::of(&error))
    })?;
    if !path.exists() {
        let quarter = rustix::system::sysinfo().totalram / 4;
        let directory = path.parent().unwrap_or(Path::new("/"));
        make_run_directory(directory).map_err(|error| {
            format!("cannot create {}: {}", directory.display(), words::of(&error))
        })?;
        create(&path, align_down(quarter, CHUNK_BYTES), false)?;
    }
    Ok(path)
}

/// Creates a pool. If that fails, everything is as before.
fn create(path: &Path, bytes: u64, mounts: bool) -> Result<Pool, Box<dyn Error>> {
    Pool::check_size(path, bytes)?;
    demand_own(path).map_err(|error| {
        format!("cannot create a pool at {}: {}", path.display(), words::of(&error))
    })?;
    let directory = PoolDirectory::prepare(path, bytes, mounts)?;
    Pool::create(path, bytes).map_err(|error| {
        directory.undo();
        error.into()
    })
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::Create { path, size, mount } => {
            let path = std::path::absolute(path)?;
            create(&path, align_up(*size, CHUNK_BYTES), *mount)?;
            println!("{}", path.display());
        }
        Command::Info { path, json } => info(path.as_deref(), *json)?,
        Command::Check { path } => return check(path.as_deref()),
        Command::Quota { path, user, bytes, images, unlimited, json } => {
            let pool = Pool::open(&chosen(path.as_deref())?)?;
            if let Some(user) = user {
                limit(&pool, user, *bytes, *images, *unlimited)?;
            }
            quotas(&pool, user.as_deref(), *json)?;
        }
        Command::ForgetNode { name, path } => forget_node(path.as_deref(), name)?,
        Command::Destroy { path, force } => destroy(path, *force)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A name by which a pool elsewhere holds an image.
fn held(pool: &Pool) -> Result<Option<ImageName>, PoolError> {
    let names = Catalog::of(pool).list()?.into_iter().map(|(name, _, _)| name);
    Ok({ names }.find(|name| name.user() == holds::USER))
}

fn destroy(path: &Path, is_forced: bool) -> Result<(), Box<dyn Error>> {
    let path = std::path::absolute(path)?;
    let pool = Pool::open(&path)?;
    farfork_node::clear_pins(&pool)?;
    if !is_forced && let Some(hold) = held(&pool)? {
        return Err(format!(
            "cannot destroy the pool at {}: another node has parts of an image here only ({hold}); bring them back \
             there (\"farfork images tier --back\"), or add --force, and they are lost",
            path.display()
        )
        .into());
    }
    let far = named::with_far_parts(&pool).unwrap_or_default();
    let holder = holds::holder(&pool);
    drop(pool);
    if is_forced {
        Pool::destroy_used(&path)?;
    } else {
        Pool::destroy(&path)?;
    }
    far.iter().for_each(|(cid, node)| named::release(&holder, *cid, node));
    unmount_tmpfs(&path)?;
    match fs::remove_dir(&path) {
        // Something else lies in it, or the operator's own mount.
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy
            ) =>
        {
            Err(format!("cannot remove {}: {}", path.display(), words::of(&error)).into())
        }
        _ => Ok(()),
    }
}

/// Sets limits; one that is not given stays as it is.
fn limit(
    pool: &Pool,
    user: &str,
    bytes: Option<u64>,
    images: Option<u64>,
    unlimited: bool,
) -> Result<(), Box<dyn Error>> {
    if !unlimited && bytes.is_none() && images.is_none() {
        return Ok(());
    }
    let before = match pool.quota(user) {
        _ if unlimited => Quota::NONE,
        Err(PoolError::DamagedQuota { .. }) => Quota::NONE,
        known => known?,
    };
    let quota =
        Quota { bytes: bytes.unwrap_or(before.bytes), images: images.unwrap_or(before.images) };
    Ok(pool.set_quota(user, quota)?)
}

fn quotas(pool: &Pool, user: Option<&str>, json: bool) -> Result<(), Box<dyn Error>> {
    let users = user.map_or_else(|| pool.users(), |user| Ok(vec![user.to_owned()]))?;
    let infos = users.iter().map(|user| pool.user_info(user)).collect::<Result<Vec<_>, _>>()?;
    if json {
        return Ok(print_json(&infos)?);
    }
    for info in infos {
        let bytes = info.quota_bytes.map_or("no limit".to_owned(), size::show);
        let images = info.quota_images.map_or("no limit".to_owned(), |most| most.to_string());
        let (all, count) = (info.bytes + info.region_bytes(), info.images);
        let regions = match info.regions.len() {
            0 => String::new(),
            count => format!(" and {count} regions"),
        };
        println!(
            "{}: {} of {bytes} in {count} images of {images}{regions}",
            info.user,
            size::show(all)
        );
    }
    Ok(())
}

fn forget_node(path: Option<&Path>, name: &str) -> Result<(), Box<dyn Error>> {
    let pool = Pool::open(&chosen(path)?)?;
    let Forgotten { rows, pins, living } = farfork_node::forget_node(&pool, name)?;
    let path = pool.path().display();
    println!("removed node {name} from the pool at {path}: {rows} rows with {pins} pins of images");
    if living > 0 {
        println!("kept {living} rows of that name: their agent or clones are alive");
    }
    Ok(())
}

fn info(path: Option<&Path>, json: bool) -> Result<(), Box<dyn Error>> {
    let info = Pool::open(&chosen(path)?)?.info()?;
    if json {
        return Ok(print_json(&info)?);
    }
    // The same facts in the same order, without the punctuation.
    println!("{}", serde_json::to_string_pretty(&info)?.replace(['{', '}', '"', ','], ""));
    Ok(())
}

fn check(path: Option<&Path>) -> CommandResult {
    let pool = Pool::open(&chosen(path)?)?;
    for (node, images) in farfork_node::clear_pins(&pool)? {
        println!(
            "reclaimed {images} pins of node {node}: it has no agent, and no clone maps the images"
        );
    }
    let report = pool.check()?;
    let mut is_sound = report.is_sound();
    // Pins that are left are those of clones: of a removed image, which they go on with.
    let goes_on = |finding: &Finding| {
        matches!(finding, Finding::StalePin { .. }) && !pool.is_shared_by_kernels()
    };
    for finding in report.findings.iter().filter(|finding| !goes_on(finding)) {
        println!("{finding}");
    }
    let damaged = Catalog::of(&pool).repair()?;
    if damaged > 0 {
        // Images that have just lost their names stay, so that they can be saved.
        is_sound = false;
        println!(
            "removed {damaged} names that were links to no image; the next check removes images that have \
             no name: export them by their ids before (`farfork images export`), and import them with one"
        );
    } else {
        remove_unnamed(&pool)?;
    }
    for cid in pool.images()? {
        let Ok(file) = pool.find(cid) else { continue }; // said above, or just removed
        if let Some(far) = file.far() {
            let (bytes, node) = (size::show(far.bytes()), &far.source);
            println!("image {cid}: {bytes} at {node} not verified");
        }
        match damaged_chunks(&file) {
            Ok(damaged) if damaged.is_empty() => {}
            Ok(damaged) => {
                is_sound = false;
                println!("image {cid}: wrong checksum of {} chunks", damaged.len());
            }
            Err(error) => {
                is_sound = false;
                println!("image {cid}: {error}");
            }
        }
    }
    println!("{}", if is_sound { "the pool is sound" } else { "the pool is damaged" });
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Verifies all checksums of an image of any kind; the numbers of chunks that do not match.
fn damaged_chunks(file: &ImageFile) -> Result<Vec<usize>, ImageError> {
    match Kind::of(file)? {
        Kind::Processes => Image::read_from(file)?.damaged_chunks(file),
        Kind::VirtualMachine => Snapshot::read_from(file)?.damaged_chunks(file),
    }
}

/// Removes images whose checkpoint was killed before it could name them: no command would find them.
fn remove_unnamed(pool: &Pool) -> Result<(), Box<dyn Error>> {
    let mut left = pool.images()?;
    left.retain(|cid| !pool.is_held(*cid).unwrap_or(true));
    // In this order: a process that holds an image names it first, and then releases it.
    let named: HashSet<Cid> =
        Catalog::of(pool).list()?.into_iter().map(|(_, cid, _)| cid).collect();
    for cid in left.into_iter().filter(|cid| !named.contains(cid)) {
        let bytes = pool.find(cid)?.file().metadata()?.blocks() * 512;
        named::remove(pool, cid)?;
        println!(
            "reclaimed {bytes} bytes of image {cid}: its checkpoint or import was killed before it had a name"
        );
    }
    Ok(())
}
