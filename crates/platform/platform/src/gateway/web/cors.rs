//! Cross-origin resource sharing: any page of any origin may call a web action, unless the action
//! handles this itself.

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS,
};
use axum::http::{HeaderMap, HeaderValue};

const ORIGINS: &str = "*";
const METHODS: &str = "OPTIONS, GET, DELETE, POST, PUT, HEAD, PATCH";
const HEADERS: &str = "Authorization, Origin, X-Requested-With, Content-Type, Accept, User-Agent";

/// The headers that a page asks to send.
pub fn wanted(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned()
}

/// Allows what a page asks for, except where the function has set these headers itself.
pub fn add(headers: &mut HeaderMap, wanted: Option<HeaderValue>) {
    let wanted = wanted.unwrap_or(HeaderValue::from_static(HEADERS));
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(ORIGINS)),
        (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS)),
        (ACCESS_CONTROL_ALLOW_HEADERS, wanted),
    ] {
        headers.entry(name).or_insert(value);
    }
}
