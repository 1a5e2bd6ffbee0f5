//! `farfork pool`, and the pool of the other commands.

use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use farfork_image::catalog::Catalog;
use farfork_image::format::Image;
use farfork_node::paths::{demand_own, make_run_directory};
use farfork_pool::{Forgotten, ImageState, Pool, unmount_tmpfs};
use farfork_sys::words;
use farfork_types::{CHUNK_BYTES, Cid, align_down, align_up};

use crate::output::print_json;
use crate::pool_directory::PoolDirectory;
use crate::{CommandResult, checkpoint, node, size};

/// What to do with a pool.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a pool.
    Create {
        /// A new file, or a memory device (/dev/dax0.0), which is overwritten completely.
        path: PathBuf,
        /// Size of the pool, e.g. 4G.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// Mount a tmpfs with huge pages on the directory, which must be empty. On a directory that
        /// this command creates, root always mounts one.
        #[arg(long)]
        mount: bool,
    },
    /// Show space, nodes, images and owners.
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
    #[arg(long = "pool", value_name = "PATH")]
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
        let is_empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
        create(&path, align_down(quarter, CHUNK_BYTES), is_empty)?;
    }
    Ok(path)
}

/// Creates a pool. If that fails, everything is as before.
fn create(path: &Path, bytes: u64, mounts: bool) -> Result<Pool, Box<dyn Error>> {
    Pool::check_size(path, bytes)?;
    demand_own(path).map_err(|error| {
        format!("cannot create a pool at {}: {}", path.display(), words::of(&error))
    })?;
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device()) {
        return Ok(Pool::create(path, bytes)?);
    }
    let directory =
        path.parent().ok_or("invalid path of a pool: it needs a directory and a name")?;
    let directory = PoolDirectory::prepare(directory, bytes, mounts)?;
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
        Command::ForgetNode { name, path } => forget_node(path.as_deref(), name)?,
        Command::Destroy { path, force } => destroy(path, *force)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn destroy(path: &Path, is_forced: bool) -> Result<(), Box<dyn Error>> {
    let path = std::path::absolute(path)?;
    farfork_node::clear_pins(&Pool::open(&path)?)?;
    if is_forced {
        Pool::destroy_used(&path)?;
    } else {
        Pool::destroy(&path)?;
    }
    Ok(unmount_tmpfs(path.parent().unwrap_or(Path::new("/")))?)
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
    for finding in &report.findings {
        println!("{finding}");
    }
    remove_unnamed(&pool)?;
    for (name, cid, _) in Catalog::open(&pool)?.list()? {
        match Image::read(&pool, cid).map(|image| image.damaged_chunks(&pool)) {
            Ok(Ok(damaged)) if damaged.is_empty() => {}
            Ok(Ok(damaged)) => {
                is_sound = false;
                println!("image {name} ({cid}): wrong checksum of {} chunks", damaged.len());
            }
            Ok(Err(error)) | Err(error) => {
                is_sound = false;
                println!("image {name} ({cid}): {error}");
            }
        }
    }
    println!("{}", if is_sound { "the pool is sound" } else { "the pool is damaged" });
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes images whose checkpoint was killed before it could name them: no command would find them.
fn remove_unnamed(pool: &Pool) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::open(pool)?;
    let images = pool.info()?.images.into_iter();
    for image in images.filter(|image| image.state == ImageState::Published) {
        let cid: Cid = image.cid.parse()?;
        // In this order: a process that holds the image names it first, and then releases it.
        if pool.is_held(cid).unwrap_or(true) || !catalog.names_of(cid)?.is_empty() {
            continue;
        }
        checkpoint::remove(pool, cid)?;
        println!(
            "reclaimed {} bytes of image {cid}: its checkpoint was killed before it had a name",
            image.bytes
        );
    }
    Ok(())
}
