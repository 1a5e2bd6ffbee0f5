//! Why an instance does not answer, and what its caller is told of that.

use crate::http::{MOST_ANSWER_BYTES, Silence};

/// Why an instance does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not asked.
    NotAsked,
    /// It took too long.
    Late,
    /// The program that it has become does not listen.
    Deaf,
    /// It has ended, or ended the connection.
    Gone,
    /// It has answered too much.
    TooLong,
    /// It has answered something that is not HTTP.
    Garbled,
}

impl From<Silence> for Trouble {
    fn from(silence: Silence) -> Trouble {
        match silence {
            Silence::NotSent => Trouble::NotAsked,
            Silence::Lost => Trouble::Gone,
            Silence::TooLong => Trouble::TooLong,
            Silence::Garbled => Trouble::Garbled,
        }
    }
}

impl Trouble {
    /// What the caller is told, of an instance that may have loaded its code already.
    pub fn words(self, timeout_ms: u64, has_code: bool) -> String {
        match self {
            Trouble::Late => {
                format!("The action exceeded its time limits of {timeout_ms} milliseconds.")
            }
            Trouble::Deaf => format!(
                "The action did not initialize: its program did not listen at port 8080 within its \
                 time limits of {timeout_ms} milliseconds."
            ),
            Trouble::TooLong => format!(
                "The action produced a response that exceeded the allowed length of \
                 {MOST_ANSWER_BYTES} bytes."
            ),
            Trouble::Garbled => {
                let which = if has_code { "/run" } else { "/init" };
                format!("The action did not answer {which} by HTTP.")
            }
            Trouble::Gone | Trouble::NotAsked => {
                let which = if has_code { "produce a valid response" } else { "initialize" };
                format!("The action did not {which} and exited unexpectedly.")
            }
        }
    }
}
