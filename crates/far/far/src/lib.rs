//! Images whose bytes lie on another node.
//!
//! ```text
//!  node with the pool                     node without it
//!  farfork far serve                      farfork far mount: the holder ─► far process, for each source
//!    server ── regions ◄── tcp ────────── source ─► filesystem ─► DIR/images/CID    (FUSE)
//!    pools     catalog                     control     failures    ▲ maps: clones   ▲ reads: prefetch
//! ```
//! Vocabulary: a *source* is a serving node: one for all images of a mount, or one for each image. The *holder* mounts the file system and keeps its
//! device; the *far process* reads from the source and answers. The *far pool* is a pool directory of the node whose `images` is that file system: all that the agent knows of
//! pools holds for it, and what is learnt about an image lies beside it.
//!
//! Invariants:
//! 1. The far process never touches a clone's memory, and never its own file system: it could wait for itself.
//! 2. A read ends by the deadline, with the right bytes or with an error that is recorded.
//! 3. An image is the same after each new connection: its length, its age and its first page are compared.

pub mod control;
mod error;
pub mod failures;
mod far_side;
mod filesystem;
pub mod holder;
mod keyfile;
mod known;
mod mount;
pub mod place;
pub mod prefetch;
pub mod protocol;
mod request_timeout;
mod server;
mod source;
mod sources;
pub mod start;
pub mod window;

pub use error::FarError;
pub use far_side::{mount_command, mount_command_of, open_far_side};
pub use keyfile::{key_at, key_from, new_key_at, write_key_at};
pub use mount::{FarProcessSettings, run_far_process};
pub use server::FarServer;
pub use source::SourceAt;
