//! What is written down of guarded operations, so that others complete them.
//!
//! ```text
//!  intent, 4,096 bytes: an object of the client; its own place in node-local metadata
//!     0  operation, u32; "FFGU"      8  begun, microseconds of the monotonic clock      16  runs
//!    24  pid of the process that runs it     32  bytes of the arguments      40  steps that are done     48  frees
//!    56  0     64  arguments     576  granules to free, 64 words     1088  results of steps, 376 words
//!
//!  client's entry   intent, 1 + its granule (node-local: 1)    stored last: commits to the operation. 0: it is over
//! ```
//! An intent belongs to the client whose entry names it. It is written by that client, and after its death by the process
//! that has its claim. The word of the steps is stored after the result of a step.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

use crate::layout::{ClientId, INTENT_BYTES, OPERATIONS, READY, span_of};
use crate::region::{Completion, Platform, Region};
use crate::words::Words;

/// Most bytes of arguments.
pub(crate) const MOST_ARGUMENTS: usize = 512;
/// Most objects that an operation can free.
pub(crate) const MOST_FREES: u64 = 64;
/// Most steps of an operation.
pub(crate) const MOST_STEPS: u64 = 376;
/// An operation that was begun so often, by its client and by others, is abandoned.
const MOST_RUNS: u64 = 4;
/// Beyond twice the grace period, for processes without the code of an operation.
const LENIENCY_US: u64 = 1_000_000;
const MAGIC: u64 = u32::from_le_bytes(*b"FFGU") as u64;

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Held while this thread runs an operation.
#[derive(Debug)]
pub(crate) struct Inside(());

/// This thread begins to run an operation.
pub(crate) fn enter() -> Inside {
    INSIDE.set(INSIDE.get() + 1);
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
    }
}

/// Whether this thread runs an operation.
pub(crate) fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// What is to be done with the operation of a dead client.
pub(crate) enum Settled<P: Platform> {
    /// There is none, or no longer.
    None,
    /// Another process has to complete it.
    Later,
    /// This completes it.
    Run(Completion<P>),
}

/// An intent, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intent {
    at: usize,
    /// If it is an object.
    granule: Option<u32>,
}

impl Intent {
    /// That of a client whose entry is this word. `None` if the word means none.
    fn of<P: Platform>(region: &Region<P>, id: ClientId, entry: u64) -> Option<Intent> {
        let number = entry.checked_sub(1)?;
        if let Some(at) = region.layout.intent(id) {
            return (number == 0).then_some(Intent { at, granule: None });
        }
        let granule = u32::try_from(number).ok()?;
        let is_own = region.layout.spans().contains(&span_of(granule))
            && region.words.byte(region.layout.owner(granule)) == id.number();
        is_own.then(|| Intent::object(region, granule))
    }

    /// The place of a client, if intents are not objects.
    pub(crate) fn place<P: Platform>(region: &Region<P>, id: ClientId) -> Option<Intent> {
        Intent::of(region, id, 1).filter(|intent| intent.granule.is_none())
    }

    /// An object of the client.
    pub(crate) fn object<P: Platform>(region: &Region<P>, granule: u32) -> Intent {
        Intent { at: region.layout.granule(granule) as usize, granule: Some(granule) }
    }

    /// The object, if it is one.
    pub(crate) fn granule(self) -> Option<u32> {
        self.granule
    }

    /// What the client's entry says of it.
    pub(crate) fn entry(self) -> u64 {
        1 + u64::from(self.granule.unwrap_or(0))
    }

    fn word<P: Platform>(self, region: &Region<P>, offset: usize) -> u64 {
        region.words.word(self.at + offset)
    }

    fn set<P: Platform>(self, region: &Region<P>, offset: usize, value: u64) {
        region.words.set_word(self.at + offset, value);
    }

    /// Everything but the arguments.
    pub(crate) fn begin<P: Platform>(self, region: &Region<P>, operation: usize, process: u32) {
        self.set(region, 0, operation as u64 | MAGIC << 32);
        self.set(region, 16, 0);
        self.set(region, 40, 0);
        self.set(region, 48, 0);
        self.start_run(region, process);
    }

