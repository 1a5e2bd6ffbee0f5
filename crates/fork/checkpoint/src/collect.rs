//! Everything about a family of stopped processes.

use std::rc::Rc;

use farfork_image::compile::{self, family::Misplaced};
use farfork_image::model::{Kinship, MadeOn, Member, Model, Stored};
use farfork_pool::{Extent, ImageWriter};

use crate::copy::{self, Progress};
use crate::descriptors::{Kept, Tree};
use crate::error::CheckpointError;
use crate::family::{self, Family};
use crate::ipc::{Ipc, Segment};
use crate::kinship::Kin;
use crate::member::Seen;
use crate::refuse::{Refusals, causes};
use crate::runs::Run;
use crate::shared::{Layout, Objects};
use crate::shown::Shown;
use crate::terms::Terms;
use crate::{bounds, descriptors, mounts};

/// Processes as they were found: what goes into the model, and the pages to copy.
pub struct Collected {
    /// What goes into the image's metadata.
    pub model: Model,
    /// Connections of the processes, if they are to go on.
    pub kept: Option<Rc<Kept>>,
    memories: Vec<Pages>,
    shared: Layout,
}

/// Pages of a process.
struct Pages {
    pid: i32,
    member: usize,
    runs: Vec<Run>,
    shown: Shown,
}

/// Everything about the processes; nothing if they cannot even be asked, which is among the
/// refusals.
pub fn collect(
    family: &Family,
    terms: Terms,
    refusals: &mut Refusals,
) -> Result<Option<Collected>, CheckpointError> {
    let seen =
        family.living().map(|(_, frozen)| Seen::of(frozen)).collect::<Result<Vec<_>, _>>()?;
    let mut can_call = true;
    for seen in &seen {
        refusals.about(seen.pid());
        can_call &= seen.can_call(refusals)?;
    }
    if !can_call {
        return Ok(None);
    }
    let kin = Kin::of(family)?;
    kin.check(refusals);
    bounds::check(family, refusals)?;
    refuse_children(family, refusals)?;
    let pids = family.pids();
    let ipc = Ipc::collect(&pids, refusals)?;
    let tree = descriptors::read(&pids, &kin.ids(), terms.fate.connections(), refusals)?;
    let objects = objects(&seen, &ipc.unattached, &tree, refusals)?;
    let (mut members, memories, made_on) = members(family, &kin, &seen, &objects, terms, refusals)?;
    if refusals.is_empty() {
        refuse_misplaced(family, &members, refusals);
    }
    let open = descriptors::collect(&tree, &objects, refusals)?;
    for ((index, _), own) in family.living().zip(open.own) {
        members[index].descriptors = own.descriptors;
        members[index].locks = own.locks;
        members[index].notices = own.notices;
    }
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
        files: open.files,
        unnamed: open.unnamed,
        terminals: open.terminals,
        mounts: Vec::new(),
    };
    model.content = shared.content(model.chunks() as u64);
    model.mounts = mounts::collect(&pids, &model, refusals)?;
    Ok(Some(Collected { model, kept: open.kept, memories, shared }))
}

/// A process that a clone could not have in its session, under its parent.
fn refuse_misplaced(family: &Family, members: &[Member], refusals: &mut Refusals) {
    if let Err(Misplaced(index)) = compile::family::check(members) {
        refusals.about(family.members()[index].pid);
        let Kinship { session, group, .. } = members[index].kinship;
        let object = format!("session {session}, process group {group}");
        refusals.add(object, causes::process::MISPLACED);
    }
}

/// Children that are not to be carried.
fn refuse_children(family: &Family, refusals: &mut Refusals) -> Result<(), CheckpointError> {
    for pid in family.pids() {
        refusals.about(pid);
        for child in family::children(pid)?.into_iter().filter(|child| !family.has(*child)) {
            refusals.add(format!("child process {child}"), causes::process::CHILD);
        }
    }
    Ok(())
}

/// What the processes share, segments of theirs that are not attached, and what is in flight.
fn objects(
    seen: &[Seen<'_>],
    unattached: &[Segment],
    tree: &Tree,
    refusals: &mut Refusals,
) -> Result<Objects, CheckpointError> {
    let mut objects = Objects::default();
    for seen in seen {
        refusals.about(seen.pid());
        objects.add_process(seen.pid(), seen.mappings(), seen.ancestor.as_ref(), refusals)?;
    }
    let pids: Vec<i32> = seen.iter().map(Seen::pid).collect();
    objects.add_unattached(pids[0], unattached, refusals)?;
    for (pid, place, name) in tree.memory_in_flight() {
        objects.add_in_flight(pid, &place, name)?;
    }
    objects.refuse_channels(&pids, refusals);
    Ok(objects)
}

/// All members without their descriptors, those that have ended among them, and what the first
/// runs on.
fn members(
    family: &Family,
    kin: &Kin<'_>,
    seen: &[Seen<'_>],
    objects: &Objects,
    terms: Terms,
    refusals: &mut Refusals,
) -> Result<(Vec<Member>, Vec<Pages>, MadeOn), CheckpointError> {
    let (mut members, mut memories) = (Vec::new(), Vec::new());
    let (mut made_on, mut first_chunk) = (MadeOn::default(), 0);
    for (index, relative) in family.members().iter().enumerate() {
        let Some(seen) = seen.iter().find(|seen| seen.pid() == relative.pid) else {
            members.push(kin.ended(index)?);
            continue;
        };
        refusals.about(relative.pid);
        let own = seen.collect(objects, first_chunk, terms, refusals)?;
        first_chunk = own.member.memory.stored.end_chunk().max(first_chunk);
        if index == 0 {
            made_on = own.made_on;
        }
        let (pid, runs, shown) = (relative.pid, own.runs, own.shown);
        memories.push(Pages { pid, member: index, runs, shown });
        members.push(Member { kinship: kin.place(index)?, ..own.member });
    }
    Ok((members, memories, made_on))
}

impl Collected {
    /// Copies all memory to where the model has it in the chunks of `extents`. Returns the bytes
    /// copied.
    pub fn copy(
        &self,
        writer: &mut ImageWriter<'_>,
        extents: &[Extent],
        progress: Progress<'_>,
    ) -> Result<u64, CheckpointError> {
        let runs = self.memories.iter().flat_map(|pages| &pages.runs);
        let all = runs.map(|(start, end)| end - start).sum();
        let mut copied = 0;
        for Pages { pid, member, runs, shown } in &self.memories {
            let segments = &self.model.members[*member].memory.stored.segments;
            let before = copied;
            let report = &mut |done, _| progress(before + done, all);
            copied += copy::copy((*pid, shown), runs, segments, writer, extents, report)?;
        }
        let root = self.memories.first().map_or(0, |pages| pages.pid);
        Ok(copied + self.shared.copy(root, &self.model.content.segments, writer, extents)?)
    }
}
