//! What the caller of a checkpoint chooses.

use crate::descriptors::Connections;

/// What becomes of processes when their image is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// They go on.
    #[default]
    GoesOn,
    /// They never run again after the moment that the image shows, unless the checkpoint is dropped
    /// without being settled.
    Dies,
    /// They die, and a clone in their place goes on with their TCP connections.
    HandsOver,
}

impl Fate {
    pub(crate) fn connections(self) -> Connections {
        if self == Fate::HandsOver { Connections::GoOn } else { Connections::End }
    }
}

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// What becomes of the processes.
    pub fate: Fate,
    /// Whether the caller declares that no Linux AIO request is in progress, which the kernel does
    /// not show. A clone never gets the result of one that was.
    pub aio_is_idle: bool,
}
