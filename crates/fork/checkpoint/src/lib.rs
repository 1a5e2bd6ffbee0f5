//! Process to image: freeze, collect, refuse, copy, publish.
//!
//! ```text
//!  reserve ─► freeze ─► collect ─► refuse? ─► copy pages ─► thaw ─► write metadata ─► publish
//!  (empty)              (nothing written)     (private to the writer)                (one store)
//! ```
//! CXLfork (ASPLOS '25) §4.1 does this inside the kernel; here the process is traced, and what
//! only it can ask the kernel is asked by system calls made on its behalf. Room in the pool is
//! taken and cleared before the freeze, from an [`estimate`]; the process stands still for the
//! rest up to the copy alone. A tree of processes goes the same way, all of it stopped at once.

mod aio;
mod ancestor;
mod bounds;
mod collect;
mod copy;
pub mod descriptors;
mod diagnose;
mod ending;
mod error;
mod estimate;
mod external;
mod files;
mod filters;
mod hardening;
mod identity;
pub mod ids;
mod image_pages;
mod inject;
mod ipc;
mod kernel_state;
mod maps;
mod member;
mod memory;
mod mounts;
mod namespaces;
mod options;
mod probe;
mod process;
pub mod refuse;
mod rseq;
mod runs;
mod shadow;
mod shadows;
pub mod shared;
mod stat;
mod stopped;
mod threads;
mod topology;
mod tree;

use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farfork_image::model::Model;
use farfork_image::store::{Draft, Published};
use farfork_pool::{Held, Pool};
use farfork_types::Cid;

pub use ancestor::AncestorImage;
use collect::{Depth, collect};
pub use copy::Progress;
use descriptors::KeptConnections;
pub use error::CheckpointError;
pub use external::External;
pub use options::{CheckpointOptions, Disposition};
use refuse::{Refusal, Refusals};
pub use shadow::{Parent, Part, PartSource, Prepared, Reply, Shadow, ShadowMemory, prepare};
use tree::StoppedTree;
pub use tree::Target;

/// A finished checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its id.
    pub cid: Cid,
    /// How many processes it holds.
    pub processes: usize,
    /// The external descriptors, which the caller of restore supplies.
    pub external: Vec<External>,
    /// Bytes of their memory that were copied.
    pub copied_bytes: u64,
    /// Bytes of the pool that the image takes.
    pub pool_bytes: u64,
    /// How long they were stopped.
    pub frozen: Duration,
    /// How long the page copy took, part of `frozen`.
    pub copying: Duration,
    /// How long the checkpoint took.
    pub total: Duration,
    pending: Pending,
}

/// What is kept until the image has its name.
#[derive(Debug)]
struct Pending {
    _image: Held,
    tree: Option<StoppedTree>,
    kept: Option<Rc<KeptConnections>>,
}

impl Checkpoint {
    /// To be called once the image has a name. Until then a crash of any process loses nothing:
    /// `farfork pool check` reclaims an image without a name, and the processes still live. They
    /// also live on if they cannot hand over their connections.
    pub fn settle(&self) -> Result<(), CheckpointError> {
        if let Some(tree) = &self.pending.tree {
            if let Some(kept) = &self.pending.kept {
                let pid = tree.members()[0].pid;
                let doing = error::doing(pid, "block the packets of the connections (nf_tables)");
                kept.hand_over().map_err(|errno| doing(errno.into()))?;
            } else {
                // Best effort: without it, a clone may have to wait for a port.
                let _ = descriptors::reset_on_death(&tree.pids());
            }
            ending::kill(tree);
        }
        Ok(())
    }
}

/// What an image of `target` would hold, as far as it can be known, and all refusals. Nothing is
/// written.
pub fn dry_run(
    target: Target,
    options: CheckpointOptions,
) -> Result<(Option<Model>, Vec<Refusal>), CheckpointError> {
    tree::look_at(target)?;
    let tree = tree::stop(target).map_err(diagnose::explain_frozen)?;
    let mut refusals = Refusals::new(target.pid());
    let collected =
        collect(&tree, options, Depth::All, &mut refusals).map_err(diagnose::explain_frozen)?;
    Ok((collected.map(|collected| collected.model), refusals.into_list()))
}

/// Checkpoints `target` into `pool`, by these `options`; the image counts towards what `user` may have
/// there. `progress` is called with the bytes copied and the bytes to copy, and must not block.
pub fn checkpoint(
    pool: &Pool,
    user: Option<&str>,
    target: Target,
    options: CheckpointOptions,
    progress: Progress<'_>,
) -> Result<Checkpoint, CheckpointError> {
    let begun = Instant::now();
    tree::look_at(target)?;
    let reserved = reserve(pool, user, target);
    let stopped = tree::stop(target).map_err(diagnose::explain_frozen)?;
    let mut refusals = Refusals::new(target.pid());
    let collected =
        collect(&stopped, options, Depth::All, &mut refusals).map_err(diagnose::explain_frozen)?;
    let refusals = refusals.into_list();
    let Some(mut collected) = collected.filter(|_| refusals.is_empty()) else {
        return Err(CheckpointError::Refused(refusals));
    };
    let mut draft = match reserved {
        Some(draft) => draft,
        None => Draft::begin(pool, user)?,
    };
    draft.fit(&collected.model)?;
    let copy_begun = Instant::now();
    let copied_bytes = collected.copy(draft.data(), progress)?;
    let copying = copy_begun.elapsed();
    // Processes that are to be killed stay stopped: what they did after the copy would be lost.
    let frozen = stopped.since().elapsed();
    let tree = Some(stopped).filter(|_| options.disposition != Disposition::Continue);
    let kept = collected.kept.take();
    let model = &mut collected.model;
    model.created_unix_s =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Published { cid, held, pool_bytes } = draft.publish(model)?;
    let total = begun.elapsed();
    let (processes, external) = (model.members.len(), External::all(model));
    let pending = Pending { _image: held, tree, kept };
    Ok(Checkpoint {
        cid,
        processes,
        external,
        copied_bytes,
        pool_bytes,
        frozen,
        copying,
        total,
        pending,
    })
}

/// Takes and clears room for the processes as they are now, while they go on running. Without room,
/// or without an estimate, this is done later, while they are stopped.
fn reserve<'p>(pool: &'p Pool, user: Option<&str>, target: Target) -> Option<Draft<'p>> {
    let chunks = estimate::chunks(target).ok().flatten()?;
    let mut draft = Draft::begin(pool, user).ok()?;
    draft.reserve(chunks.into()).ok()?;
    Some(draft)
}
