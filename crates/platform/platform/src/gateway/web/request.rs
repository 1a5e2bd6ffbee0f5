//! The arguments of a web action: the request as JSON.

use axum::http::header::{CONTENT_TYPE, COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mime::Mime;
use percent_encoding::percent_decode;
use serde_json::{Map, Value};

use super::media::{is_form, is_json, is_text};
use crate::api::{Action, ApiError, Name};

const METHOD: &str = "__ow_method";
const HEADERS: &str = "__ow_headers";
const PATH: &str = "__ow_path";
const USER: &str = "__ow_user";
const QUERY: &str = "__ow_query";
const BODY: &str = "__ow_body";
/// Parameters that only the platform sets.
const RESERVED: [&str; 6] = [METHOD, HEADERS, PATH, USER, QUERY, BODY];
/// An authenticated request.
#[derive(Debug)]
pub struct WebRequest<'a> {
    /// All but the body.
    pub parts: &'a Parts,
    /// The body.
    pub body: &'a [u8],
    /// The namespace of its key, if the action requires one.
    pub user: Option<&'a Name>,
}

/// The arguments of the call, without the action's own parameters. Fields of the body override
/// those of the query. Neither may set what the platform sets, or final parameters of the action.
pub fn arguments(action: &Action, asked: &WebRequest<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut args = context(asked);
    let mut put = |key: &str, value: Value| drop(args.insert(key.to_owned(), value));
    let query = asked.parts.uri.query().unwrap_or_default();
    if action.annotations.is_set("raw-http") {
        put(QUERY, query.into());
        put(BODY, opaque(asked)?);
        return Ok(args);
    }
    let mut given = fields("the query", query.as_bytes())?;
    match content(asked)? {
        Some(Value::Object(fields)) => given.extend(fields),
        Some(other) => put(BODY, other),
        None => {}
    }
    refuse(action, &given)?;
    args.extend(given);
    Ok(args)
}

fn context(asked: &WebRequest<'_>) -> Map<String, Value> {
    let parts = asked.parts;
    let mut context = Map::from_iter([
        (METHOD.to_owned(), parts.method.as_str().to_lowercase().into()),
        (HEADERS.to_owned(), Value::Object(headers(&parts.headers))),
        (PATH.to_owned(), rest(parts.uri.path()).into()),
    ]);
    if let Some(user) = asked.user {
        context.insert(USER.to_owned(), user.as_str().into());
    }
    context
}

/// Each header as one text; repeated headers become a list.
fn headers(headers: &HeaderMap) -> Map<String, Value> {
    let joined = |name: &HeaderName| {
        let all = headers.get_all(name).iter();
        let all: Vec<_> = all.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        all.join(if name == COOKIE { "; " } else { ", " })
    };
    headers.keys().map(|name| (name.as_str().to_owned(), joined(name).into())).collect()
}

/// What follows the action's name, as sent. The router has removed what stands before it.
fn rest(path: &str) -> &str {
    path.match_indices('/').nth(1).map_or("", |(at, _)| &path[at..])
}

/// The body, if there is one: JSON, the fields of a form, or opaque content.
fn content(asked: &WebRequest<'_>) -> Result<Option<Value>, ApiError> {
    let kind = kind(asked);
    if asked.body.is_empty() {
        return Ok(None);
    }
    if is_json(&kind) {
        let wrong = |reason| ApiError::BadRequest(format!("the body is not JSON: {reason}"));
        return serde_json::from_slice(asked.body).map(Some).map_err(wrong);
    }
    if is_form(&kind) {
        return fields("the form in the body", asked.body).map(|all| Some(Value::Object(all)));
    }
    opaque(asked).map(Some)
}

/// The body as text, or in base64 if it is JSON or not text.
fn opaque(asked: &WebRequest<'_>) -> Result<Value, ApiError> {
    let kind = kind(asked);
    if !is_text(&kind) || is_json(&kind) {
        return Ok(STANDARD.encode(asked.body).into());
    }
    let text = std::str::from_utf8(asked.body);
    let wrong = |_| ApiError::BadRequest(format!("the body is '{kind}' but not UTF-8"));
    text.map(Value::from).map_err(wrong)
}

/// The media type of the body; bytes if there is none or an invalid one.
fn kind(asked: &WebRequest<'_>) -> Mime {
    let kind = asked.parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.parse().ok()).unwrap_or(mime::APPLICATION_OCTET_STREAM)
}

/// Fields of a query or form; of equal keys the last counts.
fn fields(place: &str, text: &[u8]) -> Result<Map<String, Value>, ApiError> {
    // The parser would replace invalid letters.
    if percent_decode(text).decode_utf8().is_err() {
        return Err(ApiError::BadRequest(format!("{place} is not UTF-8")));
    }
    let all = form_urlencoded::parse(text);
    Ok(all.map(|(key, value)| (key.into_owned(), value.into_owned().into())).collect())
}

fn refuse(action: &Action, given: &Map<String, Value>) -> Result<(), ApiError> {
    let is_final = action.annotations.is_set("final");
    let is_taken = |key: &str| RESERVED.contains(&key) || is_final && action.parameters.binds(key);
    match given.keys().find(|key| is_taken(key)) {
        Some(_) => {
            Err(ApiError::BadRequest("it sets a parameter that is final or reserved".to_owned()))
        }
        None => Ok(()),
    }
}
