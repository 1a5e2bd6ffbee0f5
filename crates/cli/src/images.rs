//! `farfork images`.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::compile::replaceable_numbers;
use farfork_image::format::Image;
use farfork_image::model::{Descriptor, Model, OpenFile};
use farfork_pool::Pool;
use farfork_types::{Cid, PAGE_BYTES};
use serde::Serialize;

use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, archive, checkpoint, restore, size};

/// What to do with images.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List names and images.
    List {
        #[command(flatten)]
        pool: PoolArg,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Tell what an image holds.
    Show {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id.
        image: String,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Remove a name, and its image when no other name holds it; or an image by its id, with
    /// all its names. Running clones keep what they map.
    Rm {
        #[command(flatten)]
        pool: PoolArg,
        /// Names or ids.
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Write an image to a file, from which any pool can take it.
    Export {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id.
        image: String,
        /// Where to; - for stdout. A file there is replaced once the new one is whole.
        file: PathBuf,
    },
    /// Take an image from a file that `export` wrote, and print its id. It is a new image with an
    /// id of its own, also where the exported one still is.
    Import {
        #[command(flatten)]
        pool: PoolArg,
        /// Where from; - for stdin.
        file: PathBuf,
        /// USER/FUNCTION[:TAG]; an existing name moves to the new image. Without it, import/FILE.
        #[arg(long)]
        name: Option<ImageName>,
    },
}

#[derive(Serialize)]
struct Entry {
    name: String,
    cid: String,
    created_unix_s: u64,
}

/// A socket that a clone makes anew, or is given with `--inherit-fd`.
#[derive(Serialize)]
struct Address {
    fd: u32,
    socket: String,
}

#[derive(Serialize)]
struct Description {
    cid: String,
    names: Vec<String>,
    created_unix_s: u64,
    command_line: Vec<String>,
    exe: String,
    pid: u32,
    threads: usize,
    fds: usize,
    external_fds: Vec<u32>,
    addresses: Vec<Address>,
    vmas: usize,
    footprint_bytes: u64,
    stored_pages: u64,
    zero_pages: u64,
    pool_bytes: u64,
    kernel: String,
    farfork: String,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    match command {
        Command::List { pool, json } => list(&pool.open()?, *json)?,
        Command::Show { pool, image, json } => show(&pool.open()?, image, *json)?,
        Command::Rm { pool, images } => {
            let pool = pool.open()?;
            images.iter().try_for_each(|image| remove(&pool, image))?;
        }
        Command::Export { pool, image, file } => archive::export(&pool.open()?, image, file)?,
        Command::Import { pool, file, name } => {
            archive::import(&pool.open()?, file, name.as_ref())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(pool: &Pool, json: bool) -> Result<(), Box<dyn Error>> {
    let entries: Vec<Entry> = Catalog::open(pool)?
        .list()?
        .into_iter()
        .map(|(name, cid, created_unix_s)| {
            let (name, cid) = (name.to_string(), cid.to_string());
            Entry { name, cid, created_unix_s }
        })
        .collect();
    if json {
        return Ok(print_json(&entries)?);
    }
    for entry in &entries {
        println!("{}  {}", entry.cid, entry.name);
    }
    Ok(())
}

fn show(pool: &Pool, image: &str, json: bool) -> Result<(), Box<dyn Error>> {
    let description = describe(pool, restore::resolve(pool, image)?)?;
    if json {
        return Ok(print_json(&description)?);
    }
    let d = &description;
    println!("image      {}  {}", d.cid, d.names.join(" "));
    println!("process    {} (pid {}, {} threads)", d.command_line.join(" "), d.pid, d.threads);
    println!("memory     {} in {} mappings", size::show(d.footprint_bytes), d.vmas);
    println!("pool       {}, {} pages stored", size::show(d.pool_bytes), d.stored_pages);
    println!("files      {} descriptors, from outside: {:?}", d.fds, d.external_fds);
    for Address { fd, socket } in &d.addresses {
        println!("address    fd {fd}: {socket}");
    }
    println!("made on    Linux {}, farfork {}", d.kernel, d.farfork);
    Ok(())
}

fn describe(pool: &Pool, cid: Cid) -> Result<Description, Box<dyn Error>> {
    let image = Image::read(pool, cid)?;
    let names = Catalog::open(pool)?.names_of(cid)?;
    let model = &image.model;
    let is_external =
        |index: u32| matches!(model.files.get(index as usize), Some(OpenFile::External { .. }));
    let root = model.root();
    let windows = model.stored().flat_map(|stored| &stored.windows);
    let bits = windows.flat_map(|window| window.pages);
    let stored_pages: u64 = bits.map(|word| u64::from(word.count_ones())).sum();
    let segments = model.stored().flat_map(|stored| &stored.segments);
    let mapped_bytes: u64 = segments.map(|segment| segment.bytes).sum();
    Ok(Description {
        cid: cid.to_string(),
        names: names.iter().map(ToString::to_string).collect(),
        created_unix_s: model.created_unix_s,
        command_line: root.process.command_line.clone(),
        exe: root.process.exe.display().to_string(),
        pid: root.process.pid,
        threads: root.threads.len(),
        fds: root.descriptors.len(),
        external_fds: root
            .descriptors
            .iter()
            .filter(|descriptor| is_external(descriptor.file))
            .map(|descriptor| descriptor.fd)
            .collect(),
        addresses: addresses(model),
        vmas: root.memory.regions.len(),
        footprint_bytes: stored_pages * PAGE_BYTES,
        stored_pages,
        zero_pages: mapped_bytes / PAGE_BYTES - stored_pages,
        pool_bytes: image.extents.extents.iter().map(|extent| extent.bytes()).sum(),
        kernel: model.made_on.kernel.clone(),
        farfork: model.made_on.farfork.clone(),
    })
}

/// Sockets that a caller of restore may replace.
fn addresses(model: &Model) -> Vec<Address> {
    let of = |descriptor: &Descriptor| match &model.files[descriptor.file as usize] {
        OpenFile::Socket(socket) if socket.is_replaceable() => {
            Some(Address { fd: descriptor.fd, socket: socket.description.clone() })
        }
        _ => None,
    };
    let mut found: Vec<Address> = model.root().descriptors.iter().filter_map(of).collect();
    let firsts = replaceable_numbers(model);
    found.retain(|address| firsts.contains(&address.fd));
    found
}

fn remove(pool: &Pool, image: &str) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::open(pool)?;
    let cid = restore::resolve(pool, image)?;
    let gone = match image.parse::<Cid>() {
        Ok(_) => catalog.names_of(cid)?,
        Err(_) => vec![image.parse::<ImageName>()?],
    };
    for name in &gone {
        catalog.remove(name)?;
    }
    if catalog.names_of(cid)?.is_empty() {
        checkpoint::remove(pool, cid)?;
    }
    Ok(())
}
