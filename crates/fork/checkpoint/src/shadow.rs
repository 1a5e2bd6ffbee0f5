//! A frozen copy of a running process: memory that never changes, from which clones fetch pages.
//!
//! ```text
//!  freeze ─► collect ─► fork the shadow ─► thaw ─► look at memory and mounts, in the shadow     most processes
//!  freeze ─► collect ─► fork the shadow ─► copy what it does not inherit ─► thaw                all others
//! ```
//! MITOSIS (OSDI '23) §5.1 copies the page table of the parent into a descriptor and keeps the parent's
//! pages by reference counts of its kernel module. Here the kernel's own fork does both: the shadow has
//! the page tables, and pages that the parent changes afterwards are copied for the parent. The rest of
//! the descriptor is the model of an image, whose data stay in the shadow.
//!
//! Invariants: the shadow never runs an instruction of the process; it ends with the thread that has
//! prepared it, whatever ends that; what is read from it was the process's when it was prepared.

mod deferred;
mod parts;
mod reply;

use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_image::model::{Backing, Model, Region};
use farfork_sys::{memory, pidfd, proc};

use crate::ancestor::AncestorImage;
use crate::collect::{Collected, Depth, Pages, collect};
use crate::copy;
use crate::error::{CheckpointError, doing};
use crate::inject::StoppedCopy;
use crate::member::ObservedProcess;
use crate::options::CheckpointOptions;
use crate::refuse::Refusals;
use crate::runs::Run;
use crate::stopped::StoppedProcess;
use crate::tree::{StoppedTree, Target};
use crate::{diagnose, shadows, tree};

pub use parts::{Part, PartSource};
pub use reply::Reply;

use parts::parts;

/// A process that is prepared to be forked anywhere.
pub struct Prepared {
    /// What an image of it would hold.
    pub model: Model,
    /// Where the data of its chunks come from, in the order of their places. What no part covers is zeros.
    pub parts: Vec<Part>,
    /// What the shadow does not inherit.
    pub copied: Vec<u8>,
    /// The image that the process is a clone of, if parts lie there.
    pub ancestor: Option<AncestorImage>,
    /// The frozen copy.
    pub shadow: Shadow,
    /// How long the process was stopped.
    pub frozen: Duration,
    /// How long the fork of the shadow took, part of `frozen`.
    pub forking: Duration,
}

/// How long to wait for a killed shadow to end before its parent is asked to reap it.
const RECLAIM_LIMIT: Duration = Duration::from_secs(60);

/// The frozen copy of a process. It belongs to the thread that has made it. Dropping it kills it.
pub struct Shadow {
    copy: StoppedCopy,
    handle: OwnedFd,
    parent: Parent,
    /// Address of a page that the process did not have.
    scratch: u64,
    mem: Arc<File>,
    is_alive: Arc<AtomicBool>,
    /// The kernel lets only the thread that traces it wait for it.
    of_thread: PhantomData<*const ()>,
}

/// The process that a shadow is a copy of.
#[derive(Clone, Copy, Debug)]
pub struct Parent {
    /// Its pid here.
    pub pid: i32,
    /// When it was started, since its pid may be reused.
    started: Option<u64>,
}

impl Parent {
    /// Whether it still lives.
    pub fn lives(&self) -> bool {
        self.started.is_some() && proc::started(self.pid) == self.started
    }
}

/// Reads the memory of a shadow, in any thread.
#[derive(Clone)]
pub struct ShadowMemory {
    pid: i32,
    mem: Arc<File>,
    is_alive: Arc<AtomicBool>,
}

