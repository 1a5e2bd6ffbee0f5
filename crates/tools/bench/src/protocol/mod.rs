//! What a subject is asked and how its answers are judged. One file per subject's language.

mod footprint;
mod function;

pub use footprint::{Footprint, Touches};
pub use function::{Example, Function, SAME_INPUT};

/// Which process is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer {
    /// The one that accepts the connection.
    Itself,
    /// A child that it forks for this connection.
    ForkedChild,
}

/// The language of a subject. Requests are numbered; equal numbers get equal answers from every
/// right process, and different numbers can be told from each other.
pub trait Protocol: Send + Sync {
    /// The bytes of request `number`.
    fn request(&self, number: u64, answerer: Answerer) -> Vec<u8>;

    /// Whether these bytes are an answer and not just its beginning.
    fn is_complete(&self, answer: &[u8]) -> bool;

    /// Checks the answer to request `number`; the pid of the process that gave it, as that
    /// process sees itself.
    fn check(&self, number: u64, answer: &[u8]) -> Result<i32, String>;

    /// So many requests in a row, from a multiple of this number on, take the same work.
    fn same_input(&self) -> u64 {
        1
    }
}
