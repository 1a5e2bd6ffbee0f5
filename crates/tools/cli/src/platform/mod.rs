//! The platform's own client: `farfork deploy`, `invoke`, `logs`, `functions` and `top`.
//!
//! ```text
//!  kind        which runtime a file is for
//!  remote      where the platform is, who asks, and asking over HTTP
//!  view        what goes on by node and function, as top shows it
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
mod remote;
pub(crate) mod top;
mod view;
