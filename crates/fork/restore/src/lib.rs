//! Image to process.
//!
//! ```text
//!  Template::start ── exec ──► template        (one per node agent)
//!  Template::spawn ── Request + descriptors ──► forks the init, a child of this process
//!  Ghost::spawn    ── the same, to an init that waits in a container ──► it forks the clone
//!  Started::next   ◄── Status ── clone: running │ init: failed, exited
//!  Started::end    ── SIGKILL ──► init, and what descends from it
//!  Members::end    ── SIGKILL ──► what descends from an init that was killed
//! ```
//! CXLfork (ASPLOS '25) §4.2 rebuilds a process inside the kernel; here the restorer runs the
//! image's plan, and this crate starts it, sends it requests and reads its status.

mod attach;
mod ending;
mod error;
mod ghost;
mod sources;
mod template;
mod waker;

pub use attach::{AttachedImage, ImageSource, attach};
pub use ending::Members;
pub use error::RestoreError;
pub use ghost::{Ghost, GhostLauncher, PendingGhost};
pub use sources::Sources;
pub use template::{Event, RequestFds, Started, Template};
pub use waker::{PeerEnd, Waker, wake};
