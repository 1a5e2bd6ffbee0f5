//! The client of the platform: `farfork deploy`, `invoke`, `logs`, `functions`, `keys` and `top`.
//!
//! ```text
//!  kind        the runtime of a file
//!  remote      URL and key of the platform, and its HTTP requests
//!  view        the table of nodes and functions that top shows
//! ```

mod activation;
pub(crate) mod deploy;
pub(crate) mod functions;
pub(crate) mod invoke;
pub(crate) mod keys;
mod kind;
pub(crate) mod logs;
mod package;
mod parameters;
pub(crate) mod remote;
pub(crate) mod top;
mod view;
