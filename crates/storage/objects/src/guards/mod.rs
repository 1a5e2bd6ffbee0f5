//! Guarded operations: a user's own steps, which are all done although their process is killed in between.
//!
//! ```text
//!  1  intent := operation, arguments                        invisible
//!  2  client's entry := intent                              commits: from now on it will be done
//!  3  the code runs; each result is written down            done again by the process that completes it
//!  4  client's entry := 0                                   commits: it is done
//!  5  locks are released, objects freed                     redone by the recovery
//! ```
//! A process that completes the operation of a dead client runs the same code from its beginning, with the same
//! arguments, as that client. Each call of a [`Guard`] that was done then returns what it had returned, and is
//! not done again. So the code goes the same way, up to where the client died.
//!
//! Rules for the code, as it may run several times:
//! 1. It depends on nothing but its arguments and on results of its [`Guard`].
//! 2. It changes shared memory by its [`Guard`] only, and only what its locks protect.
//! 3. What it does otherwise (system calls) may happen twice. [`Guard::record`] keeps its result, so that it happens
//!    again only if the client died just between both.
//!
//! Rule 2 makes stores right that are done again: no other client has stored there meanwhile, as a dead client keeps its locks
//! until its operation is over. Locks are taken in the order of their numbers, so that operations never wait in a circle.

mod steps;
mod waits;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::client::Client;
use crate::error::ObjectsError;
use crate::intents::{self, Intent, MOST_ARGUMENTS, enter, is_inside};
use crate::layout::{INTENT_BYTES, NAME_BYTES, OPERATIONS, READY};
use crate::liveness::Liveness;
use crate::locks;
use crate::region::{Node, Platform, Region, has_fault};
use crate::words::Words;

pub use steps::Guard;

/// Grace period of an operation that is registered without one.
pub const GRACE: Duration = Duration::from_secs(10);

/// The code of an operation. What it returns, [`Client::guard_call`] returns.
pub type Code<P = Node> = Arc<dyn Fn(&mut Guard<'_, P>, &[u8]) -> i32 + Send + Sync>;

/// An operation that is registered in a region.
pub struct Operation<P: Platform = Node> {
    index: usize,
    region: [u8; 16],
    code: Code<P>,
}

/// What a region knows of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OperationInfo {
    /// Its name.
    pub name: String,
    /// Version of its code.
    pub version: u32,
    /// Its grace period, in microseconds. 0: none.
    pub grace_us: u64,
    /// How often another process completed it for a dead client.
    pub completed: u64,
    /// How often it was begun and never completed.
    pub abandoned: u64,
}

impl<P: Platform + 'static> Region<P> {
    /// Registers an operation by name and version of its code, and lets this process complete it for dead clients. All
    /// processes that register the same name and version have the same code.
    ///
    /// # Errors
    /// [`ObjectsError::BadOperation`], [`ObjectsError::Io`].
    pub fn guard_register(
        &self,
        name: &str,
        version: u32,
        code: Code<P>,
    ) -> Result<Operation<P>, ObjectsError> {
        let bad = |reason: String| ObjectsError::BadOperation { name: name.to_owned(), reason };
        if !(1..=NAME_BYTES).contains(&name.len()) || name.contains(char::is_control) {
            let reason =
                format!("expected a name of 1 to {NAME_BYTES} bytes without control characters");
            return Err(bad(reason));
        }
        let failed = ObjectsError::io("lock the operations of the region", self.path());
        let turn = self.liveness.turn().map_err(failed)?;
        let of = |index: &usize| self.operation(*index).map(|known| (known.name, known.version));
        let known = (0..OPERATIONS).find(|index| of(index) == Some((name.to_owned(), version)));
        let index = match known.or_else(|| (0..OPERATIONS).find(|index| of(index).is_none())) {
            Some(index) => index,
            None => {
                let reason =
                    format!("the region has {OPERATIONS} operations, the most there can be");
                return Err(bad(reason));
            }
        };
        if known.is_none() {
            let at = self.layout.operation(index);
            self.words.set_word(at.version(), u64::from(version));
            self.words.set_word(at.grace(), GRACE.as_micros() as u64);
            self.set_name(|word| at.name(word), name);
            self.words.set_word(at.state(), READY); // commits
        }
        drop(turn);
        self.set_completion(index, completion(index, code.clone()));
        Ok(Operation { index, region: self.header.uuid, code })
    }

    /// Sets the grace period of an operation: how long it may run, without the time in which it waits for locks. 0: for
    /// ever.
    pub fn set_grace(&self, operation: &Operation<P>, grace: Duration) {
        let us = u64::try_from(grace.as_micros()).unwrap_or(u64::MAX);
        self.words.set_word(self.layout.operation(operation.index).grace(), us);
    }
}