/// Prepares process `pid`, which has no children but shadows, and lets it go on. The calling thread has
/// to live as long as the shadow. A process that has asked for it itself gets a `reply`.
pub fn prepare(pid: i32, reply: Option<&Reply>) -> Result<Prepared, CheckpointError> {
    let target = Target::Process(pid);
    tree::look_at(target)?;
    // Read once, and not while the process stands still.
    let _ = farfork_image::machine::this();
    // A process with its reply goes on for good: all there is to refuse has to be known before.
    let deferred = if reply.is_none() { deferred::prepare(target)? } else { None };
    let mut prepared = match deferred {
        Some(prepared) => prepared,
        None => prepare_whole(target, reply)?,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    prepared.model.created_unix_s = since.map_or(0, |since| since.as_secs());
    Ok(prepared)
}

/// Looks at everything while the process stands still.
fn prepare_whole(target: Target, reply: Option<&Reply>) -> Result<Prepared, CheckpointError> {
    let stopped = tree::stop(target).map_err(diagnose::explain_frozen)?;
    reply.map_or(Ok(()), |reply| reply.check(target.pid()))?;
    let mut refusals = Refusals::new(target.pid());
    let options = CheckpointOptions::default();
    let collected = collect(&stopped, options, Depth::WithImage, &mut refusals);
    let collected = collected.map_err(diagnose::explain_frozen)?;
    let refusals = refusals.into_list();
    let Some(collected) = collected.filter(|_| refusals.is_empty()) else {
        return Err(CheckpointError::Refused(refusals));
    };
    let begun = Instant::now();
    let (shadow, parts, copied) = fork_all(&stopped, &collected, reply)?;
    let forking = begun.elapsed();
    let frozen = stopped.since().elapsed();
    drop(stopped);
    shadow.goes_first();
    let ancestor = collected.memories.first().and_then(|pages| pages.image_pages.image()).cloned();
    Ok(Prepared { model: collected.model, parts, copied, ancestor, shadow, frozen, forking })
}

/// Forks the shadow, and copies what it does not have.
fn fork_all(
    stopped: &StoppedTree,
    collected: &Collected,
    reply: Option<&Reply>,
) -> Result<(Shadow, Vec<Part>, Vec<u8>), CheckpointError> {
    forked(stopped, collected, &unneeded(&collected.model), |shadow, pages| {
        let (parts, copied) = parts(collected, pages)?;
        reply.map_or(Ok(()), |reply| reply.give(pages.pid, shadow.pid()))?;
        Ok((shadow, parts, copied))
    })
}

/// Forks the shadow, without some mappings, and does what remains before the process goes on. If that
/// fails there is no shadow.
fn forked<T>(
    stopped: &StoppedTree,
    collected: &Collected,
    without: &[Run],
    then: impl FnOnce(Shadow, &Pages) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let (Some((_, process)), Some(pages)) = (stopped.living().next(), collected.memories.first())
    else {
        let pid = stopped.members()[0].pid;
        return Err(CheckpointError::NoProcess { pid });
    };
    let injector = pages.calls.injector(process)?;
    let made = injector.fork(without).and_then(|copy| {
        let shadow = Shadow::new(copy, process.pid(), injector.scratch())?;
        then(shadow, pages)
    });
    if made.is_err() {
        // The dead copy would stay the process's child.
        let _ = shadows::reap(&injector);
    }
    made
}

/// Mappings of shared objects and files. Nothing of them is read from the shadow, and as long as it had
/// them others could see that.
fn unneeded(model: &Model) -> Vec<Run> {
    let memory = &model.root().memory;
    let is_shared = |region: &&Region| {
        matches!(
            region.backing,
            Backing::SharedFile { .. } | Backing::Object { is_shared: true, .. }
        )
    };
    let shared = memory.regions.iter().filter(is_shared);
    let mut runs: Vec<Run> = shared.map(|region| (region.start, region.end)).collect();
    runs.extend(&memory.aio_rings);
    runs
}

impl Shadow {
    fn new(copy: StoppedCopy, parent: i32, scratch: u64) -> Result<Shadow, CheckpointError> {
        let handle = pidfd::open(copy.pid).map_err(doing(copy.pid, "watch the frozen copy"))?;
        let mem = Arc::new(copy::open(copy.pid)?);
        let parent = Parent { pid: parent, started: proc::started(parent) };
        let is_alive = Arc::new(AtomicBool::new(true));
        Ok(Shadow { copy, handle, parent, scratch, mem, is_alive, of_thread: PhantomData })
    }

    /// Has it killed first when memory is short: its parent can be prepared again.
    fn goes_first(&self) {
        let _ = fs::write(format!("/proc/{}/oom_score_adj", self.pid()), "1000");
    }

    /// Its pid here.
    pub fn pid(&self) -> i32 {
        self.copy.pid
    }

    /// The process that it is a copy of.
    pub fn parent(&self) -> Parent {
        self.parent
    }

    /// Its memory.
    pub fn memory(&self) -> ShadowMemory {
        let (mem, is_alive) = (Arc::clone(&self.mem), Arc::clone(&self.is_alive));
        ShadowMemory { pid: self.pid(), mem, is_alive }
    }

    /// Kills it, and has its parent reap it, for which the parent is stopped. If that fails, as in a
    /// frozen cgroup, the next checkpoint of the parent does it, or its end.
    pub fn reclaim(self) -> Result<(), CheckpointError> {
        let Parent { pid: parent, .. } = self.parent;
        let is_there = self.parent.lives();
        self.is_alive.store(false, Ordering::SeqCst);
        // Only what has ended is reaped, and nothing comes back for it. On a busy machine an exit has taken over five seconds.
        let late = Instant::now() + RECLAIM_LIMIT;
        while is_there && !self.copy.end() && Instant::now() < late {
            diagnose::refuse_frozen(parent, diagnose::MEANWHILE)?;
        }
        drop(self);
        if !is_there {
            return Ok(());
        }
        diagnose::refuse_frozen(parent, diagnose::MEANWHILE)?;
        let stopped = StoppedProcess::stop(parent)?;
        let observed = ObservedProcess::observe(&stopped)?;
        if observed.can_call(&mut Refusals::new(parent))? {
            shadows::reap(&observed.calls().injector(&stopped)?)?;
        }
        Ok(())
    }
}

impl AsFd for Shadow {
    /// Readable when it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // Its pid may be another's as soon as it is reaped.
        self.is_alive.store(false, Ordering::SeqCst);
    }
}

impl ShadowMemory {
    /// Fills `to` from `address`.
    ///
    /// # Errors
    /// The shadow has ended, or has nothing there.
    pub fn read(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let read = memory::read_exact(self.pid, &self.mem, address, to);
        if !self.is_alive.load(Ordering::SeqCst) {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the frozen copy has ended"));
        }
        read
    }
}
