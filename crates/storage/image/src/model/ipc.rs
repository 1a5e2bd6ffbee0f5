//! Semaphores and message queues of System V. Segments are [`super::SharedObject`]s.

use serde::{Deserialize, Serialize};

/// What an object of System V is known by, and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemVIdentity {
    /// What processes use it by.
    pub id: u32,
    /// What it was made with, 0 for `IPC_PRIVATE`.
    pub key: i32,
    /// Permission bits.
    pub mode: u32,
    /// User and group that own it.
    pub owner: (u32, u32),
    /// User and group that made it.
    pub creator: (u32, u32),
}

/// A set of semaphores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreSet {
    /// What it is known by.
    pub identity: SystemVIdentity,
    /// The value of each.
    pub values: Vec<u16>,
    /// Whether anything was done to it by `semop`: programs take that as a sign that it is ready.
    pub was_used: bool,
}

/// A message queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageQueue {
    /// What it is known by.
    pub identity: SystemVIdentity,
    /// How many bytes may wait in it.
    pub capacity: u64,
    /// What waits in it.
    pub messages: Vec<QueuedMessage>,
}

/// What waits in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedMessage {
    /// Its type, above 0.
    pub kind: i64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
