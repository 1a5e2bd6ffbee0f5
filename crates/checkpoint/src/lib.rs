//! Process to image: freeze, collect, refuse, copy, publish.
//!
//! ```text
//!  reserve ─► freeze ─► collect ─► refuse? ─► copy pages ─► thaw ─► write metadata ─► publish
//!  (empty)              (nothing written)     (private to the writer)                (one store)
//! ```
//! CXLfork (ASPLOS '25) §4.1 does this inside the kernel; here the process is traced, and what
//! only it can ask the kernel is asked by system calls made on its behalf. Room in the pool is
//! taken and cleared before the freeze, from an [`estimate`]; the process stands still for the
//! rest up to the copy alone.

mod ancestor;
mod copy;
pub mod descriptors;
mod error;
mod estimate;
mod files;
mod filters;
mod freeze;
mod hardening;
mod hindrance;
mod identity;
mod inject;
mod maps;
mod memory;
mod mounts;
mod namespaces;
mod probe;
mod process;
pub mod refuse;
mod rseq;
pub mod shared;
mod threads;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_image::model::{Member, Memory, Model, Process, Stored};
use farfork_image::store::{Draft, Published};
use farfork_pool::{Held, Pool};
use farfork_sys::status::{self, Status};
use farfork_types::Cid;
use nix::sys::signal::{Signal, kill as kill_process};
use nix::unistd::Pid;

use ancestor::Ancestor;
pub use copy::Progress;
use descriptors::{Connections, Kept};
pub use error::CheckpointError;
use freeze::Frozen;
use inject::Injector;
use memory::Run;
use refuse::{Refusal, Refusals, causes};
use shared::{Layout, Objects};

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
    kept: Option<Kept>,
}

impl Checkpoint {
    /// To be called once the image has a name. Before, nothing is lost whoever dies: an image
    /// without a name is given back by `farfork pool check`, and the process still lives. It does
    /// so, too, if it cannot hand over its connections.
    pub fn settle(&self) -> Result<(), CheckpointError> {
        if let Some(frozen) = &self.held.process {
            if let Some(kept) = &self.held.kept {
                let doing = error::doing(frozen.pid(), "keep its connections silent (nf_tables)");
                kept.hand_over().map_err(|errno| doing(errno.into()))?;
            } else {
                // Best effort: without it, a clone may have to wait for a port.
                let _ = descriptors::reset_on_death(frozen.pid());
            }
            let _ = kill_process(Pid::from_raw(frozen.pid()), Signal::SIGKILL);
        }
        Ok(())
    }
}

/// A process as it was found: what goes into the model, and the pages to copy.
struct Collected {
    model: Model,
    runs: Vec<Run>,
    shared: Layout,
    kept: Option<Kept>,
}

/// Lists everything that keeps `pid` from being checkpointed.
pub fn dry_run(pid: i32, fate: Fate) -> Result<Vec<Refusal>, CheckpointError> {
    look_at(pid)?;
    let frozen = freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    collect(&frozen, fate, &mut refusals)?;
    Ok(refusals.into_list())
}

/// Stops the process in its own code: a clone that has only just been started may still be on
/// its way there.
fn freeze(pid: i32) -> Result<Frozen, CheckpointError> {
    for _ in 0..ARRIVAL_CHECKS {
        let frozen = Frozen::freeze(pid)?;
        if !threads::is_any_in_window(&frozen)? {
            return Ok(frozen);
        }
        drop(frozen);
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(CheckpointError::Changed { pid, what: "was still being restored" })
}

const ARRIVAL_CHECKS: usize = 200;

/// What becomes of a process when its image is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    #[default]
    GoesOn,
    /// It never runs again after the moment that the image shows, unless the checkpoint is dropped
    /// without being settled.
    Dies,
    /// It dies, and a clone in its place goes on with its TCP connections.
    HandsOver,
}

impl Fate {
    fn connections(self) -> Connections {
        if self == Fate::HandsOver { Connections::GoOn } else { Connections::End }
    }
}

/// Checkpoints `pid` into `pool`, and keeps `fate` in store for the process.
/// `progress` is told the bytes copied and those to be copied, and must not wait.
pub fn checkpoint(
    pool: &Pool,
    pid: i32,
    fate: Fate,
    progress: Progress<'_>,
) -> Result<Checkpoint, CheckpointError> {
    let begun = Instant::now();
    look_at(pid)?;
    let reserved = reserve(pool, pid);
    let stopped = freeze(pid)?;
    let mut refusals = refusals_of(pid)?;
    let collected = collect(&stopped, fate, &mut refusals)?;
    let refusals = refusals.into_list();
    let Some(Collected { mut model, runs, shared, kept }) =
        collected.filter(|_| refusals.is_empty())
    else {
        return Err(CheckpointError::Refused(refusals));
    };
    let mut draft = match reserved {
        Some(draft) => draft,
        None => Draft::begin(pool)?,
    };
    draft.fit(&model)?;
    let copy_begun = Instant::now();
    let (writer, extents) = draft.room();
    let own = &model.root().memory.stored.segments;
    let copied_bytes = copy::copy(pid, &runs, own, writer, extents, progress)?
        + shared.copy(pid, &model.content.segments, writer, extents)?;
    let copying = copy_begun.elapsed();
    // One that is to be killed stands still until its image is there to take its place.
    let frozen = stopped.since().elapsed();
    let process = Some(stopped).filter(|_| fate != Fate::GoesOn);
    model.created_unix_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Published { cid, held, pool_bytes } = draft.publish(&model)?;
    let total = begun.elapsed();
    let held = Unsettled { _image: held, process, kept };
    Ok(Checkpoint { cid, copied_bytes, pool_bytes, frozen, copying, total, held })
}

