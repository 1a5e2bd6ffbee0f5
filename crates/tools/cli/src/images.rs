//! `farfork images`.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use farfork_far::control::ImageStatus;
use farfork_far::place::Place;
use farfork_far::start;
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::compile::{Supplied, replaceables};
use farfork_image::format::Image;
use farfork_image::header::Kind;
use farfork_image::holds;
use farfork_image::model::{Member, Model, OpenFile};
use farfork_node::paths;
use farfork_pages::{Access, mapped};
use farfork_pool::{FarParts, ImageFile, Pool};
use farfork_types::{Cid, PAGE_BYTES};
use serde::Serialize;

use crate::output::print_json;
use crate::pool::PoolArg;
use crate::{CommandResult, archive, named, profile, size, tier, vm};

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
    /// Show what an image holds.
    Show {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Remove names, and images with their last name. An id removes an image with all its names.
    /// Running clones keep what they map.
    Rm {
        #[command(flatten)]
        pool: PoolArg,
        /// Names or ids of images.
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Start a profiling clone, run a command against it, and report the pages that it touched. The
    /// exit status is the command's.
    Profile(profile::Args),
    /// Forget which pages clones have accessed. Profiling clones that start later record them anew.
    ResetAccessed {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// Forget also which pages they have written.
        #[arg(long)]
        dirtied: bool,
    },
    /// Move parts of an image that clones do not use to another node, or bring them back. Clones fetch them
    /// there when they touch them.
    Tier(tier::TierArgs),
    /// Copy an image from a node that serves it, with its id, and print that.
    Pull(tier::PullArgs),
    /// Export an image to a file, which any pool can import.
    Export {
        #[command(flatten)]
        pool: PoolArg,
        /// Name or id of the image.
        image: String,
        /// File to write; - for stdout. An existing file is replaced when the new one is complete.
        file: PathBuf,
    },
    /// Import an image from a file that "images export" wrote, and print its id. It is a new image
    /// with an id of its own.
    Import {
        #[command(flatten)]
        pool: PoolArg,
        /// File to read; - for stdin.
        file: PathBuf,
        /// Name of the image: USER/FUNCTION[:TAG]. An existing name moves to the new image. Default:
        /// import/FILE.
        #[arg(long)]
        name: Option<ImageName>,
    },
}

#[derive(Serialize)]
struct Entry {
    name: String,
    cid: String,
    /// `None` if the image cannot be read.
    kind: Option<Kind>,
    created_unix_s: u64,
    /// Bytes that lie on another node.
    far_bytes: u64,
}

/// A socket that a clone creates anew, or gets with `--inherit-fd`.
#[derive(Serialize)]
struct Address {
    fd: u32,
    socket: String,
}

/// How clones use the pages of an image.
#[derive(Serialize)]
struct PageUse {
    /// Pages that clones map from the pool. The other counts are parts of it.
    mapped_pages: u64,
    /// Pages that clones of all nodes have accessed since the last reset.
    accessed_pages: u64,
    /// Pages that clones have written.
    dirtied_pages: u64,
    /// Pages that were declared hot.
    hot_pages: u64,
    nodes: Vec<NodeUse>,
}

/// The same by the clones of one node.
#[derive(Serialize)]
struct NodeUse {
    /// Name of the node. `None` for a removed node, and for what came with an archive.
    node: Option<String>,
    accessed_pages: u64,
    dirtied_pages: u64,
    /// How often pages were added.
    additions: u64,
}

/// One process of an image.
#[derive(Serialize)]
struct Process {
    pid: u32,
    /// Pid of its parent. `None` for the first process, whose parent is not in the image.
    parent: Option<u32>,
    command_line: Vec<String>,
    threads: usize,
    fds: usize,
    vmas: usize,
    external_fds: Vec<u32>,
    /// Wait status of a dead process.
    ended: Option<i32>,
}

#[derive(Serialize)]
struct Description {
    cid: String,
    kind: Kind,
    names: Vec<String>,
    created_unix_s: u64,
    command_line: Vec<String>,
    exe: String,
    pid: u32,
    processes: Vec<Process>,
    threads: usize,
    fds: usize,
    external_fds: Vec<u32>,
    addresses: Vec<Address>,
    vmas: usize,
    footprint_bytes: u64,
    stored_pages: u64,
    zero_pages: u64,
    pool_bytes: u64,
    /// Bytes that lie on another node, and which.
    far_bytes: u64,
    far_source: Option<String>,
    /// How that node is read at present, if it is.
    far_transport: Option<String>,
    far_one_sided: Option<bool>,
    access: PageUse,
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
        Command::ResetAccessed { pool, image, dirtied } => {
            let pool = pool.open()?;
            pool.reset_access(named::resolve(&pool, image)?, *dirtied)?;
        }
        Command::Profile(args) => return profile::run(args),
        Command::Tier(args) => tier::tier(args)?,
        Command::Pull(args) => tier::pull(args)?,
        Command::Export { pool, image, file } => archive::export(&pool.open()?, image, file)?,
        Command::Import { pool, file, name } => {
            archive::import(&pool.open()?, file, name.as_ref())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(pool: &Pool, json: bool) -> Result<(), Box<dyn Error>> {
    let entries: Vec<Entry> = Catalog::of(pool)
        .list()?
        .into_iter()
        .map(|(name, cid, created_unix_s)| {
            let file = pool.find(cid).ok();
            let kind = file.as_ref().and_then(|file| Kind::of(file).ok());
            let far_bytes = file.as_ref().and_then(ImageFile::far).map_or(0, FarParts::bytes);
            Entry { name: name.to_string(), cid: cid.to_string(), kind, created_unix_s, far_bytes }
        })
        .collect();
    if json {
        return Ok(print_json(&entries)?);
    }
    for entry in &entries {
        let note = match entry.far_bytes {
            _ if entry.kind == Some(Kind::VirtualMachine) => "  (virtual machine)".to_owned(),
            0 => String::new(),
            far => format!("  ({} far)", size::show(far)),
        };
        println!("{}  {}{note}", entry.cid, entry.name);
    }
    Ok(())
}

fn show(pool: &Pool, image: &str, json: bool) -> Result<(), Box<dyn Error>> {
    let file = pool.find(named::resolve(pool, image)?)?;
    if Kind::of(&file)? == Kind::VirtualMachine {
        return vm::Description::of(pool, &file)?.print(json);
    }
    let description = describe(pool, &file)?;
    if json {
        return Ok(print_json(&description)?);
    }
    let d = &description;
    println!("image      {}  {}", d.cid, d.names.join(" "));
    let threads = d.processes[0].threads;
    println!("process    {} (pid {}, {threads} threads)", d.command_line.join(" "), d.pid);
    for process in d.processes.iter().skip(1) {
        println!("           {}", process.line());
    }
    println!("memory     {} in {} mappings", size::show(d.footprint_bytes), d.vmas);
    println!("pool       {}, {} pages stored", size::show(d.pool_bytes), d.stored_pages);
    if let Some(source) = &d.far_source {
        let sides = if d.far_one_sided == Some(true) { ", one-sided" } else { "" };
        let how =
            d.far_transport.as_ref().map_or_else(String::new, |by| format!(" by {by}{sides}"));
        println!("far        {} at {source}{how}", size::show(d.far_bytes));
    }
    println!("pages      {}", d.access.line());
    for node in d.access.nodes.iter().filter(|node| node.accessed_pages > 0) {
        println!("           {}", node.line());
    }
    println!("files      {} descriptors, external: {:?}", d.fds, d.external_fds);
    for Address { fd, socket } in &d.addresses {
        println!("address    fd {fd}: {socket}");
    }
    println!("made on    Linux {}, farfork {}", d.kernel, d.farfork);
    Ok(())
}

fn describe(pool: &Pool, file: &ImageFile) -> Result<Description, Box<dyn Error>> {
    let image = Image::read_from(file)?;
    let cid = file.id.cid;
    let names = Catalog::of(pool).names_of(cid)?;
    let far = file.far().and_then(|far| far_image(&far.source, cid));
    let model = &image.model;
    let processes: Vec<Process> =
        model.members.iter().map(|member| Process::from_member(member, model)).collect();
    let root = model.root();
    let sum = |part: fn(&Process) -> usize| processes.iter().map(part).sum::<usize>();
    let windows = model.stored().flat_map(|stored| &stored.windows);
    let bits = windows.flat_map(|window| window.pages);
    let stored_pages: u64 = bits.map(|word| u64::from(word.count_ones())).sum();
    let segments = model.stored().flat_map(|stored| &stored.segments);
    let mapped_bytes: u64 = segments.map(|segment| segment.bytes).sum();
    Ok(Description {
        cid: cid.to_string(),
        kind: Kind::Processes,
        names: names.iter().map(ToString::to_string).collect(),
        created_unix_s: model.created_unix_s,
        command_line: root.process.command_line.clone(),
        exe: root.process.exe.display().to_string(),
        pid: root.process.pid,
        threads: sum(|process| process.threads),
        fds: sum(|process| process.fds),
        external_fds: processes[0].external_fds.clone(),
        addresses: addresses(model),
        vmas: sum(|process| process.vmas),
        footprint_bytes: stored_pages * PAGE_BYTES,
        stored_pages,
        zero_pages: mapped_bytes / PAGE_BYTES - stored_pages,
        pool_bytes: file.file().metadata()?.blocks() * 512,
        far_bytes: file.far().map_or(0, FarParts::bytes),
        far_source: file.far().map(|far| far.source.clone()),
        far_transport: far.as_ref().and_then(|far| far.transport.clone()),
        far_one_sided: far.and_then(|far| far.one_sided),
        access: PageUse::read(pool, &image)?,
        processes,
        kernel: model.made_on.kernel.clone(),
        farfork: model.made_on.farfork.clone(),
    })
}

/// What the far process that reads parts of an image from `source` says of it, if one runs.
fn far_image(source: &str, cid: Cid) -> Option<ImageStatus> {
    let address = source.strip_prefix("tcp://").unwrap_or(source);
    let status = start::status(&Place::of(&paths::run_directory(), address)).ok()?;
    status.images.into_iter().find(|image| image.cid == cid.to_string())
}

impl PageUse {
    fn read(pool: &Pool, image: &Image) -> Result<PageUse, Box<dyn Error>> {
        let names = pool.node_names()?;
        let tables = pool.access_tables(image.id.cid)?;
        let mut all = Access::default();
        let mut nodes = Vec::new();
        for table in tables {
            let access = Access::from(table.bits);
            all.merge(&access);
            let name = table.node.and_then(|node| names.get(&node).cloned());
            nodes.push(NodeUse {
                node: name,
                accessed_pages: access.accessed.len(),
                dirtied_pages: access.dirtied.len(),
                additions: table.additions,
            });
        }
        Ok(PageUse {
            mapped_pages: mapped(&image.model).len(),
            accessed_pages: all.accessed.len(),
            dirtied_pages: all.dirtied.len(),
            hot_pages: all.hot.len(),
            nodes,
        })
    }

    fn line(&self) -> String {
        format!(
            "{} mapped from the pool: {} accessed, {} written by clones, {} declared hot",
            self.mapped_pages, self.accessed_pages, self.dirtied_pages, self.hot_pages
        )
    }
}

impl NodeUse {
    fn line(&self) -> String {
        let node = self.node.as_deref().map_or("elsewhere".to_owned(), |node| format!("on {node}"));
        format!("{node}: {} accessed, {} written", self.accessed_pages, self.dirtied_pages)
    }
}

impl Process {
    fn from_member(member: &Member, model: &Model) -> Process {
        let is_external =
            |index: u32| matches!(model.files.get(index as usize), Some(OpenFile::External { .. }));
        let external = member.descriptors.iter().filter(|own| is_external(own.file));
        let parent = member.kinship.parent.and_then(|parent| model.members.get(parent as usize));
        Process {
            pid: member.process.pid,
            parent: parent.map(|parent| parent.process.pid),
            command_line: member.process.command_line.clone(),
            threads: member.threads.len(),
            fds: member.descriptors.len(),
            vmas: member.memory.regions.len(),
            external_fds: external.map(|own| own.fd).collect(),
            ended: member.kinship.ended,
        }
    }

    /// As text: `sleep 9 (pid 12, 1 threads, child of 7)`.
    fn line(&self) -> String {
        let parent = self.parent.unwrap_or_default();
        if self.ended.is_some() {
            return format!("pid {}, dead, child of {parent}", self.pid);
        }
        let (words, threads) = (self.command_line.join(" "), self.threads);
        format!("{words} (pid {}, {threads} threads, child of {parent})", self.pid)
    }
}

/// Sockets that the caller of restore may replace.
fn addresses(model: &Model) -> Vec<Address> {
    let address = |own: Supplied| match &model.files[own.file as usize] {
        OpenFile::Socket(socket) => {
            Some(Address { fd: own.fd, socket: socket.description.clone() })
        }
        _ => None,
    };
    replaceables(model).into_iter().filter_map(address).collect()
}

/// An image of which another pool has not all bytes is not removed with all its names.
fn demand_free(pool: &Pool, cid: Cid) -> Result<(), Box<dyn Error>> {
    let Some(hold) = holds::of(pool, cid)?.into_iter().next() else { return Ok(()) };
    Err(format!(
        "cannot remove image {cid}: another node has parts of it here only; bring them back there (\"farfork images \
         tier --back\"), or remove the name {hold} first, and they are lost"
    )
    .into())
}

fn remove(pool: &Pool, image: &str) -> Result<(), Box<dyn Error>> {
    let catalog = Catalog::of(pool);
    let cid = named::resolve(pool, image)?;
    let gone = match image.parse::<Cid>() {
        Ok(_) => {
            demand_free(pool, cid)?;
            let mut names = catalog.names_of(cid)?;
            names.retain(|name| name.user() != holds::USER);
            names
        }
        Err(_) => vec![image.parse::<ImageName>()?],
    };
    for name in &gone {
        catalog.remove(name)?;
    }
    if !named::remove(pool, cid)? && image.parse::<Cid>().is_ok() {
        // Another node has asked for it meanwhile.
        demand_free(pool, cid)?;
    }
    Ok(())
}
