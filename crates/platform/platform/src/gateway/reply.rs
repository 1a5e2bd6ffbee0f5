//! Responses.

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream::Stream;
use serde::Serialize;
use serde_json::json;

use crate::api::ApiError;
use crate::held::holding;
use crate::memory::Reservation;
use crate::store::StoreError;

/// The result of most handlers.
pub type Reply = Result<Response, ApiError>;

/// A document with status 200.
pub fn document(value: impl Serialize) -> Response {
    with_status(200, &value)
}

/// Answers of up to this many bytes do not count: they are bounded by the number of connections.
const UNCOUNTED: u64 = 64 << 10;

/// A response whose body counts in `memory` until it was sent, or the client is gone: clients may read as slowly
/// as they like.
///
/// # Errors
/// There is not so much memory.
pub fn counted(response: Response, mut memory: Reservation) -> Reply {
    let bytes = response.body().size_hint().lower();
    if bytes <= UNCOUNTED {
        return Ok(response);
    }
    memory.grow_for_answer(bytes)?;
    Ok(holding(response, memory))
}

/// A document with another status.
pub fn with_status(status: u16, value: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let Ok(text) = serde_json::to_vec(value) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A document that is made while it is sent. If that fails its end is missing, so the client sees
/// that it is incomplete.
pub fn streamed(text: impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An error in OpenWhisk's shape. Its code names the request in the platform's log.
pub fn error(status: u16, words: &str) -> Response {
    let code = getrandom::u64().map_or_else(|_| String::new(), |code| format!("{code:016x}"));
    if status >= 500 {
        tracing::error!(code, status, words, "a request failed");
    }
    coded(status, words, &code)
}

/// An error with this code, by which more is found in the log.
pub fn coded(status: u16, words: &str, code: &str) -> Response {
    with_status(status, &json!({ "error": words, "code": code }))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = error(self.status(), &self.to_string());
        if self == ApiError::Unauthorized {
            let challenge = HeaderValue::from_static("Basic realm=\"OpenWhisk\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        match error {
            StoreError::Conflict => ApiError::Conflict(
                "Concurrent modification to resource detected: read it and try again.".to_owned(),
            ),
            StoreError::TooMuchCode { bytes, most } => ApiError::PartTooLarge {
                what: "The actions of the namespace with their code",
                bytes,
                most,
            },
            other => {
                tracing::error!(reason = %other, "the store failed");
                ApiError::Internal("the store failed; see the platform's log".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_learns_why_it_can_deploy_no_more() {
        let refused = ApiError::from(StoreError::TooMuchCode { bytes: 12, most: 10 });
        assert_eq!(refused.status(), 413);
        let words =
            "The actions of the namespace with their code larger than allowed: 12 > 10 bytes.";
        assert_eq!(refused.to_string(), words);
    }
}
