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
}

/// All of them.
pub const FAULTS: [Fault; 5] = [
    Fault::SendCommitsBeforeSlot,
    Fault::SendMovesTailLast,
    Fault::ReceiveEmptiesSlotFirst,
    Fault::RecoveryFreesBeforeSlots,
    Fault::RecoveryFreesIdFirst,
];
