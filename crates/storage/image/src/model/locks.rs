//! What an open file holds against others, and whom it signals.

use serde::{Deserialize, Serialize};

/// A lock or lease that a clone takes again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// Index in [`Model::files`](super::Model::files).
    pub file: u32,
    /// What holds it.
    pub kind: LockKind,
    /// Whether it excludes readers too.
    pub is_write: bool,
    /// First byte.
    pub start: u64,
    /// Bytes, 0 for all that follow.
    pub length: u64,
}

/// Kinds of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// `flock`: the open file description holds it.
    Whole,
    /// `F_SETLK`: the process holds it.
    Process,
    /// `F_OFD_SETLK`: the open file description holds it.
    Description,
    /// `F_SETLEASE`.
    Lease,
}

/// A file that sends a signal when it is ready or its lease is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Index in [`Model::files`](super::Model::files).
    pub file: u32,
    /// The receiver of the signal, as `F_SETOWN` takes it: a process of the image, or the negated id of
    /// a group.
    pub owner: i32,
    /// Which: 0 stands for `SIGIO` without further data.
    pub signal: u32,
    /// Whether it signals that it is ready (`O_ASYNC`).
    pub is_async: bool,
}
