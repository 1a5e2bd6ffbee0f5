//! FUSE file systems that go on when the process that answers for them is killed.
//!
//! ```text
//!  holder: mounts, keeps /dev/fuse ── starts ──► server: answers ──► Files
//!     ├── the server was killed: the next one takes over, and has the kernel send again what was not answered
//!     └── the holder was killed: its server becomes the holder, and starts the next server
//! ```
//! The server gets the device as standard input. Invariant: a request is answered, or ends with the file system by the
//! kernel's own limit (Linux 6.14).

mod answer;
mod error;
mod files;
mod holder;
mod request_timeout;

pub use answer::{BUFFER_BYTES, answer, forget_name};
pub use error::MountError;
pub use files::{FileFacts, Files, Owner};
pub use holder::{adopt, close_output, hold, when_holder_ends};
pub use request_timeout::of as limit_for;
