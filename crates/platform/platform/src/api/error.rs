//! Errors of the interface.

/// Why a request failed. The messages are sent to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// It is invalid.
    #[error("The request is invalid: {0}.")]
    BadRequest(String),
    /// It has no valid key.
    #[error("The supplied authentication is invalid.")]
    Unauthorized,
    /// It is about another namespace.
    #[error("The supplied authentication is not authorized to access '{0}'.")]
    Forbidden(String),
    /// A page of another origin has a browser send it, with the key that the browser keeps.
    #[error("The request comes from a page of another site; the API takes none from there.")]
    CrossSite,
    /// The resource does not exist.
    #[error("The requested resource does not exist: {0}.")]
    NotFound(String),
    /// The resource exists already, or was changed concurrently.
    #[error("{0}")]
    Conflict(String),
    /// Its body did not arrive in time.
    #[error("The request timed out: its body did not arrive.")]
    TooSlow,
    /// It is too large.
    #[error("Request larger than allowed: {what} may have up to {most} bytes.")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its limit in bytes.
        most: u64,
    },
    /// A part of a stored document is too large.
    #[error("{what} larger than allowed: {bytes} > {most} bytes.")]
    PartTooLarge {
        /// The part.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// Its limit in bytes.
        most: u64,
    },
    /// Too many concurrent requests.
    #[error("Too many requests: {0}.")]
    TooMany(String),
    /// The platform failed; its log has the reason.
    #[error("The server failed: {0}.")]
    Internal(String),
}

impl ApiError {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            ApiError::BadRequest(_) => 400,
            ApiError::Unauthorized => 401,
            ApiError::Forbidden(_) | ApiError::CrossSite => 403,
            ApiError::NotFound(_) => 404,
            ApiError::TooSlow => 408,
            ApiError::Conflict(_) => 409,
            ApiError::TooLarge { .. } | ApiError::PartTooLarge { .. } => 413,
            ApiError::TooMany(_) => 429,
            ApiError::Internal(_) => 500,
        }
    }
}
