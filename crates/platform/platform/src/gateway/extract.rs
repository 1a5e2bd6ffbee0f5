//! Extractors for parts of requests, whose errors have OpenWhisk's shape.

use std::error::Error;

use axum::body::{self, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutError;

use crate::api::ApiError;

/// The parameters in the path.
#[derive(Debug)]
pub struct PathParams<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathParams<T>, ApiError> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        let wrong = |reason: String| ApiError::BadRequest(format!("invalid path: {reason}"));
        found.map(|Path(found)| PathParams(found)).map_err(|rejection| wrong(rejection.body_text()))
    }
}

/// The parameters in the query.
#[derive(Debug)]
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<QueryParams<T>, ApiError> {
        let found = Query::<T>::try_from_uri(&parts.uri);
        let wrong = |reason: String| ApiError::BadRequest(format!("invalid query: {reason}"));
        found
            .map(|Query(found)| QueryParams(found))
            .map_err(|rejection| wrong(rejection.body_text()))
    }
}

/// The body, of up to `MOST` bytes. A longer one is not read if the client announces its length.
#[derive(Debug)]
pub struct Body<const MOST: usize>(pub Bytes);

impl<const MOST: usize, S: Send + Sync> FromRequest<S> for Body<MOST> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Body<MOST>, ApiError> {
        let too_large = || ApiError::TooLarge { what: "the body", most: MOST as u64 };
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|bytes| bytes > MOST as u64) {
            return Err(too_large());
        }
        let read = body::to_bytes(request.into_body(), MOST).await;
        read.map(Body).map_err(|error| {
            if has_cause::<TimeoutError>(&error) {
                ApiError::TooSlow
            } else if has_cause::<LengthLimitError>(&error) {
                too_large()
            } else {
                // Or the client has gone away, and does not read the response.
                ApiError::BadRequest("malformed body: invalid chunk, or incomplete".to_owned())
            }
        })
    }
}

/// Whether an error, or what caused it, is an `E`.
fn has_cause<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| cause.is::<E>())
}
