//! OpenWhisk's REST interface over HTTP.
//!
//! ```text
//!  /metrics                                       metrics for Prometheus
//!  /api/v1                                        version and runtimes
//!  /api/v1/namespaces                             the namespace of the key
//!  /api/v1/namespaces/NS/actions[/NAME]           list, create, read, update, delete; POST calls
//!  /api/v1/namespaces/NS/activations[/ID[/logs|/result]]
//!  /api/v1/namespaces/NS/{packages,triggers,rules}  empty lists
//!  /api/v1/web/NS/default/NAME[.EXT][/…]          calls a web action
//! ```
//! Invariants: only `/api/v1` itself, metrics, the dashboard and responses of web actions are
//! served without a key. Every error has OpenWhisk's shape, `{"error", "code"}`. A namespace that a
//! key does not open looks the same whether it exists or not.

mod actions;
mod activations;
mod auth;
mod calls;
mod extract;
mod page;
mod reply;
mod web;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use crate::api::{self, ApiError, Limits, Name, Runtimes};
use crate::memory::RequestMemory;
use crate::scheduler::{Caller, MOST_CALLS};
use crate::store::Store;
use auth::Identity;
use extract::PathParams;
use reply::{Reply, document};

/// The path of OpenWhisk's interface.
const PREFIX: &str = "/api/v1";
/// The media type of metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the gateway needs to answer requests.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// What survives a restart.
    pub store: Arc<dyn Store>,
    /// The available runtimes.
    pub runtimes: Arc<Runtimes>,
    /// Makes calls.
    pub caller: Arc<dyn Caller>,
    /// Counts the memory of requests.
    pub memory: Arc<RequestMemory>,
}

/// The routes of the interface.
pub fn router(gateway: Gateway) -> Router {
    let actions = get(actions::list);
    let action = get(actions::read).put(actions::put).delete(actions::delete).post(calls::call);
    let namespace = Router::new()
        .route("/actions", actions)
        .route("/actions/{name}", action)
        .route("/activations", get(activations::list))
        .route("/activations/{id}", get(activations::read))
        .route("/activations/{id}/logs", get(activations::logs))
        .route("/activations/{id}/result", get(activations::result))
        .route("/packages", get(nothing))
        .route("/triggers", get(nothing))
        .route("/rules", get(nothing))
        .route("/limits", get(limits));
    Router::new()
        .route("/metrics", get(metrics))
        .route(PREFIX, get(about))
        .route("/api/v1/namespaces", get(namespaces))
        .nest("/api/v1/namespaces/{namespace}", namespace)
        .nest("/api/v1/web/{namespace}/{package}", web::router())
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(gateway)
}

async fn about(State(gateway): State<Gateway>) -> Response {
    let runtimes: serde_json::Map<String, Value> = gateway
        .runtimes
        .kinds()
        .into_iter()
        .map(|kind| {
            let family = kind.split(':').next().unwrap_or_default().to_owned();
            (family, json!([{ "kind": kind, "default": true, "deprecated": false }]))
        })
        .collect();
    document(json!({
        "support": { "github": "", "slack": "" },
        "description": "farfork, by OpenWhisk's interface",
        "api_paths": [PREFIX],
        "build": env!("CARGO_PKG_VERSION"),
        "buildno": env!("CARGO_PKG_VERSION"),
        "runtimes": runtimes,
        "limits": api::of_platform(MOST_CALLS),
    }))
}

/// Metrics in the text format of OpenMetrics. They need no key, as collectors have none: they name
/// namespaces and functions, and contain nothing of calls' arguments or results.
async fn metrics(State(gateway): State<Gateway>) -> Reply {
    let text = tokio::task::spawn_blocking(move || gateway.caller.metrics()).await;
    let text = text.map_err(|_| ApiError::Internal("collecting metrics failed".to_owned()))?;
    Ok(([(CONTENT_TYPE, OPENMETRICS)], text).into_response())
}

async fn namespaces(identity: Identity) -> Response {
    document(json!([identity.namespace]))
}

/// An empty list of what farfork does not have, for clients that list everything.
async fn nothing(identity: Identity, PathParams(namespace): PathParams<String>) -> Reply {
    identity.opens(&namespace)?;
    Ok(document(json!([])))
}

async fn limits(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams(namespace): PathParams<String>,
) -> Reply {
    identity.opens(&namespace)?;
    let (requests, disk) = (gateway.memory.limits(), gateway.store.disk_limits());
    Ok(document(Limits::of_namespace(MOST_CALLS, requests, disk)))
}

async fn unknown() -> Response {
    ApiError::NotFound("no such path".to_owned()).into_response()
}

async fn wrong_method() -> Response {
    reply::error(405, "The supplied HTTP method is not allowed here.")
}

/// A name from a path.
fn name(text: &str) -> Result<Name, ApiError> {
    text.parse().map_err(|error: crate::api::NameError| ApiError::BadRequest(error.to_string()))
}
