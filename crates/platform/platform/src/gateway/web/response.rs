//! A web action's result as an HTTP response.

use axum::body::Body;
use axum::http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use mime::Mime;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::media::{Extension, is_json, is_text};
use crate::api::{Activation, Outcome};
use crate::gateway::calls::set_activation_id;
use crate::gateway::reply::coded;

const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Headers of the connection, which are the platform's to set, and those that a browser takes for all pages of the
/// platform.
const PLATFORMS_OWN: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_LENGTH,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("clear-site-data"),
];
/// Pages of actions are of an origin of their own: with that of the platform, they could use the keys that a browser
/// keeps for its API, and those of other tenants.
const SANDBOX: &str = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads";
/// Base64 with `=` at its end or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Most headers of a result. Clients accept about a hundred, and a `HeaderMap` panics beyond
/// 32,768.
const MOST_HEADERS: usize = 256;
/// Most letters of a header's name that a message quotes.
const MOST_SHOWN: usize = 64;

/// Why a result cannot be an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ResultError {
    /// A part of it is invalid.
    #[error("The action's result is not an HTTP response: {0}.")]
    Http(&'static str),
    /// One of its headers is invalid.
    #[error(
        "The action's result is not an HTTP response: header {0:?} needs a text, number or boolean, \
        or a list of them, without line breaks."
    )]
    Header(String),
    /// It is of another kind than the extension requires.
    #[error("The action's result is not {0}.")]
    Kind(&'static str),
    /// The value that the extension requires is missing.
    #[error("The action's result has neither 'body' nor 'text'.")]
    Missing,
}

/// The response of a call that has ended.
pub fn from_activation(activation: &Activation, extension: Extension) -> Response {
    let id = activation.activation_id;
    let outcome = activation.response.status;
    let refused = |status, words: &str| coded(status, words, &id.to_string());
    let mut response = match outcome {
        Outcome::Success | Outcome::ApplicationError => answer(activation, extension)
            .unwrap_or_else(|error| {
                let status = if error == ResultError::Missing { 404 } else { 400 };
                refused(status, &error.to_string())
            }),
        // The reason is for the owner only, who finds it by the code.
        Outcome::DeveloperError | Outcome::InternalError => refused(
            outcome.status(),
            "The action failed; its owner finds the reason in the activation.",
        ),
    };
    set_activation_id(&mut response, id);
    // Beside a policy of the action's own: browsers apply all.
    response.headers_mut().append(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    response
}

fn answer(activation: &Activation, extension: Extension) -> Result<Response, ResultError> {
    let result = &activation.response.result;
    let is_plain = activation.response.status == Outcome::Success && result.is_container();
    if is_plain && extension == Extension::Json {
        return Ok(content(StatusCode::OK, JSON, result.text().to_owned()));
    }
    let result =
        &result.tree().map_err(|_| ResultError::Http("it has a number that is too large"))?;
    let (value, full, empty) = match activation.response.status {
        Outcome::ApplicationError => {
            let error = &result["error"];
            let status = status(error)?.unwrap_or(StatusCode::BAD_REQUEST);
            (error, status, status)
        }
        _ => (result, StatusCode::OK, StatusCode::NO_CONTENT),
    };
    match extension {
        Extension::Http => http(value, full, empty),
        other => value_for(value, other).map(|(kind, text)| content(full, kind, text)),
    }
}

/// The value of the result that an extension selects.
fn value_for(result: &Value, extension: Extension) -> Result<(&'static str, String), ResultError> {
    let text = |key, kind, words| {
        let found = property(result, key).and_then(Value::as_str);
        found.map(|text| (kind, text.to_owned())).ok_or(ResultError::Kind(words))
    };
    match extension {
        Extension::Html => text("html", HTML, "HTML: 'body' or 'html' must be a text"),
        Extension::Svg => text("svg", SVG, "SVG: 'body' or 'svg' must be a text"),
        Extension::Text => Ok((TEXT, shown(property(result, "text").ok_or(ResultError::Missing)?))),
        Extension::Json | Extension::Http => match result {
            Value::Object(_) | Value::Array(_) => Ok((JSON, result.to_string())),
            _ => Err(ResultError::Kind("an object or a list")),
        },
    }
}

/// `body`, or the field named like the extension; a result that is not an object is the value
/// itself.
fn property<'a>(result: &'a Value, key: &str) -> Option<&'a Value> {
    match result {
        Value::Object(fields) => fields.get("body").or_else(|| fields.get(key)),
        other => Some(other),
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| format!("{value:#}"), str::to_owned)
}

