//! The agent of one machine, and its client.
//!
//! ```text
//!  client ── Call ──► session ─┬─ images: pool, pins, attached images
//!         ◄─ Reply ──          ├─ template ──► init ──► clone
//!                              ├─ ghosts: containers that wait to be an init
//!                              └─ registry ◄── status ──┘   (one watcher thread)
//! ```
//! Invariants: an image is pinned in the pool as long as a clone of it lives on this node, the
//! truth being a lock that the clone's processes hold; a clone that was not detached dies with the
//! connection that asked for it; the agent leaves when it has had nothing to do for a while. One
//! that is not root works in a user namespace of its own.

mod addresses;
mod agent;
mod borrow;
mod channel;
pub mod client;
mod elastic;
mod error;
mod externals;
mod far_order;
mod far_parts;
mod ghosts;
mod handover;
mod headroom;
mod images;
mod leftovers;
mod lock;
mod missing;
mod overlays;
pub mod owner_lock;
pub mod paths;
mod preforked;
pub mod profile;
mod promote;
mod registry;
mod rings;
mod session;
mod start;
mod trial;
pub mod usage;
mod user;
mod workers;

pub use agent::{Settings, serve};
pub use borrow::ServedImage;
pub use error::NodeError;
pub use far_parts::{Removal, node_of, remove_unnamed, with_far_side};
pub use farfork_restore::ImageSource;
pub use leftovers::{clear_pins, forget_node, has_ghosts, leave_ghosts, thaw_ghosts};
