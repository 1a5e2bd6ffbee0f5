//! Process to image: freeze, collect, refuse, copy, publish.
//!
//! ```text
//!  freeze ─► collect ─► refuse? ─► copy pages ─► thaw ─► write metadata ─► publish
//!            (nothing written)     (private to the writer)                (one store)
//! ```
//! CXLfork (ASPLOS '25) §4.1 does this inside the kernel; here the process is traced, and what
//! only it can ask the kernel is asked by system calls made on its behalf.

mod copy;
mod descriptors;
mod error;
mod freeze;
mod inject;
mod maps;
mod memory;
mod process;
pub mod refuse;
mod status;
mod threads;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_image::error::ImageError;
use farfork_image::format;
use farfork_image::model::{Model, OpenFile};
use farfork_pool::{Held, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid};

pub use error::CheckpointError;
use freeze::Frozen;
use inject::Injector;
use memory::Run;
use refuse::{Refusal, Refusals};
use status::Status;

/// A checkpoint that was made.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its id.
    pub cid: Cid,
    /// Bytes of the process's memory that were copied.
    pub copied_bytes: u64,
    /// Bytes of the pool that the image takes.
    pub pool_bytes: u64,
    /// How long the process stood still.
    pub frozen: Duration,
    /// How long the page copy took, part of `frozen`.
    pub copying: Duration,
    /// How long the whole took.
    pub total: Duration,
    held: Unsettled,
}

/// What waits for the image to get its name.
#[derive(Debug)]
struct Unsettled {
    _image: Held,
    process: Option<Frozen>,
}

impl Checkpoint {
    /// To be called once the image has a name. Before, nothing is lost whoever dies: an image
    /// without a name is given back by `farfork pool check`, and the process still lives.
    pub fn settle(&self) {
        if let Some(frozen) = &self.held.process {
            let pid = nix::unistd::Pid::from_raw(frozen.pid());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// A process as it was found: what goes into the model, and the pages to copy.
struct Collected {
    model: Model,
    runs: Vec<Run>,
}

/// Lists everything that keeps `pid` from being checkpointed.
pub fn dry_run(pid: i32) -> Result<Vec<Refusal>, CheckpointError> {
    let frozen = Frozen::freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    collect(&frozen, &mut refusals)?;
    Ok(refusals.into_list())
}

/// Checkpoints `pid` into `pool`. With `kill` the process never runs again after the moment that
/// the image shows, unless the checkpoint is dropped without being settled.
pub fn checkpoint(pool: &Pool, pid: i32, kill: bool) -> Result<Checkpoint, CheckpointError> {
    let begun = Instant::now();
    let frozen = Frozen::freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    let collected = collect(&frozen, &mut refusals)?;
    let refusals = refusals.into_list();
    let Some(Collected { mut model, runs }) = collected.filter(|_| refusals.is_empty()) else {
        return Err(CheckpointError::Refused(refusals));
    };
    let mut writer = pool.begin()?;
    let meta = reserve_metadata(&mut writer, &model)?;
    let extents = writer.allocate(model.memory.windows.len() as u32)?;
    let copying = Instant::now();
    let copied_bytes = copy::copy(pid, &runs, &model.memory.windows, &mut writer, &extents)?;
    let copying = copying.elapsed();
    // One that is to be killed stands still until its image is there to take its place.
    let frozen_for = begun.elapsed();
    let frozen = Some(frozen).filter(|_| kill);
    model.created_unix_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let placement = format::chunk_offsets(&extents);
    let sums: Vec<u32> = placement.iter().map(|at| chunk_sum(&mut writer, &extents, *at)).collect();
    let bytes = format::encode(&model, writer.cid(), &placement, &sums);
    writer.write(meta, &bytes);
    let pool_bytes = writer.extents().iter().map(|extent| extent.bytes()).sum();
    let (cid, held) = writer.publish_held(bytes.len() as u64)?;
    let total = begun.elapsed();
    let held = Unsettled { _image: held, process: frozen };
    Ok(Checkpoint { cid, copied_bytes, pool_bytes, frozen: frozen_for, copying, total, held })
}

fn chunk_sum(writer: &mut ImageWriter<'_>, extents: &[farfork_pool::Extent], at: u64) -> u32 {
    extents.iter().find(|run| run.offset <= at && at < run.end()).map_or(0, |run| {
        let from = (at - run.offset) as usize;
        crc32c::crc32c(&writer.bytes_mut(*run)[from..from + CHUNK_BYTES as usize])
    })
}

fn reserve_metadata(writer: &mut ImageWriter<'_>, model: &Model) -> Result<u64, CheckpointError> {
    let chunks = format::meta_chunks(format::bytes_bound(model));
    match writer.allocate(chunks)?.as_slice() {
        [extent] => Ok(extent.offset),
        _ => Err(ImageError::Scattered { cid: writer.cid(), chunks }.into()),
    }
}

fn refusals_of(pid: i32) -> Result<Refusals, CheckpointError> {
    let status = Status::read(pid, pid)?;
    Ok(Refusals::of(format!("process {pid} ({})", status.name)))
}

/// Everything about the process; nothing if it cannot even be asked, which is among the refusals.
fn collect(frozen: &Frozen, refusals: &mut Refusals) -> Result<Option<Collected>, CheckpointError> {
    let pid = frozen.pid();
    if !threads::can_call(pid, frozen.tids(), refusals)? {
        return Ok(None);
    }
    let mappings = maps::read(pid)?;
    let (kernel, vdso) = memory::kernel_range(&mappings);
    let regions = memory::regions(&mappings, refusals);
    let runs = memory::runs(pid, &regions)?;
    let injector = Injector::new(frozen, vdso)?;
    let threads = frozen
        .tids()
        .iter()
        .map(|tid| threads::collect(&injector, pid, *tid, refusals))
        .collect::<Result<Vec<_>, _>>()?;
    let memory = memory::memory(regions, memory::windows(&runs), kernel);
    let mut open = descriptors::collect(pid, refusals)?;
    separate_standard_streams(&mut open);
    let model = Model {
        made_on: process::made_on(injector.vdso(), &threads[0].xstate),
        created_unix_s: 0,
        process: process::collect(&injector, pid, refusals)?,
        memory: process::layout(&injector, pid, memory)?,
        signals: process::signals(&injector, pid)?,
        timers: process::timers(&injector, pid, &threads)?,
        threads,
        descriptors: open.descriptors,
        files: open.files,
    };
    Ok(Some(Collected { model, runs }))
}

/// The caller of restore supplies 0, 1 and 2 one by one, though the parent may have had one
/// terminal for all three.
fn separate_standard_streams(open: &mut descriptors::Collected) {
    for descriptor in open.descriptors.iter_mut().filter(|descriptor| descriptor.fd < 3) {
        let file = &open.files[descriptor.file as usize];
        if matches!(file, OpenFile::External { .. }) {
            let own = file.clone();
            descriptor.file = open.files.len() as u32;
            open.files.push(own);
        }
    }
}
