//! Web actions: OpenWhisk's actions that plain HTTP calls without a key.
//!
//! ```text
//!  HTTP ─► Target ─► exported? ─► OPTIONS? ─► require-whisk-auth ─► admission ─► request: arguments
//!                     └─ 404                   └─ 401                └─ 429                 │
//!  HTTP ◄─ cors ◄─ response: by the extension ◄───────────── activation ◄───────────────────┘
//! ```
//! Invariants:
//! - Actions that are not exported look the same as actions that do not exist.
//! - A body is read only if its sender may call the action.
//! - The activation belongs to the action's namespace, whichever client calls.
//! - Nothing that a function returns decides where its response ends.

mod cors;
mod media;
mod request;
mod response;

use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::Method;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Gateway;
use super::auth::{Identity, has_digest};
use super::calls::{MOST_BODY_BYTES, MOST_WAITING, late, merged, new_id, outcome};
use super::extract::{PathParams, read_body};
use super::reply::{Reply, counted};
use crate::api::{Action, ApiError, Name};
use crate::clock::now_ms;
use crate::scheduler::Call;
use crate::trace::Trace;
use media::Extension;
use request::{WebRequest, arguments};

/// The package of actions without one.
const NO_PACKAGE: &str = "default";
/// The header with the secret that an action requires.
const AUTH_HEADER: &str = "x-require-whisk-auth";
/// The annotation that requires a key or a secret.
const AUTH: &str = "require-whisk-auth";

/// The routes below a namespace and a package.
pub fn router() -> Router<Gateway> {
    Router::new()
        .route("/{action}", methods())
        .route("/{action}/", methods())
        .route("/{action}/{*rest}", methods())
}

fn methods() -> MethodRouter<Gateway> {
    let all = [
        MethodFilter::HEAD,
        MethodFilter::POST,
        MethodFilter::PUT,
        MethodFilter::PATCH,
        MethodFilter::DELETE,
        MethodFilter::OPTIONS,
    ];
    on(all.into_iter().fold(MethodFilter::GET, MethodFilter::or), call)
}

/// The action in a path, as written there.
#[derive(Debug, Deserialize)]
struct Target {
    namespace: String,
    package: String,
    action: String,
}

async fn call(
    State(gateway): State<Gateway>,
    PathParams(target): PathParams<Target>,
    request: Request,
) -> Reply {
    let (name, extension) = Extension::split(&target.action);
    let action = exported(&gateway, &target, name)?;
    if action.annotations.is_set("web-custom-options") {
        return answer(&gateway, action, extension, request).await;
    }
    let wanted = cors::wanted(request.headers());
    let mut response = match *request.method() {
        Method::OPTIONS => Response::default(),
        _ => answer(&gateway, action, extension, request).await.into_response(),
    };
    cors::add(response.headers_mut(), wanted);
    Ok(response)
}

/// The action, if it is exported.
fn exported(gateway: &Gateway, target: &Target, name: &str) -> Result<Action, ApiError> {
    let unknown = || ApiError::NotFound("no web action has this name".to_owned());
    let names = (target.namespace.parse::<Name>(), name.parse::<Name>());
    let (Ok(namespace), Ok(name), NO_PACKAGE) = (names.0, names.1, &*target.package) else {
        return Err(unknown());
    };
    let found = gateway.store.action(&namespace, &name)?;
    found.filter(|action| action.annotations.is_set("web-export")).ok_or_else(unknown)
}

/// Calls an action, and returns its response.
async fn answer(
    gateway: &Gateway,
    action: Action,
    extension: Extension,
    request: Request,
) -> Reply {
    let asked_ms = now_ms();
    let (mut parts, body) = request.into_parts();
    let user = caller(gateway, &action, &mut parts).await?;
    // Checked before the body is read, but not held while it is: a slow sender must not hold a
    // slot.
    drop(gateway.caller.admit(&action.namespace)?);
    let request = Request::from_parts(parts.clone(), body);
    let mut memory = gateway.memory.reservation(&action.namespace);
    let body = read_body(request, MOST_BODY_BYTES, &mut memory).await?;
    // Other calls may have been admitted while the body was read.
    let slot = gateway.caller.admit(&action.namespace)?;
    let web = WebRequest { parts: &parts, body: &body, user: user.as_ref() };
    let args = merged(&arguments(&action, &web)?, &action, memory)?;
    let trace = Trace::from_headers(&parts.headers);
    // They may have a megabyte, and the call waits.
    drop((body, parts));
    let answer = gateway.memory.reservation(&action.namespace);
    let call = Call { id: new_id()?, args, asked_ms, action, trace };
    let id = call.id;
    match outcome(gateway, (call, slot), MOST_WAITING).await? {
        Some(activation) => {
            let response = response::from_activation(&activation, extension);
            drop(activation);
            counted(response, answer)
        }
        None => Ok(late(id)),
    }
}

/// The namespace of the caller's key, if the action requires keys; an error if the request lacks
/// what the action requires.
async fn caller(
    gateway: &Gateway,
    action: &Action,
    parts: &mut Parts,
) -> Result<Option<Name>, ApiError> {
    // A browser's preflight request carries no secrets yet.
    let is_preflight = parts.method == Method::OPTIONS;
    match action.annotations.get(AUTH) {
        None | Some(Value::Bool(false)) => Ok(None),
        Some(Value::Bool(true)) => {
            let shown = Identity::from_request_parts(parts, gateway).await;
            // The key may be another namespace's, so the function must not see it.
            parts.headers.remove(AUTHORIZATION);
            match shown {
                Err(_) if is_preflight => Ok(None),
                shown => shown.map(|identity| Some(identity.namespace)),
            }
        }
        Some(secret) if is_preflight || shows(parts, &secret) => Ok(None),
        Some(_) => Err(ApiError::Unauthorized),
    }
}

fn shows(parts: &Parts, secret: &Value) -> bool {
    let secret = match secret {
        Value::String(secret) => secret.clone(),
        Value::Number(secret) => secret.to_string(),
        // An invalid value: the owner wanted it closed.
        _ => return false,
    };
    let shown = parts.headers.get(AUTH_HEADER);
    shown.is_some_and(|shown| has_digest(shown.as_bytes(), &Sha256::digest(secret).into()))
}
