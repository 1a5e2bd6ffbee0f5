//! Everything about a tree of stopped processes.

use std::rc::Rc;

use farfork_image::compile::{self, tree::Misplaced};
use farfork_image::model::{Kinship, MadeOn, Member, Model, OpenFile, RingQueue, Stored};

use crate::copy::{self, Progress};
use crate::descriptors::{KeptConnections, TreeDescriptors};
use crate::diagnose;
use crate::error::CheckpointError;
use crate::image_pages::{FindImagePages, ImageBackedPages};
use crate::ipc::{Ipc, Segment};
use crate::member::{CallPlace, ObservedProcess};
use crate::options::CheckpointOptions;
use crate::refuse::{Refusals, causes};
use crate::runs::Run;
use crate::shared::{Layout, Objects};
use crate::topology::ProcessTopology;
use crate::tree::{self, StoppedTree};
use crate::{bounds, descriptors, mounts, process};

/// Processes as they were found: what goes into the model, and the pages to copy.
pub struct Collected {
    /// What goes into the image's metadata.
    pub model: Model,
    /// Connections of the processes, if they are to go on.
    pub kept: Option<Rc<KeptConnections>>,
    /// Memory of each process.
    pub memories: Vec<Pages>,
    /// Content of shared objects.
    pub shared: Layout,
}

/// Pages of a process.
pub struct Pages {
    /// Its id here.
    pub pid: i32,
    /// Its place among the members.
    pub member: usize,
    /// What is copied.
    pub runs: Vec<Run>,
    /// What need not be read from it.
    pub image_pages: ImageBackedPages,
    /// Where its calls are made.
    pub calls: CallPlace,
}

/// The state of all processes. `None` if they cannot make calls; the refusals then have the reason.
pub fn collect(
    tree: &StoppedTree,
    options: CheckpointOptions,
    depth: Depth,
    refusals: &mut Refusals,
) -> Result<Option<Collected>, CheckpointError> {
    let seen = tree
        .living()
        .map(|(_, stopped)| ObservedProcess::observe(stopped))
        .collect::<Result<Vec<_>, _>>()?;
    collect_observed(tree, &seen, options, depth, refusals)
}

/// How much is collected while the processes stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All.
    All,
    /// All, and which pages a process has in common with the image that it is a clone of.
    WithImage,
    /// What a fork does not inherit. Memory and mounts are looked at in the fork.
    State,
}

