//! `farfork vm import` and `export`.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::header::Kind;
use farfork_image::tier;
use farfork_image::vm::{self, Imported, Monitor, Snapshot, VmError};
use farfork_node::{ServedImage, with_far_side};
use farfork_pool::{ImageFile, Pool};
use farfork_sys::words;
use farfork_types::Cid;
use serde::Serialize;

use super::record;
use crate::output::print_json;
use crate::pool::PoolArg;
use crate::progress::Progress;
use crate::unfinished::UnfinishedFile;
use crate::{named, size};

#[derive(Serialize)]
struct Made<'a> {
    cid: String,
    name: String,
    #[serde(flatten)]
    monitor: &'a Monitor,
    raw_bytes: u64,
    zero_bytes: u64,
    base_bytes: u64,
    pool_bytes: u64,
}

/// What to import, and as what.
#[derive(clap::Args)]
pub(crate) struct Import {
    #[command(flatten)]
    pool: PoolArg,
    /// Name of the image: USER/FUNCTION[:TAG]. An existing name of a snapshot moves to the new image,
    /// and the old image is removed with its last name.
    #[arg(long)]
    name: ImageName,
    /// State file of the virtual machine.
    snapshot: PathBuf,
    /// Memory file of the virtual machine.
    memfile: PathBuf,
    /// Name or id of the snapshot that the machine was started from: holes of the memory file (Firecracker's snapshot type
    /// Diff) are pages that are still as they are there. The new image is whole by itself. Copy such a file so that
    /// its holes stay, and no others come: a page of zeros is not a hole.
    #[arg(long, value_name = "IMAGE")]
    base: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Makes an image of a snapshot and names it.
pub(super) fn import(args: &Import) -> Result<(), Box<dyn Error>> {
    let Import { pool, name, snapshot, memfile, base, json } = args;
    let pool = &pool.open()?;
    demand_free(pool, name)?;
    let base = base.as_ref().map(|image| open(pool, image)).transpose()?;
    let base_snapshot = base.as_ref().map(Snapshot::read_from).transpose()?;
    let base = base_snapshot.as_ref().zip(base.as_ref());
    let mut shown = Progress::new("importing");
    let progress = &mut |doing, done, all| shown.bytes_of(doing, done, all);
    let made = vm::import(pool, Some(name.user()), snapshot, memfile, base, progress);
    let made = made.map_err(|error| with_node(error, base.map(|(_, file)| file)))?;
    drop(shown);
    // Once more: reading a large memory takes a while.
    publish(pool, name, made.cid, || demand_free(pool, name))?;
    report(name, &made, *json)
}

/// Gives a new image its name if `may_have_it` permits that while no other process changes names, and removes the image
/// that had it. If that fails, the new image is removed.
fn publish(
    pool: &Pool,
    name: &ImageName,
    cid: Cid,
    may_have_it: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let set = || -> Result<Option<Cid>, Box<dyn Error>> {
        let names = pool.lock_names()?;
        may_have_it()?;
        Ok(names.set(name.parts(), cid)?)
    };
    let old = set().inspect_err(|_| drop(named::remove(pool, cid)))?;
    if let Some(old) = old.filter(|old| *old != cid) {
        named::remove(pool, old)?;
    }
    Ok(())
}

/// The image, with the other node's file of it if parts lie there.
pub(super) fn open(pool: &Pool, image: &str) -> Result<ImageFile, Box<dyn Error>> {
    let file = pool.find(named::resolve(pool, image)?)?;
    Ok(whole(&file)?.unwrap_or(file))
}

/// The same for as long as machines use it: the image stays in the pool.
pub(super) fn borrow(pool: Pool, image: &str) -> Result<(ServedImage, ImageFile), Box<dyn Error>> {
    let cid = named::resolve(&pool, image)?;
    let served = ServedImage::borrow(pool, cid)?;
    let own = served.image().image();
    let file = match whole(own)? {
        Some(whole) => whole,
        None => ImageFile::handed_over(own.file().try_clone()?, cid)?,
    };
    Ok((served, file))
}

/// An image with the other node's file of it, if parts lie there.
fn whole(file: &ImageFile) -> Result<Option<ImageFile>, Box<dyn Error>> {
    let Some(whole) = with_far_side(file)? else { return Ok(None) };
    let node = whole.far().map(|far| far.source.as_str()).unwrap_or_default();
    tier::demand_same(&whole, node)?;
    Ok(Some(whole))
}

/// The error of a read of an image, with the node that may be its reason.
fn with_node(error: VmError, image: Option<&ImageFile>) -> String {
    let words = error.to_string();
    match (error, image.and_then(ImageFile::far)) {
        (VmError::Image(_), Some(far)) => {
            format!("{words}; parts of it lie at {}, which may not answer", far.source)
        }
        _ => words,
    }
}

/// Writes the image anew, with the pages that machines needed beside each other, and gives it its name.
pub(super) fn repack(pool: &Pool, name: &ImageName) -> Result<(), Box<dyn Error>> {
    let file = open(pool, &name.to_string())?;
    let source = Snapshot::read_from(&file)?;
    let hot = record::known(pool, file.id.cid)?;
    if hot.is_empty() {
        return Err(format!(
            "cannot repack {name}: it is not known which pages its machines need; restore one with \"farfork vm \
             serve\" first"
        )
        .into());
    }
    let mut shown = Progress::new("repacking");
    let progress = &mut |doing, done, all| shown.bytes_of(doing, done, all);
    let made = vm::repack(pool, Some(name.user()), (&source, &file), &hot, progress);
    let made = made.map_err(|error| with_node(error, Some(&file)))?;
    drop(shown);
    let old = file.id.cid;
    record::add(pool, made.cid, &hot).inspect_err(|_| drop(named::remove(pool, made.cid)))?;
    publish(pool, name, made.cid, || demand_still(pool, name, old))?;
    println!("{}", made.cid);
    Ok(())
}

/// Refuses a name that means another image than before: a repacked image must not take the place of a newer one.
fn demand_still(pool: &Pool, name: &ImageName, cid: Cid) -> Result<(), Box<dyn Error>> {
    match Catalog::of(pool).get(name)? {
        Some(now) if now == cid => Ok(()),
        _ => Err(format!(
            "cannot repack {name}: another command has changed what the name means; run farfork vm repack again"
        )
        .into()),
    }
}

/// Refuses a name that means an image of processes: an import must not remove that.
fn demand_free(pool: &Pool, name: &ImageName) -> Result<(), Box<dyn Error>> {
    let Some(cid) = Catalog::of(pool).get(name)? else { return Ok(()) };
    // What cannot be read may be replaced.
    let kind = pool.find(cid).ok().and_then(|file| Kind::of(&file).ok());
    if kind == Some(Kind::Processes) {
        return Err(format!(
            "cannot import a virtual machine as {name}: the name means a checkpoint of processes; give \
             another name, or remove it with `farfork images rm {name}`"
        )
        .into());
    }
    Ok(())
}

fn report(name: &ImageName, made: &Imported, json: bool) -> Result<(), Box<dyn Error>> {
    let zero_bytes = made.raw_bytes - made.stored_bytes;
    if made.monitor == Monitor::Unknown {
        eprintln!(
            "farfork: the state file is not recognised as Firecracker's; it is kept as it is, and whether it \
             is whole is not known"
        );
    }
    if json {
        print_json(&Made {
            cid: made.cid.to_string(),
            name: name.to_string(),
            monitor: &made.monitor,
            raw_bytes: made.raw_bytes,
            zero_bytes,
            base_bytes: made.base_bytes,
            pool_bytes: made.pool_bytes,
        })?;
        return Ok(());
    }
    println!("{}", made.cid);
    let of_base = match made.base_bytes {
        0 => String::new(),
        bytes => format!(" and {} are the base's", size::show(bytes)),
    };
    eprintln!(
        "{name}: memory of {}, of which {} are zeros{of_base}; {} of the pool",
        size::show(made.raw_bytes),
        size::show(zero_bytes),
        size::show(made.pool_bytes)
    );
    Ok(())
}

/// Writes the files that were imported, or the state alone. After a failure there is no partial file.
pub(super) fn export(
    pool: &Pool,
    image: &str,
    snapshot: &Path,
    memory: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let absolute = |path: &Path| std::path::absolute(path);
    if memory.map(absolute).transpose()?.is_some_and(|path| Some(path) == absolute(snapshot).ok()) {
        return Err("cannot export state and memory to one file: give two paths".into());
    }
    let file = open(pool, image)?;
    let source = Snapshot::read_from(&file)?;
    let refused = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("cannot export to {path}: {}", words::of(&error))
    };
    let (state_name, mut state) = UnfinishedFile::beside(snapshot).map_err(refused(snapshot))?;
    state.write_all(&source.state).map_err(refused(snapshot))?;
    if let Some(path) = memory {
        let (name, memory) = UnfinishedFile::beside(path).map_err(refused(path))?;
        let mut shown = Progress::new("exporting");
        let progress = &mut |done, all| shown.bytes_of("exporting", done, all);
        let exported = vm::export(&source, &file, (path, &memory), progress);
        exported.map_err(|error| with_node(error, Some(&file)))?;
        drop(shown);
        name.finish(&memory).map_err(refused(path))?;
    }
    Ok(state_name.finish(&state).map_err(refused(snapshot))?)
}
