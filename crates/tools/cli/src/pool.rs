//! `farfork pool`, and which pool the other commands mean.

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
use crate::place::Place;
use crate::{CommandResult, checkpoint, node, size};

/// What to do with a pool.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a pool.
    Create {
        /// Where: a new file, or a device of memory (/dev/dax0.0), all of which is overwritten.
        path: PathBuf,
        /// How large, as 4G.
        #[arg(long, value_parser = size::parse)]
        size: u64,
        /// Mount a tmpfs with huge pages on the directory, which is empty, although it was there
        /// before; on one that this command makes, root mounts one anyway.
        #[arg(long)]
        mount: bool,
    },
    /// Tell space, nodes, images and owners.
    Info {
        /// Which.
        path: Option<PathBuf>,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Verify every invariant and checksum, and give back what the dead hold.
    Check {
        /// Which.
        path: Option<PathBuf>,
    },
    /// Drop what a pool knows of a node that is gone for good, above all which images it pinned. It must be
    /// certain that no clone of it lives on another machine; those of this one are seen.
    ForgetNode {
        /// The node.
        #[arg(value_parser = node::name)]
        name: String,
        /// In which pool.
        path: Option<PathBuf>,
    },
    /// Delete a pool that nobody uses, with its images, and the tmpfs mounted for it.
    Destroy {
        /// Which.
        path: PathBuf,
        /// Also if images are being written, or nodes have clones of some, or had when they were lost.
        #[arg(long)]
        force: bool,
    },
}

/// Which pool a command means.
#[derive(clap::Args)]
pub(crate) struct PoolArg {
    /// The pool; without it $FARFORK_POOL, then the embedded pool.
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

/// The embedded pool, made when it is first asked for: a quarter of the machine's memory.
fn embedded() -> Result<PathBuf, Box<dyn Error>> {
    let path = farfork_node::paths::embedded_pool();
    demand_own(&path).map_err(|error| {
        format!("cannot use the pool at {}: {}", path.display(), words::of(&error))
    })?;
    if !path.exists() {
        let quarter = rustix::system::sysinfo().totalram / 4;
        let directory = path.parent().unwrap_or(Path::new("/"));
        make_run_directory(directory).map_err(|error| {
            format!("cannot make {}: {}", directory.display(), words::of(&error))
        })?;
        let is_empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
        create(&path, align_down(quarter, CHUNK_BYTES), is_empty)?;
    }
    Ok(path)
}

/// Makes a pool, or leaves everything as it was.
fn create(path: &Path, bytes: u64, mounts: bool) -> Result<Pool, Box<dyn Error>> {
    Pool::check_size(path, bytes)?;
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device()) {
        return Ok(Pool::create(path, bytes)?);
    }
    let directory = path.parent().ok_or("a pool needs a directory: name a file in one")?;
    let place = Place::prepare(directory, bytes, mounts)?;
    Pool::create(path, bytes).map_err(|error| {
        place.leave();
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
    println!(
        "the pool at {path} has forgotten node {name}: {rows} rows with {pins} pins of images"
    );
    if living > 0 {
        println!("{living} rows of that name stay: an agent or clones live that they belong to");
    }
    Ok(())
}

fn info(path: Option<&Path>, json: bool) -> Result<(), Box<dyn Error>> {
    let info = Pool::open(&chosen(path)?)?.info()?;
    if json {
        return Ok(print_json(&info)?);
    }
    // The same facts in the same order, for people.
    println!("{}", serde_json::to_string_pretty(&info)?.replace(['{', '}', '"', ','], ""));
    Ok(())
}

fn check(path: Option<&Path>) -> CommandResult {
    let pool = Pool::open(&chosen(path)?)?;
    for (node, images) in farfork_node::clear_pins(&pool)? {
        println!("node {node} has no agent, and no clone holds {images} images that it pinned");
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
                println!("image {name} ({cid}): {} chunks do not match their sums", damaged.len());
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

/// Removes images whose checkpointer was killed before it could name them: nobody would find them.
fn remove_unnamed(pool: &Pool) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::open(pool)?;
    let images = pool.info()?.images.into_iter();
    for image in images.filter(|image| image.state == ImageState::Published) {
        let cid: Cid = image.cid.parse()?;
        // In this order: whoever holds it may name it, and only then lets go.
        if pool.is_held(cid).unwrap_or(true) || !catalog.names_of(cid)?.is_empty() {
            continue;
        }
        checkpoint::remove(pool, cid)?;
        println!(
            "image {cid} had no name, its checkpoint was killed: {} bytes given back",
            image.bytes
        );
    }
    Ok(())
}