fn content(status: StatusCode, kind: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `{"statusCode", "headers", "body"}`, with these statuses if it names none.
fn http(result: &Value, full: StatusCode, empty: StatusCode) -> Result<Response, ResultError> {
    let fields = result.as_object().ok_or(ResultError::Http("it is not an object"))?;
    let named = status(result)?;
    let mut headers = headers(fields)?;
    let kind = headers.remove(CONTENT_TYPE);
    let mut response = Response::default();
    *response.status_mut() = named.unwrap_or(empty);
    if let Some(body) = fields.get("body").filter(|body| is_something(body)) {
        let (kind, bytes) = body_of(body, kind)?;
        *response.status_mut() = named.unwrap_or(full);
        *response.body_mut() = Body::from(bytes);
        headers.insert(CONTENT_TYPE, kind);
    }
    *response.headers_mut() = headers;
    Ok(response)
}

fn is_something(body: &Value) -> bool {
    !body.is_null() && body.as_str() != Some("")
}

/// The status that a result names. Statuses below 200 do not end a response.
fn status(result: &Value) -> Result<Option<StatusCode>, ResultError> {
    let Some(named) = result.get("statusCode") else { return Ok(None) };
    let number = match named {
        Value::Number(number) => number.as_f64().filter(|number| number.fract() == 0.0),
        Value::String(text) => text.parse().ok().map(|number: u16| f64::from(number)),
        _ => None,
    };
    let number = number.filter(|number| (200.0..600.0).contains(number));
    let status = number.and_then(|number| StatusCode::from_u16(number as u16).ok());
    let wrong = ResultError::Http("'statusCode' is not an integer from 200 to 599");
    status.map(Some).ok_or(wrong)
}

/// The headers of a result, without those of the connection.
fn headers(fields: &Map<String, Value>) -> Result<HeaderMap, ResultError> {
    let mut headers = HeaderMap::new();
    match fields.get("headers") {
        None => {}
        Some(Value::Object(all)) => {
            for (name, value) in all {
                let wrong = || ResultError::Header(name.chars().take(MOST_SHOWN).collect());
                let named = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
                append(&mut headers, &named, value, &wrong)?;
            }
        }
        Some(_) => return Err(ResultError::Http("'headers' is not an object")),
    }
    for name in PLATFORMS_OWN {
        headers.remove(name);
    }
    Ok(headers)
}

/// One header for each value.
fn append(
    headers: &mut HeaderMap,
    name: &HeaderName,
    value: &Value,
    wrong: &impl Fn() -> ResultError,
) -> Result<(), ResultError> {
    let text = match value {
        Value::Array(all) => {
            return all.iter().try_for_each(|one| append(headers, name, one, wrong));
        }
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Null | Value::Object(_) => return Err(wrong()),
    };
    let value = HeaderValue::try_from(text.into_bytes()).map_err(|_| wrong())?;
    if headers.len() == MOST_HEADERS {
        return Err(ResultError::Http("it has more than 256 headers"));
    }
    headers.append(name, value);
    Ok(())
}

/// The body of a response, and its content type.
fn body_of(body: &Value, said: Option<HeaderValue>) -> Result<(HeaderValue, Vec<u8>), ResultError> {
    let otherwise = if body.is_string() { HTML } else { JSON };
    let said = said.unwrap_or(HeaderValue::from_static(otherwise));
    let kind = said.to_str().ok().and_then(|kind| kind.parse::<Mime>().ok());
    let kind = kind.ok_or(ResultError::Http("its content type is not a media type"))?;
    let bytes = match body {
        Value::String(text) => bytes_of(text, &kind)?,
        _ if is_json(&kind) => body.to_string().into_bytes(),
        _ => {
            return Err(ResultError::Http(
                "'body' is not a text, and its content type is not JSON",
            ));
        }
    };
    Ok((with_charset(said, &kind), bytes))
}

/// The bytes of a text: itself, or decoded base64, by its media type. JSON may be either.
fn bytes_of(text: &str, kind: &Mime) -> Result<Vec<u8>, ResultError> {
    let decoded = || BASE64.decode(text).ok();
    let is_document = |bytes: &Vec<u8>| serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
    if is_json(kind) {
        return Ok(decoded().filter(is_document).unwrap_or_else(|| text.as_bytes().to_vec()));
    }
    if is_text(kind) {
        return Ok(text.as_bytes().to_vec());
    }
    decoded().ok_or(ResultError::Http("'body' is not base64, which its content type requires"))
}

/// Texts are UTF-8. Without a charset, browsers would guess.
fn with_charset(said: HeaderValue, kind: &Mime) -> HeaderValue {
    if kind.type_() != mime::TEXT || kind.get_param(mime::CHARSET).is_some() {
        return said;
    }
    HeaderValue::try_from(format!("{kind}; charset=utf-8")).unwrap_or(said)
}
