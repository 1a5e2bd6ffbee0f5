//! A function as a task: what has reached it.

use std::collections::VecDeque;

use farfork_scheduler::{ImageId, NotMade};

use super::Function;
use crate::model::action_name;

/// What reaches a function beside its calls.
#[derive(Debug)]
pub enum Message {
    /// The memory of this instance is needed.
    Evict(u64),
    /// The pool's space of the image is needed.
    Reclaim,
    /// An instance has started.
    Started(u64),
    /// An instance has lost its room to another.
    LostRoom,
    /// A call has ended; with the instance, if it can make another.
    CallEnded {
        /// The call's number.
        call: usize,
        /// The instance.
        instance: Option<u64>,
        /// Duration inside the instance, if it was answered.
        run_us: Option<u64>,
        /// Duration of the start, if it was without an image.
        cold_us: Option<u64>,
    },
    /// An instance was checkpointed, or not.
    Checkpointed(u64, Result<(), NotMade>),
}

/// A function and what has reached it.
#[derive(Debug)]
pub struct Task {
    /// What is known of it, and what happens next to it.
    pub state: farfork_scheduler::Function,
    /// The name of its image.
    pub image_name: String,
    /// The image in the ledger, once a clone of it has started.
    pub image: Option<ImageId>,
    /// Messages that it has not handled yet.
    pub inbox: VecDeque<Message>,
    /// Calls that it has not seen yet.
    pub commands: VecDeque<usize>,
    /// Whether it is about to act.
    pub is_ready: bool,
    /// Whether there may be room for which it waits.
    pub has_room: bool,
    /// Whether it waits for room.
    pub waits: bool,
    /// When it acted last, among all that functions did.
    pub acted: u64,
    /// When it is woken next.
    pub wake_us: Option<u64>,
}

impl Task {
    /// A function that was not called yet. If it has shares, they are decided.
    pub fn new((index, function): (usize, &Function), has_shares: bool) -> Task {
        let about = format!("u{}/{}", function.owner, action_name(index));
        let (memory_mb, objective) = (function.behaviour.limit_mb, function.behaviour.objective());
        let mut state = farfork_scheduler::Function::new(about.clone(), memory_mb, objective);
        if has_shares {
            state = state.with_shares(function.behaviour.shares.facts());
        }
        Task {
            // Images are ordered by their names where they are worth the same.
            image_name: format!("{about}:"),
            image: None,
            state,
            inbox: VecDeque::new(),
            commands: VecDeque::new(),
            is_ready: false,
            has_room: false,
            waits: false,
            acted: 0,
            wake_us: None,
        }
    }
}