/// Takes and clears room for the process as it is now, while it goes on running. Without room, or
/// if nothing can be told yet, all of it is left to the moment when the process stands still.
fn reserve(pool: &Pool, pid: i32) -> Option<Draft<'_>> {
    let chunks = estimate::chunks(pid).ok().flatten()?;
    let mut draft = Draft::begin(pool).ok()?;
    draft.reserve(chunks).ok()?;
    Some(draft)
}

/// Refuses what cannot even be stopped.
fn look_at(pid: i32) -> Result<(), CheckpointError> {
    if pid == std::process::id() as i32 {
        return Err(CheckpointError::Itself { pid });
    }
    let status = Status::read(pid, pid).map_err(|_| CheckpointError::NoProcess { pid })?;
    let mut refusals = refusals_of(pid)?;
    match status.state {
        Some('Z') => refusals.add("main thread", causes::process::MAIN_THREAD_ENDED),
        // The kernel lets nobody in a PID namespace stop its pid 1.
        Some('T') if status.innermost_pid == 1 => {
            refusals.add("process", causes::process::STOPPED_INIT);
        }
        _ if status.is_ptraced_before => {
            refusals.add("process", causes::process::TRACED);
        }
        _ => {}
    }
    match refusals.into_list() {
        none if none.is_empty() => Ok(()),
        some => Err(CheckpointError::Refused(some)),
    }
}

fn refusals_of(pid: i32) -> Result<Refusals, CheckpointError> {
    let status = Status::read(pid, pid)?;
    Ok(Refusals::of(format!("process {pid} ({})", status.name)))
}

/// Everything about the process; nothing if it cannot even be asked, which is among the refusals.
fn collect(
    frozen: &Frozen,
    fate: Fate,
    refusals: &mut Refusals,
) -> Result<Option<Collected>, CheckpointError> {
    let pid = frozen.pid();
    let mappings = maps::read(pid)?;
    let (kernel, vdso) = memory::kernel_range(&mappings);
    let ancestor = Ancestor::of(&mappings)?;
    let own_filters = u32::from(ancestor.is_some());
    namespaces::refuse(pid, frozen.tids(), refusals)?;
    if !threads::can_call(pid, frozen.tids(), own_filters, refusals)? {
        return Ok(None);
    }
    let objects = Objects::find(pid, &mappings, refusals)?;
    objects.refuse_channels(pid, refusals);
    let mut regions = memory::regions(pid, &mappings, ancestor.as_ref(), &objects, refusals);
    let guards = memory::guards(pid, &regions.all)?;
    let runs = memory::runs(pid, &regions, &guards)?;
    let locked_kb = Status::read(pid, pid)?.locked_kb;
    rseq::abort(frozen)?;
    let injector = Injector::new(frozen, vdso)?;
    probe::refuse_confined(&injector, pid, refusals)?;
    let locks_future = probe::locks_future(&injector, pid, locked_kb)?;
    let protection_keys = probe::protection_keys(&injector, pid)?;
    memory::forget_kernel_keys(&mut regions.all, protection_keys);
    let signals = process::signals(&injector, pid)?;
    let threads = frozen
        .tids()
        .iter()
        .map(|tid| threads::collect(&injector, *tid, &signals, own_filters, refusals))
        .collect::<Result<Vec<_>, _>>()?;
    let open = descriptors::collect(pid, &objects, fate.connections(), refusals)?;
    let shared = objects.lay_out(pid)?;
    let memory = memory::memory(regions.all, &runs, guards, kernel);
    let memory = Memory { protection_keys, ..memory };
    let made_on = process::made_on(pid, injector.vdso(), &threads[0].xstate)?;
    let member = Member {
        kinship: process::kinship(pid)?,
        process: Process {
            locks_future,
            is_stopped: frozen.is_stopped(),
            ..process::collect(&injector, pid, refusals)?
        },
        memory: process::layout(&injector, pid, memory)?,
        signals,
        timers: process::timers(&injector, pid, &threads)?,
        threads,
        descriptors: open.descriptors,
        locks: open.locks,
        notices: open.notices,
    };
    let mut model = Model {
        made_on,
        created_unix_s: 0,
        members: vec![member],
        objects: shared.objects.clone(),
        content: Stored::default(),
        files: open.files,
        unnamed: open.unnamed,
        terminals: open.terminals,
        mounts: Vec::new(),
    };
    model.content = shared.content(model.chunks() as u64);
    model.mounts = mounts::collect(pid, &model, refusals)?;
    Ok(Some(Collected { model, runs, shared, kept: open.kept }))
}
