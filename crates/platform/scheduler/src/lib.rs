//! The scheduler's state, and what changes it. The platform drives it on real nodes.
//!
//! ```text
//!  driver ── what has happened, and when (microseconds) ──► Ledger   what takes memory of each node
//!    ▲                                                      Fleet    what can end for others, and is ending
//!    │                                                      ImageUsage  what images save
//!    │                                                      Function  a function's calls, instances, image
//!    │                                                      Relief, Reclaim  what ends when memory is short
//!    │                                                      Turns    of namespaces, for cold starts
//!    │                                                        │ facts
//!    └── locks, clocks, tasks, requests to agents             └──► Advice ──► policies
//! ```
//! Invariants:
//! - Nothing here reads a clock, takes a lock, starts a task or does I/O. Equal calls in equal order give
//!   equal answers.
//! - Times are microseconds since any one moment, the same for all calls, and do not decrease.
//! - Nodes are known by their [`NodeId`], instances and ghosts by numbers that are never given twice.

#![forbid(unsafe_code)]

mod advice;
mod arrivals;
mod claim;
mod fleet;
mod function;
mod image_usage;
mod images;
mod instance;
mod ledger;
mod node;
mod numbers;
mod pressure;
mod resting;
mod scaling;
mod stock;
mod turns;

pub use advice::Advice;
pub use claim::{Claim, ImageSpec, Usage};
pub use fleet::{Fleet, NewInstance, Occupancy};
pub use function::{
    AboutToRest, AfterNotMade, AfterNotStarted, Declared, Due, Function, History, ImageState,
    NotMade, NotStarted, Sharing, StartOrder, Surroundings, Window,
};
pub use image_usage::{ImageStats, ImageUsage};
pub use images::ImageId;
pub use ledger::{
    GhostOrder, GhostRef, Ledger, NodeId, NodeStatus, PauseChange, Promotion, USUAL_MB,
};
pub use node::NodeLoad;
pub use numbers::ByNumber;
pub use pressure::{Reclaim, relief};
pub use resting::RestEffect;
pub use scaling::{NoRoom, Scaling};
pub use turns::Turns;
