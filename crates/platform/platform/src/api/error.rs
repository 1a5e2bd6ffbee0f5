//! Answers that are errors.

/// Why a request is not done; the texts go to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// It is wrong.
    #[error("The request is wrong: {0}.")]
    BadRequest(String),
    /// It comes from nobody who is known.
    #[error("The supplied authentication is invalid.")]
    Unauthorized,
    /// It is about what belongs to somebody else.
    #[error("The supplied authentication is not authorized to access '{0}'.")]
    Forbidden(String),
    /// There is no such thing.
    #[error("The requested resource does not exist: {0}.")]
    NotFound(String),
    /// There is such a thing already, or it has changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// Its sender does not go on.
    #[error("The request took too long: its body has stopped coming.")]
    TooSlow,
    /// It is too large.
    #[error("Request larger than allowed: {what} may have up to {most} bytes.")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large it may be.
        most: u64,
    },
    /// A part of what is to be kept is too large.
    #[error("{what} larger than allowed: {bytes} > {most} bytes.")]
    PartTooLarge {
        /// Which.
        what: &'static str,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        most: u64,
    },
    /// Too many at once.
    #[error("Too many requests: {0}.")]
    TooMany(String),
    /// The platform has failed, and the log of the platform says how.
    #[error("The server has failed: {0}.")]
    Internal(String),
}

impl ApiError {
    /// The status of HTTP.
    pub fn status(&self) -> u16 {
        match self {
            ApiError::BadRequest(_) => 400,
            ApiError::Unauthorized => 401,
            ApiError::Forbidden(_) => 403,
            ApiError::NotFound(_) => 404,
            ApiError::TooSlow => 408,
            ApiError::Conflict(_) => 409,
            ApiError::TooLarge { .. } | ApiError::PartTooLarge { .. } => 413,
            ApiError::TooMany(_) => 429,
            ApiError::Internal(_) => 500,
        }
    }
}
