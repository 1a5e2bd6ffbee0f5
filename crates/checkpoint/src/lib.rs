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
use farfork_image::model::Model;
use farfork_pool::{Extent, ImageWriter, Pool};
use farfork_types::{CHUNK_BYTES, Cid};
use nix::sys::signal::{Signal, kill as kill_process};
use nix::unistd::Pid;

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
}

/// A process as it was found: what goes into the model, and the pages to copy.
struct Collected {
    model: Model,
    runs: Vec<Run>,
}

/// Lists everything that keeps `pid` from being checkpointed.
pub fn dry_run(pid: i32) -> Result<Vec<Refusal>, CheckpointError> {
    look_at(pid)?;
    let frozen = Frozen::freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    collect(&frozen, &mut refusals)?;
    Ok(refusals.into_list())
}

/// Checkpoints `pid` into `pool`. With `kill` the process does not run again after the moment
/// that the image shows, once the image is published.
pub fn checkpoint(pool: &Pool, pid: i32, kill: bool) -> Result<Checkpoint, CheckpointError> {
    let begun = Instant::now();
    look_at(pid)?;
    let stopped = Frozen::freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    let Collected { model, runs } = collect(&stopped, &mut refusals)?;
    let refusals = refusals.into_list();
    if !refusals.is_empty() {
        return Err(CheckpointError::Refused(refusals));
    }
    let copied = Copied::of(pool, pid, model, &runs)?;
    let (copied_bytes, copying) = (copied.bytes, copied.took);
    let (published, frozen) = if kill {
        let published = copied.publish()?;
        // The process is stopped: the signal is all that it will ever see.
        let _ = kill_process(Pid::from_raw(pid), Signal::SIGKILL);
        drop(stopped);
        (published, begun.elapsed())
    } else {
        drop(stopped);
        let frozen = begun.elapsed();
        (copied.publish()?, frozen)
    };
    let (cid, pool_bytes) = published;
    let total = begun.elapsed();
    Ok(Checkpoint { cid, copied_bytes, pool_bytes, frozen, copying, total })
}

/// Refuses what cannot even be stopped.
fn look_at(pid: i32) -> Result<(), CheckpointError> {
    let status = Status::read(pid, pid).map_err(|_| CheckpointError::NoProcess { pid })?;
    let mut refusals = refusals_of(pid)?;
    match status.state {
        Some('Z') => refusals.add(
            "main thread",
            "it has ended, so that the process can be neither stopped nor described",
            "keep the main thread until the checkpoint",
        ),
        Some('T') => refusals.add("process", "it is stopped", "continue it with SIGCONT"),
        _ if status.is_ptraced_before => {
            refusals.add("process", "a debugger traces it", "detach the debugger");
        }
        _ => {}
    }
    match refusals.into_list() {
        none if none.is_empty() => Ok(()),
        some => Err(CheckpointError::Refused(some)),
    }
}

/// A model and the chunks that hold its pages; nobody sees them yet.
struct Copied<'p> {
    writer: ImageWriter<'p>,
    model: Model,
    metadata_offset: u64,
    extents: Vec<Extent>,
    bytes: u64,
    took: Duration,
}

impl<'p> Copied<'p> {
    fn of(
        pool: &'p Pool,
        pid: i32,
        model: Model,
        runs: &[Run],
    ) -> Result<Copied<'p>, CheckpointError> {
        let mut writer = pool.begin()?;
        let metadata_offset = reserve_metadata(&mut writer, &model)?;
        let windows = &model.memory.windows;
        let extents = writer.allocate(windows.len() as u32)?;
        let begun = Instant::now();
        let bytes = copy::copy(pid, runs, windows, &mut writer, &extents)?;
        Ok(Copied { writer, model, metadata_offset, extents, bytes, took: begun.elapsed() })
    }

    /// Writes the metadata and makes the image visible; its id and its bytes of the pool.
    fn publish(mut self) -> Result<(Cid, u64), CheckpointError> {
        self.model.created_unix_s =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let placement = format::chunk_offsets(&self.extents);
        let sums: Vec<u32> = placement
            .iter()
            .map(|offset| chunk_sum(&mut self.writer, &self.extents, *offset))
            .collect();
        let bytes = format::encode(&self.model, self.writer.cid(), &placement, &sums);
        self.writer.write(self.metadata_offset, &bytes);
        let pool_bytes = self.writer.extents().iter().map(|extent| extent.bytes()).sum();
        Ok((self.writer.publish(bytes.len() as u64)?, pool_bytes))
    }
}

fn chunk_sum(writer: &mut ImageWriter<'_>, extents: &[Extent], at: u64) -> u32 {
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

fn collect(frozen: &Frozen, refusals: &mut Refusals) -> Result<Collected, CheckpointError> {
    let pid = frozen.pid();
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
    let guards = memory::guards(pid, &regions)?;
    let memory = memory::memory(regions, memory::windows(&runs), guards, kernel);
    let open = descriptors::collect(pid, refusals)?;
    let model = Model {
        made_on: process::made_on(pid, vdso, &threads[0].xstate),
        created_unix_s: 0,
        process: process::collect(&injector, pid, refusals)?,
        memory: process::layout(&injector, pid, memory)?,
        signals: process::signals(&injector, pid)?,
        timers: process::timers(&injector, pid, &threads)?,
        threads,
        descriptors: open.descriptors,
        files: open.files,
    };
    Ok(Collected { model, runs })
}
