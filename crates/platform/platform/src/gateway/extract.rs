//! Parts of requests, refused in OpenWhisk's shape where they are wrong.

use std::error::Error;

use axum::body::{self, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutError;

use crate::api::ApiError;

/// What stands in the path.
#[derive(Debug)]
pub struct PathParams<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathParams<T>, ApiError> {
        let found = Path::<T>::from_request_parts(parts, state).await;
        let wrong = |reason: String| ApiError::BadRequest(format!("its path: {reason}"));
        found.map(|Path(found)| PathParams(found)).map_err(|rejection| wrong(rejection.body_text()))
    }
}

/// What stands behind the question mark.
#[derive(Debug)]
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<QueryParams<T>, ApiError> {
        let found = Query::<T>::try_from_uri(&parts.uri);
        let wrong = |reason: String| ApiError::BadRequest(format!("its query: {reason}"));
        found
            .map(|Query(found)| QueryParams(found))
            .map_err(|rejection| wrong(rejection.body_text()))
    }
}

/// The body, which may have up to `MOST` bytes; more are not even read if the client says so first.
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
        // It fails for one more reason: a client that has gone, who hears nothing of it.
        read.map(Body)
            .map_err(|error| if is_slow(&error) { ApiError::TooSlow } else { too_large() })
    }
}

/// Whether a body was waited for for too long.
fn is_slow(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| cause.is::<TimeoutError>())
}
