//! The requests to a subject, and the checks of its answers. One file per protocol.

mod footprint;
mod function;

pub use footprint::{Footprint, Touches};
pub use function::{Example, Function, SAME_INPUT};

/// The process that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer {
    /// The process that accepts the connection.
    Itself,
    /// A child that it forks for this connection.
    ForkedChild,
}

/// The protocol of a subject. Requests are numbered. Equal numbers have equal correct answers, and
/// different numbers have different ones.
pub trait Protocol: Send + Sync {
    /// The bytes of request `number`.
    fn request(&self, number: u64, answerer: Answerer) -> Vec<u8>;

    /// Whether these bytes are a complete answer.
    fn is_complete(&self, answer: &[u8]) -> bool;

    /// Checks the answer to request `number`. Returns the pid of the process that answered, as in its
    /// own PID namespace.
    fn check(&self, number: u64, answer: &[u8]) -> Result<i32, String>;

    /// Number of consecutive requests, from a multiple of it on, that have the same input.
    fn same_input(&self) -> u64 {
        1
    }
}
