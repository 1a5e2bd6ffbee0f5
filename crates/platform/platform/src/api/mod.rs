//! OpenWhisk's documents (its REST API, version v1), as clients send and read them.

mod action;
mod activation;
mod arguments;
mod checked;
mod document;
mod error;
mod exec;
mod limits;
mod name;
mod parameters;
pub mod region;
mod text;
mod version;

pub use action::{Action, ActionPut, Change, Summary};
pub use activation::{
    Activation, ActivationId, ActivationSummary, Outcome, Response, StartKind, Times,
};
pub use arguments::{Arguments, Fields};
pub use checked::Checked;
pub use document::{Document, ResultError};
pub use error::ApiError;
pub use exec::{Code, Exec, ExecPut, Runtimes};
pub use limits::{Limits, LimitsPut, of_platform};
pub use name::{Name, NameError};
pub use parameters::{MOST_PARAMETERS_BYTES, Parameters};
pub use version::Version;
