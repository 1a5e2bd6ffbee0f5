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
//! 4. A page that an image has from an *owner*, an image that it descends from, comes from there or not at all.

mod census;
mod certificates;
pub mod control;
mod error;
pub mod failures;
mod far_side;
mod filesystem;
mod hold;
pub mod holder;
mod holder_lock;
mod keyfile;
mod known;
pub mod lineage;
mod mount;
pub mod orders;
mod others;
pub mod place;
mod place_lock;
pub mod prefetch;
pub mod protocol;
mod server;
mod source;
mod sources;
mod split;
pub mod start;
mod touched;
pub mod wanted;
pub mod window;

pub use census::CountClones;
pub use certificates::{certificates_at, renewed};
pub use error::FarError;
pub use far_side::{mount_command, mount_command_of, open_far_side};
pub use hold::{hold, release};
pub use keyfile::{key_at, key_from, new_key_at, write_key_at};
pub use known::owner_and_lineage;
pub use mount::{FarProcessSettings, run_far_process};
pub use server::{FarServer, Offers};
pub use source::SourceAt;
