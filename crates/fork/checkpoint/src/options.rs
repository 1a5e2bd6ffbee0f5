//! What the caller of a checkpoint chooses.

use crate::descriptors::Connections;

/// What happens to the processes when their image exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disposition {
    /// They go on.
    #[default]
    Continue,
    /// They are killed when the checkpoint is settled, and do not run between the copy and that. If
    /// it is dropped unsettled they go on.
    Kill,
    /// They die, and a clone in their place goes on with their TCP connections.
    HandOver,
}

impl Disposition {
    pub(crate) fn connections(self) -> Connections {
        if self == Disposition::HandOver { Connections::GoOn } else { Connections::End }
    }
}

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// What becomes of the processes.
    pub disposition: Disposition,
    /// Whether the caller declares that no Linux AIO request is in progress, which the kernel does
    /// not show. A clone never gets the result of one that was.
    pub aio_is_idle: bool,
    /// A descriptor of the first process that the caller of restore supplies, whatever it is: each clone
    /// gets one of its own.
    pub supplied: Option<u32>,
}