    /// Writes the arguments down. At most [`MOST_ARGUMENTS`].
    pub(crate) fn set_arguments<P: Platform>(self, region: &Region<P>, arguments: &[u8]) {
        self.set(region, 32, arguments.len() as u64);
        for (index, bytes) in arguments.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.set(region, 64 + 8 * index, u64::from_le_bytes(word));
        }
    }

    pub(crate) fn arguments<P: Platform>(self, region: &Region<P>) -> Vec<u8> {
        let bytes = (self.word(region, 32) as usize).min(MOST_ARGUMENTS);
        let words = (0..bytes.div_ceil(8)).map(|index| self.word(region, 64 + 8 * index));
        let mut arguments: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        arguments.truncate(bytes);
        arguments
    }

    /// A process runs it from its beginning.
    fn start_run<P: Platform>(self, region: &Region<P>, process: u32) {
        self.set(region, 24, u64::from(process));
        self.set(region, 16, self.word(region, 16).wrapping_add(1));
        self.touch(region);
    }

    /// Its grace period begins anew.
    pub(crate) fn touch<P: Platform>(self, region: &Region<P>) {
        self.set(region, 8, now_us());
    }

    /// Its operation. `None` if there is no such: no process could ever complete it.
    pub(crate) fn operation<P: Platform>(self, region: &Region<P>) -> Option<usize> {
        let word = self.word(region, 0);
        let operation = word as u32 as usize;
        let exists = |operation: &usize| {
            region.words.word(region.layout.operation(*operation).state()) == READY
        };
        let named = (word >> 32 == MAGIC && operation < OPERATIONS).then_some(operation);
        named.filter(exists)
    }

    pub(crate) fn steps<P: Platform>(self, region: &Region<P>) -> u64 {
        self.word(region, 40).min(MOST_STEPS)
    }

    pub(crate) fn set_steps<P: Platform>(self, region: &Region<P>, steps: u64) {
        self.set(region, 40, steps);
    }

    /// Result of a step.
    pub(crate) fn result<P: Platform>(self, region: &Region<P>, step: u64) -> u64 {
        self.word(region, 1088 + 8 * step as usize)
    }

    pub(crate) fn set_result<P: Platform>(self, region: &Region<P>, step: u64, value: u64) {
        self.set(region, 1088 + 8 * step as usize, value);
    }

    /// Object `index` is to be freed when the operation is over.
    pub(crate) fn set_free<P: Platform>(self, region: &Region<P>, index: u64, granule: u32) {
        self.set(region, 576 + 8 * index as usize, u64::from(granule));
        self.set(region, 48, index + 1);
    }

    /// Objects to free.
    pub(crate) fn frees<P: Platform>(self, region: &Region<P>) -> Vec<u32> {
        let count = self.word(region, 48).min(MOST_FREES) as usize;
        let words = (0..count).map(|index| self.word(region, 576 + 8 * index));
        words.filter_map(|word| region.granule_in_spans(word)).collect()
    }

    /// The process that runs it, and whether that takes longer than the grace period.
    pub(crate) fn runner<P: Platform>(self, region: &Region<P>) -> (u32, bool) {
        (self.word(region, 24) as u32, self.time_over(region, 1) > 0)
    }

    /// Microseconds since the grace period was over so many times. 0: it was not.
    fn time_over<P: Platform>(self, region: &Region<P>, times: u64) -> u64 {
        let grace = self.operation(region).map_or(0, |operation| grace_us(region, operation));
        if grace == 0 {
            return 0;
        }
        let end = self.word(region, 8).saturating_add(grace.saturating_mul(times));
        now_us().saturating_sub(end)
    }
}

/// Grace period of an operation. 0: none.
pub(crate) fn grace_us<P: Platform>(region: &Region<P>, operation: usize) -> u64 {
    region.words.word(region.layout.operation(operation).grace())
}

/// The operation that a client is in. `None` if it is in none, or its words are damaged.
pub(crate) fn pending<P: Platform>(region: &Region<P>, id: ClientId) -> Option<Intent> {
    let intent = Intent::of(region, id, region.words.word(region.layout.guard(id)))?;
    intent.operation(region).is_some().then_some(intent)
}

/// What is to be done with the operation of a dead client. The caller holds its claim.
pub(crate) fn settle<P: Platform>(
    region: &Region<P>,
    id: ClientId,
    may_complete: bool,
) -> Settled<P> {
    let Some(intent) = pending(region, id) else { return Settled::None };
    let Some(operation) = intent.operation(region) else { return Settled::None };
    let known = region.completion(operation);
    let is_over = match known {
        Some(_) => intent.word(region, 16) >= MOST_RUNS,
        None => intent.time_over(region, 2) > LENIENCY_US,
    };
    match known {
        _ if is_over => {
            count(region, region.layout.operation(operation).abandoned());
            Settled::None
        }
        Some(completion) if may_complete => {
            intent.start_run(region, std::process::id());
            Settled::Run(completion)
        }
        _ => Settled::Later,
    }
}

/// Adds one to a word that several clients count in.
pub(crate) fn count<P: Platform>(region: &Region<P>, at: usize) {
    loop {
        let word = region.words.word(at);
        if region.words.claim_word(at, word, word.wrapping_add(1)) {
            return;
        }
    }
}

fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

const _: () = assert!(1088 + 8 * MOST_STEPS as usize == INTENT_BYTES);
const _: () = assert!(64 + MOST_ARGUMENTS == 576 && 576 + 8 * MOST_FREES as usize == 1088);
