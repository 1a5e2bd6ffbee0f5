//! Why an instance does not answer, and what its caller is told of that.

use crate::http::{HttpError, MOST_ANSWER_BYTES};

/// Why an instance does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// It was not asked.
    NotSent,
    /// It took too long.
    TimedOut,
    /// The program that it has become does not listen.
    NotListening,
    /// It has ended, or ended the connection.
    Exited,
    /// It has answered too much.
    TooLong,
    /// It has answered something that is not HTTP.
    InvalidHttp,
}

impl From<HttpError> for CallError {
    fn from(error: HttpError) -> CallError {
        match error {
            HttpError::NotSent => CallError::NotSent,
            HttpError::Lost => CallError::Exited,
            HttpError::TooLong => CallError::TooLong,
            HttpError::InvalidHttp => CallError::InvalidHttp,
        }
    }
}

impl CallError {
    /// What the caller is told, of an instance that may have loaded its code already.
    pub fn message(self, timeout_ms: u64, has_code: bool) -> String {
        match self {
            CallError::TimedOut => {
                format!("The action exceeded its time limits of {timeout_ms} milliseconds.")
            }
            CallError::NotListening => format!(
                "The action did not initialize: its program did not listen at port 8080 within its \
                 time limits of {timeout_ms} milliseconds."
            ),
            CallError::TooLong => format!(
                "The action produced a response that exceeded the allowed length of \
                 {MOST_ANSWER_BYTES} bytes."
            ),
            CallError::InvalidHttp => {
                let which = if has_code { "/run" } else { "/init" };
                format!("The action did not answer {which} by HTTP.")
            }
            CallError::Exited | CallError::NotSent => {
                let which = if has_code { "produce a valid response" } else { "initialize" };
                format!("The action did not {which} and exited unexpectedly.")
            }
        }
    }
}
