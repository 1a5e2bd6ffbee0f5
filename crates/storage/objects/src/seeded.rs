//! Known faults in the order of stores. A harness that does not find each of them proves nothing.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A send gives the object to the mailbox before a slot names it.
    SendCommitsBeforeSlot,
    /// A send moves the tail on after it has committed.
    SendMovesTailLast,
    /// A receive empties the slot before it owns the object.
    ReceiveEmptiesSlotFirst,
    /// Recovery frees granules before it clears slots that name them.
    RecoveryFreesBeforeSlots,
    /// Recovery marks the client's id as free before it has given everything back.
    RecoveryFreesIdFirst,
    /// Recovery forgets where the client had something before it has given it back.
    RecoveryClearsMarksFirst,
    /// A client marks a span after it has claimed it.
    ClaimMarksLast,
    /// A receive marks the span after it has committed.
    ReceiveMarksLast,
    /// An allocation of whole spans commits before they are a run.
    RunCommitsFirst,
    /// A free of whole spans commits before the run is the client's.
    FreeTakesRunLast,
    /// The first span of a run is free before the others are.
    ReleaseFreesFirstSpanFirst,
    /// Stores that belong together are done before they are written down.
    StoresBeforeIntent,
    /// The number of stores to do again is written before these are written down.
    IntentCommitsFirst,
    /// Recovery does not complete what the client has committed.
    RecoveryForgetsIntent,
    /// An object is free before it has left the list of the dying.
    DyingIsFreedInList,
    /// A send wakes the receiver before it has committed.
    WakesBeforeCommit,
    /// A guarded operation begins before its arguments are written down.
    GuardCommitsFirst,
    /// A step of a guarded operation counts as done before its result is written down.
    StepCountsFirst,
    /// A guarded operation releases its locks before it counts as done.
    GuardUnlocksFirst,
    /// Recovery does not complete a guarded operation.
    RecoveryForgetsGuard,
    /// A guarded operation that is done again loads what it has stored.
    LoadIsNotRecorded,
    /// A checked client does not look at the bytes behind an object.
    CheckIgnoresPadding,
    /// A checked client does not look at what it has freed before it frees it really.
    CheckIgnoresFill,
    /// A checked client does not know what it has freed.
    CheckForgetsFrees,
    /// A checked client follows references to objects that were freed.
    CheckIgnoresGeneration,
    /// A checked client does not see that another one has its id.
    CheckIgnoresIncarnation,
    /// A receiver does not look whether a slot names a place for objects.
    ReceiveTrustsSlots,
    /// A receiver skips the place of a root whose send has just begun.
    SkipsLastPlace,
    /// A client goes to sleep although stores that others did before may not be visible yet.
    SleepIsNotOrdered,
    /// A client gives up its hold of a structure by an ordinary store, and looks for other holds before that is visible.
    HoldEndsByStore,
    /// Metadata is rebuilt with a message that was not sent.
    RebuildKeepsUnsent,
    /// Metadata is rebuilt without a count of references.
    RebuildKeepsCounts,
    /// Metadata is rebuilt before slots that mean nothing are emptied, and these are not.
    RebuildKeepsSlots,
    /// Rebuilt metadata has the generation of the lost one.
    RebuildKeepsGeneration,
    /// Metadata is where clients look for it before it is rebuilt.
    RebuildPublishesFirst,
    /// The lost generation stays valid until metadata is rebuilt.
    RebuildInvalidatesLast,
    /// The record of a shared structure has its seal before it is one.
    SealsBeforeCommit,
}

/// Those in the order of stores.
pub const FAULTS: [Fault; 28] = [
    Fault::SendCommitsBeforeSlot,
    Fault::SendMovesTailLast,
    Fault::ReceiveEmptiesSlotFirst,
    Fault::RecoveryFreesBeforeSlots,
    Fault::RecoveryFreesIdFirst,
    Fault::RecoveryClearsMarksFirst,
    Fault::ClaimMarksLast,
    Fault::ReceiveMarksLast,
    Fault::RunCommitsFirst,
    Fault::FreeTakesRunLast,
    Fault::ReleaseFreesFirstSpanFirst,
    Fault::StoresBeforeIntent,
    Fault::IntentCommitsFirst,
    Fault::RecoveryForgetsIntent,
    Fault::DyingIsFreedInList,
    Fault::WakesBeforeCommit,
    Fault::GuardCommitsFirst,
    Fault::StepCountsFirst,
    Fault::GuardUnlocksFirst,
    Fault::RecoveryForgetsGuard,
    Fault::LoadIsNotRecorded,
    Fault::RebuildKeepsUnsent,
    Fault::RebuildKeepsCounts,
    Fault::RebuildKeepsSlots,
    Fault::RebuildKeepsGeneration,
    Fault::RebuildPublishesFirst,
    Fault::RebuildInvalidatesLast,
    Fault::SealsBeforeCommit,
];
