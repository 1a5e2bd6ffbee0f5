//! Why an instance did not answer a call, and the message for the caller.

use crate::http::{HttpError, MOST_ANSWER_BYTES};

/// Why an instance did not answer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Nothing was sent to it.
    NotSent,
    /// It took too long.
    TimedOut,
    /// Its program does not listen.
    NotListening,
    /// It has exited, or closed the connection.
    Exited,
    /// Its answer is too long.
    TooLong,
    /// Its answer is not valid HTTP.
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
    /// The message for the caller; `has_code` says whether the instance had loaded its code.
    pub fn message(self, timeout_ms: u64, has_code: bool) -> String {
        match self {
            CallError::TimedOut => {
                format!("The action exceeded its time limits of {timeout_ms} milliseconds.")
            }
            CallError::NotListening => format!(
                "The action did not initialize: its program did not listen on port 8080 within its \
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
