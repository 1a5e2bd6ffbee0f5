//! What each of the processes has for itself.

use farfork_image::model::{MadeOn, Member, Memory, Process};

use crate::ancestor::{self, Ancestor};
use crate::error::CheckpointError;
use crate::freeze::Frozen;
use crate::inject::{Injector, left};
use crate::maps::{self, Mapping};
use crate::memory::{self, Run};
use crate::refuse::{Refusals, causes};
use crate::shared::Objects;
use crate::shown::Shown;
use crate::terms::Terms;
use crate::{aio, filters, identity, namespaces, probe, process, rseq, threads};
use farfork_sys::status::Status;

/// A stopped process before it was asked anything.
pub struct Seen<'f> {
    frozen: &'f Frozen,
    mappings: Vec<Mapping>,
    /// The image that it is a clone of.
    pub ancestor: Option<Ancestor>,
    /// How many filters of farfork's own it is under.
    own_filters: u32,
}

/// All of a process but its kinship and its descriptors.
pub struct Own {
    /// As it goes into the model.
    pub member: Member,
    /// Pages to copy.
    pub runs: Vec<Run>,
    /// What it runs on.
    pub made_on: MadeOn,
    /// What need not be read from it.
    pub shown: Shown,
}

impl<'f> Seen<'f> {
    /// Looks at a process from outside, after threads are back that a killed checkpointer has left.
    pub fn of(frozen: &'f Frozen) -> Result<Seen<'f>, CheckpointError> {
        let mut mappings = maps::read(frozen.pid())?;
        let left = left::heal(frozen, &mappings)?;
        mappings.retain(|mapping| Some((mapping.start, mapping.end)) != left);
        let ancestor = Ancestor::of(frozen.pid(), &mappings)?;
        let has_own_filters = filters::is_farforks(frozen.pid());
        if ancestor.is_none() && has_own_filters && mappings.iter().any(ancestor::is_of_pool) {
            return Err(CheckpointError::WindowUnmapped { pid: frozen.pid() });
        }
        let is_under_own = ancestor.is_some() || has_own_filters;
        Ok(Seen { frozen, mappings, ancestor, own_filters: is_under_own.into() })
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.frozen.pid()
    }

    /// Its mappings.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Whether its threads can make calls for the checkpoint; refuses those that cannot.
    pub fn can_call(&self, refusals: &mut Refusals) -> Result<bool, CheckpointError> {
        let (pid, tids) = (self.pid(), self.frozen.tids());
        namespaces::refuse(pid, tids, refusals)?;
        threads::can_call(pid, tids, self.own_filters, refusals)
    }

    /// Everything about it, with room for its memory in the image's chunks from number
    /// `first_chunk` on.
    pub fn collect(
        &self,
        objects: &Objects,
        first_chunk: u64,
        terms: Terms,
        refusals: &mut Refusals,
    ) -> Result<Own, CheckpointError> {
        let pid = self.pid();
        let (kernel, vdso) = memory::kernel_range(&self.mappings);
        let ancestor = self.ancestor.as_ref();
        let mut regions = memory::regions(pid, &self.mappings, ancestor, objects, refusals);
        let guards = memory::guards(pid, &regions.all)?;
        let runs = memory::runs(pid, &regions, &guards)?;
        let locked_kb = Status::read(pid, pid)?.locked_kb;
        rseq::abort(self.frozen)?;
        let injector = Injector::new(self.frozen, vdso, maps::hole(&self.mappings))?;
        probe::refuse_confined(&injector, pid, refusals)?;
        let locks_future = probe::locks_future(&injector, pid, locked_kb)?;
        let protection_keys = probe::protection_keys(&injector, pid)?;
        memory::forget_kernel_keys(&mut regions.all, protection_keys);
        let memory = memory::memory(regions.all, &runs, guards, kernel, first_chunk);
        let aio_rings = aio::rings(&injector, &self.mappings, terms.aio_is_idle, refusals)?;
        let memory = Memory { protection_keys, aio_rings, ..memory };
        let member = self.ask(&injector, memory, locks_future, refusals)?;
        let made_on = process::made_on(pid, injector.vdso(), &member.threads[0].xstate)?;
        let shown = Shown::of(pid, &self.mappings, ancestor)?;
        Ok(Own { member, runs, made_on, shown })
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
            .frozen
            .tids()
            .iter()
            .map(|tid| threads::collect(injector, *tid, &signals, self.own_filters, refusals))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Member {
            process: Process {
                locks_future,
                is_stopped: self.frozen.is_stopped(),
                ..process::collect(injector, pid, refusals)?
            },
            memory: process::layout(injector, pid, memory)?,
            signals,
            timers: process::timers(injector, pid, &threads, refusals)?,
            threads,
            ..Member::default()
        })
    }
}
