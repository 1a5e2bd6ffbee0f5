//! Parts of requests, whose errors have OpenWhisk's shape.

use std::error::Error;

use axum::extract::{FromRequestParts, Path, Query, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError};
use serde::de::DeserializeOwned;
use tower_http::timeout::TimeoutError;

use crate::api::ApiError;
use crate::memory::Reservation;

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

/// Reads the body, of up to `most` bytes. Its memory is reserved as it arrives. A longer one is not read if
/// the client announces its length.
pub async fn read_body(
    request: Request,
    most: usize,
    memory: &mut Reservation,
) -> Result<Vec<u8>, ApiError> {
    let too_large = || ApiError::TooLarge { what: "the body", most: most as u64 };
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced = announced.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
    let announced = announced.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if announced > most {
        return Err(too_large());
    }
    let mut body = request.into_body();
    // Pages of it are resident only as they are written.
    let mut text = Vec::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if has_cause::<TimeoutError>(&error) {
                ApiError::TooSlow
            } else if has_cause::<LengthLimitError>(&error) {
                too_large()
            } else {
                // Or the client has gone away, and does not read the response.
                ApiError::BadRequest("malformed body: invalid chunk, or incomplete".to_owned())
            }
        })?;
        let Ok(part) = frame.into_data() else { continue };
        if text.len() + part.len() > most {
            return Err(too_large());
        }
        memory.grow(part.len() as u64)?;
        text.extend_from_slice(&part);
    }
    Ok(text)
}

/// Whether an error, or what caused it, is an `E`.
fn has_cause<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|cause| cause.is::<E>())
}
