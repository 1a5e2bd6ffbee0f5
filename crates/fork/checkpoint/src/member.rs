//! What each of the processes has for itself.

use farfork_image::model::{MadeOn, Member, Memory, Process};

use crate::ancestor::{self, Ancestor};
use crate::error::CheckpointError;
use crate::image_pages::{FindImagePages, ImageBackedPages};
use crate::inject::{Injector, leftover};
use crate::maps::{self, Mapping};
use crate::memory::{self, AddressSpace};
use crate::options::CheckpointOptions;
use crate::refuse::{Refusals, causes};
use crate::runs::Run;
use crate::shared::Objects;
use crate::stopped::StoppedProcess;
use crate::{aio, filters, identity, namespaces, probe, process, rseq, shadows, threads};
use farfork_sys::status::Status;

/// A stopped process, as seen from outside: it has made no calls for the checkpoint yet.
pub struct ObservedProcess<'f> {
    stopped: &'f StoppedProcess,
    mappings: Vec<Mapping>,
    /// The image that it is a clone of.
    pub ancestor: Option<Ancestor>,
    /// How many filters of farfork's own it is under.
    own_filters: u32,
}

/// The state of a process without its kinship and its descriptors.
pub struct CollectedProcess {
    /// As it goes into the model.
    pub member: Member,
    /// Pages to copy.
    pub runs: Vec<Run>,
    /// What it runs on.
    pub made_on: MadeOn,
    /// What need not be read from it.
    pub image_pages: ImageBackedPages,
    /// Where calls are made on its behalf.
    pub calls: CallPlace,
}

/// Where calls of a process are made: the range of its vDSO, and a page at which nothing is mapped.
#[derive(Clone, Copy, Debug)]
pub struct CallPlace {
    /// The vDSO.
    pub vdso: (u64, u64),
    /// The page.
    pub hole: u64,
}

impl CallPlace {
    fn find(mappings: &[Mapping]) -> CallPlace {
        CallPlace { vdso: memory::kernel_range(mappings).1, hole: maps::hole(mappings) }
    }

    /// Makes calls of a process there.
    pub fn injector<'f>(
        &self,
        stopped: &'f StoppedProcess,
    ) -> Result<Injector<'f>, CheckpointError> {
        Injector::new(stopped, self.vdso, self.hole)
    }
}

impl<'f> ObservedProcess<'f> {
    /// Looks at a process from outside, after the threads that a killed checkpointer left in a stub
    /// have their own state again.
    pub fn observe(stopped: &'f StoppedProcess) -> Result<ObservedProcess<'f>, CheckpointError> {
        ObservedProcess::with(stopped, maps::read(stopped.pid())?)
    }

    /// As [`ObservedProcess::observe`], where flags of mappings do not matter.
    pub fn outline(stopped: &'f StoppedProcess) -> Result<ObservedProcess<'f>, CheckpointError> {
        ObservedProcess::with(stopped, maps::outline(stopped.pid())?)
    }

    fn with(
        stopped: &'f StoppedProcess,
        mut mappings: Vec<Mapping>,
    ) -> Result<ObservedProcess<'f>, CheckpointError> {
        let left = leftover::restore_threads(stopped, &mappings)?;
        mappings.retain(|mapping| Some((mapping.start, mapping.end)) != left);
        let mut ancestor = Ancestor::find(stopped.pid(), &mappings)?;
        let has_own_filters = filters::is_farforks(stopped.pid());
        if ancestor.is_none() && has_own_filters {
            if mappings.iter().any(ancestor::is_of_pool) {
                return Err(CheckpointError::WindowUnmapped { pid: stopped.pid() });
            }
            ancestor = Ancestor::of_copies(&mappings);
        }
        let is_under_own = ancestor.is_some() || has_own_filters;
        Ok(ObservedProcess { stopped, mappings, ancestor, own_filters: is_under_own.into() })
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.stopped.pid()
    }

    /// Its mappings.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Where its calls are made.
    pub fn calls(&self) -> CallPlace {
        CallPlace::find(&self.mappings)
    }

    /// Whether its threads can make calls for the checkpoint; refuses those that cannot.
    pub fn can_call(&self, refusals: &mut Refusals) -> Result<bool, CheckpointError> {
        let (pid, tids) = (self.pid(), self.stopped.tids());
        namespaces::refuse(pid, tids, refusals)?;
        threads::can_call(pid, tids, self.own_filters, refusals)
    }

    /// Everything about it, with room for its memory in the image's chunks from number
    /// `first_chunk` on, and with the pages that `find` finds to have in common with its image.
    pub fn collect(
        &self,
        objects: &Objects,
        first_chunk: u64,
        options: CheckpointOptions,
        find: FindImagePages,
        refusals: &mut Refusals,
    ) -> Result<CollectedProcess, CheckpointError> {
        let pid = self.pid();
        let ancestor = self.ancestor.as_ref();
        let space = AddressSpace::look(pid, &self.mappings, ancestor, objects, refusals)?;
        let mut collected = self.collect_state(options, refusals)?;
        collected.image_pages = find(pid, &self.mappings, ancestor)?;
        collected.runs = space.put_into(&mut collected.member.memory, first_chunk);
        Ok(collected)
    }

    /// Everything but its pages, and the regions that they lie in.
    pub fn collect_state(
        &self,
        options: CheckpointOptions,
        refusals: &mut Refusals,
    ) -> Result<CollectedProcess, CheckpointError> {
        let pid = self.pid();
        let calls = CallPlace::find(&self.mappings);
        let locked_kb = Status::read(pid, pid)?.locked_kb;
        rseq::abort(self.stopped)?;
        let injector = calls.injector(self.stopped)?;
        shadows::reap(&injector)?;
        probe::refuse_confined(&injector, pid, refusals)?;
        let locks_future = probe::locks_future(&injector, pid, locked_kb)?;
        let protection_keys = probe::protection_keys(&injector, pid)?;
        let aio_rings = aio::rings(&injector, &self.mappings, options.aio_is_idle, refusals)?;
        let memory = Memory { protection_keys, aio_rings, ..Memory::default() };
        let member = self.ask(&injector, memory, locks_future, refusals)?;
        let made_on = process::made_on(pid, injector.vdso(), &member.threads[0].xstate)?;
        let (runs, image_pages) = (Vec::new(), ImageBackedPages::default());
        Ok(CollectedProcess { member, runs, made_on, image_pages, calls })
    }

    fn ask(
        &self,
        injector: &Injector<'_>,
        memory: Memory,
        locks_future: u32,
        refusals: &mut Refusals,
    ) -> Result<Member, CheckpointError> {
        let pid = self.pid();
        if !identity::holds_here(pid, &Status::read(pid, pid)?) {
            refusals.add("process", causes::process::USER_NAMESPACE);
        }
        let signals = process::signals(injector, pid)?;
        let threads = self
            .stopped
            .tids()
            .iter()
            .map(|tid| threads::collect(injector, *tid, &signals, self.own_filters, refusals))
            .collect::<Result<Vec<_>, _>>()?;
        // For all calls that follow: it costs as much as several of them.
        let leader = injector.thread(pid)?;
        Ok(Member {
            process: Process {
                locks_future,
                is_stopped: self.stopped.is_stopped(),
                ..process::collect(injector, &leader, refusals)?
            },
            memory: process::layout(&leader, pid, memory)?,
            signals,
            timers: process::timers(injector, &leader, &threads, refusals)?,
            threads,
            ..Member::default()
        })
    }
}
