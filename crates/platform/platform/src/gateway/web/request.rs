//! The arguments of a web action: the request as JSON.

use std::borrow::Cow;

use axum::http::header::{CONTENT_TYPE, COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mime::Mime;
use percent_encoding::percent_decode;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::media::{is_form, is_json, is_text};
use crate::api::{Action, ApiError, Checked, Fields, Name};

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
pub fn arguments<'a>(action: &Action, asked: &WebRequest<'a>) -> Result<Fields<'a>, ApiError> {
    let mut args = context(asked);
    let query = asked.parts.uri.query().unwrap_or_default();
    if action.annotations.is_set("raw-http") {
        args.put(QUERY, &query);
        args.put(BODY, &opaque(asked)?);
        return Ok(args);
    }
    let mut given = fields("the query", query.as_bytes())?;
    match content(asked)? {
        Some(Content::Fields(fields)) => given.extend(fields),
        Some(Content::Other(other)) => args.put(BODY, &other),
        None => {}
    }
    refuse(action, &given)?;
    args.extend(given);
    Ok(args)
}

fn context<'a>(asked: &WebRequest<'_>) -> Fields<'a> {
    let parts = asked.parts;
    let mut context = Fields::default();
    context.put(METHOD, &parts.method.as_str().to_lowercase());
    context.put(HEADERS, &headers(&parts.headers));
    context.put(PATH, &rest(parts.uri.path()));
    if let Some(user) = asked.user {
        context.put(USER, &user.as_str());
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

/// The content of a body.
enum Content<'a> {
    /// An object, or the fields of a form.
    Fields(Fields<'a>),
    /// Any other value.
    Other(Cow<'a, RawValue>),
}

/// The body, if there is one: JSON, the fields of a form, or opaque content.
fn content<'a>(asked: &WebRequest<'a>) -> Result<Option<Content<'a>>, ApiError> {
    let kind = kind(asked);
    if asked.body.is_empty() {
        return Ok(None);
    }
    if is_json(&kind) {
        return json(asked.body)
            .map(Some)
            .map_err(|reason| ApiError::BadRequest(format!("the body is not JSON: {reason}")));
    }
    if is_form(&kind) {
        return fields("the form in the body", asked.body).map(|all| Some(Content::Fields(all)));
    }
    let text = to_raw_value(&opaque(asked)?).unwrap_or_default();
    Ok(Some(Content::Other(Cow::Owned(text))))
}

fn json(body: &[u8]) -> serde_json::Result<Content<'_>> {
    if body.trim_ascii_start().starts_with(b"{") {
        return Fields::parse(body).map(Content::Fields);
    }
    serde_json::from_slice::<Checked>(body)?;
    serde_json::from_slice(body).map(|value| Content::Other(Cow::Borrowed(value)))
}

/// The body as text, or in base64 if it is JSON or not text.
fn opaque<'a>(asked: &WebRequest<'a>) -> Result<Cow<'a, str>, ApiError> {
    let kind = kind(asked);
    if !is_text(&kind) || is_json(&kind) {
        return Ok(STANDARD.encode(asked.body).into());
    }
    let text = std::str::from_utf8(asked.body);
    let wrong = |_| ApiError::BadRequest(format!("the body is '{kind}' but not UTF-8"));
    text.map(Cow::Borrowed).map_err(wrong)
}

/// The media type of the body; bytes if there is none or an invalid one.
fn kind(asked: &WebRequest<'_>) -> Mime {
    let kind = asked.parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.parse().ok()).unwrap_or(mime::APPLICATION_OCTET_STREAM)
}

/// Fields of a query or form; of equal keys the last counts.
fn fields<'a>(place: &str, text: &'a [u8]) -> Result<Fields<'a>, ApiError> {
    // The parser would replace invalid letters.
    if percent_decode(text).decode_utf8().is_err() {
        return Err(ApiError::BadRequest(format!("{place} is not UTF-8")));
    }
    let mut all = Fields::default();
    form_urlencoded::parse(text).for_each(|(key, value)| all.put(key, &value));
    Ok(all)
}

fn refuse(action: &Action, given: &Fields<'_>) -> Result<(), ApiError> {
    let is_final = action.annotations.is_set("final");
    let is_reserved = given.names().any(|key| RESERVED.contains(&key));
    if is_reserved || is_final && action.parameters.binds_any(given.names()) {
        let words = "it sets a parameter that is final or reserved".to_owned();
        return Err(ApiError::BadRequest(words));
    }
    Ok(())
}