impl<P: Platform> Region<P> {
    /// The operations of the region.
    pub fn operations(&self) -> Vec<OperationInfo> {
        (0..OPERATIONS).filter_map(|index| self.operation(index)).collect()
    }

    fn operation(&self, index: usize) -> Option<OperationInfo> {
        let at = self.layout.operation(index);
        (self.words.word(at.state()) == READY).then(|| OperationInfo {
            name: self.name(|word| at.name(word)),
            version: self.words.word(at.version()) as u32,
            grace_us: self.words.word(at.grace()),
            completed: self.words.word(at.completed()),
            abandoned: self.words.word(at.abandoned()),
        })
    }
}

/// What completes an operation for a dead client.
fn completion<P: Platform + 'static>(index: usize, code: Code<P>) -> crate::region::Completion<P> {
    Arc::new(move |region, id, claim| {
        let Some(intent) = intents::pending(region, id) else { return };
        let at = region.layout.operation(index);
        let mut client = Client::with(region.again(), id, claim);
        let arguments = intent.arguments(region);
        let done = catch_unwind(AssertUnwindSafe(|| client.run(intent, &code, &arguments)));
        // Before the client's end: then no other process counts it.
        intents::count(region, if done.is_ok() { at.completed() } else { at.abandoned() });
        client.finish(intent);
    })
}

impl<P: Platform> Client<P> {
    /// Runs a guarded operation; returns what its code returns. If this process dies meanwhile, another one completes it:
    /// a client that has registered it, or `farfork region guard`.
    ///
    /// # Errors
    /// [`ObjectsError::Guard`], [`ObjectsError::Full`]: it has not begun.
    pub fn guard_call(
        &mut self,
        operation: &Operation<P>,
        arguments: &[u8],
    ) -> Result<i32, ObjectsError> {
        let refused = |reason| Err(ObjectsError::Guard { doing: "begin", reason });
        if is_inside() {
            return refused("this thread is in another one");
        }
        if operation.region != self.region.header.uuid {
            return refused("it is registered in another region");
        }
        if arguments.len() > MOST_ARGUMENTS {
            return refused(
                "its arguments have more than 512 bytes; pass a reference to an object",
            );
        }
        let intent = match Intent::place(&self.region, self.id) {
            Some(intent) => intent,
            None => {
                let place = self.allocate(INTENT_BYTES)?;
                Intent::object(&self.region, self.owned(place, "begin")?)
            }
        };
        intent.begin(&self.region, operation.index, self.process);
        if !has_fault!(P, GuardCommitsFirst) {
            intent.set_arguments(&self.region, arguments);
        }
        let entry = self.region.layout.guard(self.id);
        self.region.words.set_word(entry, intent.entry()); // commits
        if has_fault!(P, GuardCommitsFirst) {
            intent.set_arguments(&self.region, arguments);
        }
        let done = catch_unwind(AssertUnwindSafe(|| self.run(intent, &operation.code, arguments)));
        if done.is_err() {
            intents::count(&self.region, self.region.layout.operation(operation.index).abandoned());
        }
        self.finish(intent);
        done.map_err(|panic| resume_unwind(panic))
    }

    fn run(&mut self, intent: Intent, code: &Code<P>, arguments: &[u8]) -> i32 {
        let _inside = enter();
        code(&mut Guard::new(self, intent), arguments)
    }

    fn finish(&mut self, intent: Intent) {
        if has_fault!(P, GuardUnlocksFirst) {
            locks::release_all(&self.region, self.id);
        }
        let frees = intent.frees(&self.region);
        self.region.words.set_word(self.region.layout.guard(self.id), 0); // commits
        locks::release_all(&self.region, self.id);
        for granule in frees.into_iter().chain(intent.granule()) {
            // What the operation has passed on since is not the client's any more.
            if self.checks.is_none() {
                let _ = self.free(self.pointer(granule));
            } else if self.owned(self.pointer(granule), "free").is_ok() {
                self.give_up(granule);
                self.heap.count_sent();
            }
        }
    }
}