/// As [`collect`], of processes that were looked at from outside.
pub fn collect_observed(
    tree: &StoppedTree,
    seen: &[ObservedProcess<'_>],
    options: CheckpointOptions,
    depth: Depth,
    refusals: &mut Refusals,
) -> Result<Option<Collected>, CheckpointError> {
    let mut can_call = true;
    for seen in seen {
        refusals.about(seen.pid());
        can_call &= seen.can_call(refusals)?;
    }
    if !can_call {
        return Ok(None);
    }
    let topology = ProcessTopology::read(tree)?;
    topology.check(refusals);
    if depth == Depth::All {
        bounds::refuse_sharers(&tree.pids(), refusals);
    }
    bounds::check(tree, refusals)?;
    refuse_children(tree, refusals)?;
    let pids = tree.pids();
    let ipc = Ipc::collect(&pids, refusals)?;
    let open =
        descriptors::read(&pids, &topology.ids(), options.disposition.connections(), refusals)?;
    let objects = objects(seen, &ipc.unattached, &open, refusals)?;
    let (mut members, memories, made_on) =
        members(tree, &topology, seen, &objects, options, depth, refusals)?;
    if refusals.is_empty() {
        refuse_misplaced(tree, &members, refusals);
    }
    let collected = descriptors::collect(&open, &objects, options.supplied, refusals)?;
    for ((index, _), own) in tree.living().zip(collected.own) {
        members[index].descriptors = own.descriptors;
        members[index].locks = own.locks;
        members[index].notices = own.notices;
    }
    refuse_loose_rings(tree, seen, &members, &collected.files, refusals);
    let has_segments = objects.have_segments();
    let has_objects = has_segments || !ipc.semaphores.is_empty() || !ipc.queues.is_empty();
    let shared = objects.lay_out()?;
    let mut model = Model {
        made_on,
        created_unix_s: 0,
        members,
        objects: shared.objects.clone(),
        content: Stored::default(),
        has_own_ipc: ipc.is_own || has_objects,
        semaphores: ipc.semaphores,
        queues: ipc.queues,
        files: collected.files,
        unnamed: collected.unnamed,
        terminals: collected.terminals,
        mounts: Vec::new(),
    };
    model.decide_copies();
    model.content = shared.content(model.chunks() as u64);
    if depth != Depth::State {
        model.mounts = mounts::collect(&pids, &model, refusals)?;
    }
    Ok(Some(Collected { model, kept: collected.kept, memories, shared }))
}

/// Flags of a mapping of a ring that no process has changed.
const RING_FLAGS: [&str; 11] = ["rd", "wr", "sh", "mr", "mw", "me", "ms", "de", "mm", "sd", "ac"];

/// Queues of rings that are mapped where the process does not have the ring open, only in part, or with other
/// attributes than the kernel gives them.
fn refuse_loose_rings(
    tree: &StoppedTree,
    seen: &[ObservedProcess<'_>],
    members: &[Member],
    files: &[OpenFile],
    refusals: &mut Refusals,
) {
    for seen in seen {
        let index = tree.members().iter().position(|member| member.pid == seen.pid());
        let own = index.map_or(&[][..], |index| &members[index].descriptors[..]);
        let opened = own.iter().filter_map(|own| files.get(own.file as usize));
        let queues: Vec<RingQueue> = opened
            .filter_map(|file| match file {
                OpenFile::Ring { queues, .. } => Some(queues.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        refusals.about(seen.pid());
        for mapping in seen.mappings().iter().filter(|mapping| mapping.is_ring()) {
            let (start, bytes) = (mapping.start, mapping.end - mapping.start);
            let is_known = queues.iter().any(|own| (own.start, own.bytes) == (start, bytes));
            let is_plain = mapping.flags.iter().all(|flag| RING_FLAGS.contains(&flag.as_str()));
            if !is_known || !is_plain {
                let object = format!("mapping {start:x}-{:x} {}", mapping.end, mapping.name);
                refusals.add(object, causes::descriptors::IO_URING);
            }
        }
    }
}

/// A process that a clone could not have in its session, under its parent.
fn refuse_misplaced(tree: &StoppedTree, members: &[Member], refusals: &mut Refusals) {
    if let Err(Misplaced(index)) = compile::tree::check(members) {
        refusals.about(tree.members()[index].pid);
        let Kinship { session, group, .. } = members[index].kinship;
        let object = format!("session {session}, process group {group}");
        refusals.add(object, causes::process::MISPLACED);
    }
}

/// Children that are not to be carried.
fn refuse_children(tree: &StoppedTree, refusals: &mut Refusals) -> Result<(), CheckpointError> {
    for pid in tree.pids() {
        refusals.about(pid);
        for child in tree::children(pid)?.into_iter().filter(|child| !tree.has(*child)) {
            let cause = match diagnose::has_ended(child, child) {
                true => causes::process::ZOMBIE,
                false => causes::process::CHILD,
            };
            refusals.add(format!("child process {child}"), cause);
        }
    }
    Ok(())
}

/// Objects that the processes share, their segments without attachments, and memory in flight.
fn objects(
    seen: &[ObservedProcess<'_>],
    unattached: &[Segment],
    open: &TreeDescriptors,
    refusals: &mut Refusals,
) -> Result<Objects, CheckpointError> {
    let mut objects = Objects::default();
    for seen in seen {
        refusals.about(seen.pid());
        objects.add_process(seen.pid(), seen.mappings(), seen.ancestor.as_ref(), refusals)?;
    }
    let pids: Vec<i32> = seen.iter().map(ObservedProcess::pid).collect();
    objects.add_unattached(pids[0], unattached, refusals)?;
    for (pid, place, name) in open.memory_in_flight() {
        objects.add_in_flight(pid, &place, name)?;
    }
    objects.refuse_channels(&pids, refusals);
    Ok(objects)
}

/// All members without their descriptors, those that have ended among them, and what the first
/// runs on.
fn members(
    tree: &StoppedTree,
    topology: &ProcessTopology<'_>,
    seen: &[ObservedProcess<'_>],
    objects: &Objects,
    options: CheckpointOptions,
    depth: Depth,
    refusals: &mut Refusals,
) -> Result<(Vec<Member>, Vec<Pages>, MadeOn), CheckpointError> {
    let (mut members, mut memories) = (Vec::new(), Vec::new());
    let (mut made_on, mut first_chunk) = (MadeOn::default(), 0);
    for (index, process) in tree.members().iter().enumerate() {
        let Some(seen) = seen.iter().find(|seen| seen.pid() == process.pid) else {
            members.push(topology.ended(index)?);
            continue;
        };
        refusals.about(process.pid);
        let find: Option<FindImagePages> = match depth {
            Depth::All => Some(ImageBackedPages::find),
            Depth::WithImage => Some(ImageBackedPages::find_all),
            Depth::State => None,
        };
        let own = match find {
            Some(find) => seen.collect(objects, first_chunk, options, find, refusals)?,
            None => seen.collect_state(options, refusals)?,
        };
        first_chunk = own.member.memory.stored.end_chunk().max(first_chunk);
        if index == 0 {
            made_on = own.made_on;
        }
        let (pid, runs, image_pages, calls) = (process.pid, own.runs, own.image_pages, own.calls);
        memories.push(Pages { pid, member: index, runs, image_pages, calls });
        members.push(Member { kinship: topology.kinship(index)?, ..own.member });
    }
    find_unreported_stops(tree, &mut members, &memories)?;
    Ok((members, memories, made_on))
}

/// Asks each parent of a stopped member whether it has yet to wait for the stop.
fn find_unreported_stops(
    tree: &StoppedTree,
    members: &mut [Member],
    memories: &[Pages],
) -> Result<(), CheckpointError> {
    for Pages { pid, member: parent, calls, .. } in memories {
        let is_asked = |child: &&mut Member| {
            child.process.is_stopped && child.kinship.parent == Some(*parent as u32)
        };
        let stopped: Vec<&mut Member> = members.iter_mut().filter(is_asked).collect();
        if stopped.is_empty() {
            continue;
        }
        let own = tree.living().find(|(_, stopped)| stopped.pid() == *pid);
        let Some((_, own)) = own else { continue };
        let injector = calls.injector(own)?;
        for child in stopped {
            child.process.stop_is_unreported =
                process::has_unreported_stop(&injector, *pid, child.process.pid)?;
        }
    }
    Ok(())
}

impl Collected {
    /// Copies all memory to where the model has it in `data`, the chunks of its image. Returns the bytes
    /// copied.
    pub fn copy(&self, data: &mut [u8], progress: Progress<'_>) -> Result<u64, CheckpointError> {
        let runs = self.memories.iter().flat_map(|pages| &pages.runs);
        let all = runs.map(|(start, end)| end - start).sum();
        let mut copied = 0;
        for Pages { pid, member, runs, image_pages, .. } in &self.memories {
            let segments = &self.model.members[*member].memory.stored.segments;
            let before = copied;
            let report = &mut |done, _| progress(before + done, all);
            copied += copy::copy(*pid, image_pages, runs, segments, data, report)?;
        }
        let root = self.memories.first().map_or(0, |pages| pages.pid);
        Ok(copied + self.shared.copy(root, &self.model.content.segments, data)?)
    }
}
