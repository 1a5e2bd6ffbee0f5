//! A call that waits, and what has come of it.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Call, CallSlot};
use crate::api::{Activation, Response, Times};

/// A call that waits for an instance.
#[derive(Debug)]
pub struct QueuedCall {
    /// The call.
    pub call: Call,
    /// Receives the activation; closed if the caller has gone away.
    pub answer: oneshot::Sender<Activation>,
    /// Its slot among the concurrent calls of its namespace.
    pub slot: CallSlot,
    /// When it was queued.
    pub since: Instant,
}

/// The outcome of a call.
#[derive(Debug)]
pub struct CallOutcome {
    /// The response.
    pub response: Response,
    /// The printed lines.
    pub logs: Vec<String>,
    /// The times for the record.
    pub times: Times,
    /// The durations inside the instance.
    pub spent: CallTimes,
    /// Whether the instance can make another call.
    pub is_well: bool,
}

/// The durations of a call inside its instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTimes {
    /// Loading the code, if it was loaded.
    pub init: Option<Duration>,
    /// The call itself, if it was answered.
    pub run: Option<Duration>,
}

impl CallTimes {
    /// Duration of the call itself, in microseconds.
    pub fn run_us(&self) -> u64 {
        let us = self.run.unwrap_or_default().as_micros();
        u64::try_from(us).unwrap_or(u64::MAX)
    }
}
