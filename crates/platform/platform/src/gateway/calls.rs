//! Calls of actions.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::actions::{find, on_disk};
use super::auth::Identity;
use super::extract::{PathParams, QueryParams, read_body};
use super::reply::{Reply, counted, with_status};
use super::{Gateway, name};
use crate::api::{Action, Activation, ActivationId, ApiError, Arguments, Fields};
use crate::clock::now_ms;
use crate::memory::Reservation;
use crate::scheduler::{Call, CallSlot};
use crate::store::AcceptedCall;
use crate::trace::Trace;

/// Longest wait for a blocking call; after it the response is the activation's id.
pub const MOST_WAITING: Duration = Duration::from_secs(60);
/// Most bytes of a call's arguments.
pub const MOST_BODY_BYTES: usize = 1 << 20;
const ID_HEADER: &str = "x-openwhisk-activation-id";

/// The query parameters of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CallOptions {
    blocking: bool,
    result: bool,
    timeout: Option<u64>,
}

/// `POST actions/NAME`.
pub async fn call(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams((namespace, action)): PathParams<(String, String)>,
    QueryParams(options): QueryParams<CallOptions>,
    request: Request,
) -> Reply {
    let asked_ms = now_ms();
    let (namespace, action) = (identity.opens(&namespace)?, name(&action)?);
    let trace = Trace::from_headers(request.headers());
    let mut memory = gateway.memory.reservation(namespace);
    let body = read_body(request, MOST_BODY_BYTES, &mut memory).await?;
    let given = arguments(body)?;
    let slot = gateway.caller.admit(namespace)?;
    let action = find(&gateway, namespace, &action)?;
    let id = new_id()?;
    let args = with_parameters(given, &action, memory)?;
    let answer = gateway.memory.reservation(namespace);
    let call = Call { id, args, asked_ms, action, trace };
    if !options.blocking {
        let Gateway { store, caller, .. } = gateway;
        on_disk(move || {
            store.accept(&accepted(&call))?;
            drop(caller.call(call, slot));
            Ok(())
        })
        .await?;
        return Ok(late(id));
    }
    let time = options.timeout.map_or(MOST_WAITING, Duration::from_millis).min(MOST_WAITING);
    match outcome(&gateway, (call, slot), time).await? {
        Some(activation) => {
            let response = finished(&activation, options.result);
            drop(activation);
            counted(response, answer)
        }
        None => Ok(late(id)),
    }
}

/// Makes a call, and waits up to `time` for its activation. After that the call goes on, and its
/// activation is in the store when it ends.
pub async fn outcome(
    gateway: &Gateway,
    (call, slot): (Call, CallSlot),
    time: Duration,
) -> Result<Option<Activation>, ApiError> {
    let id = call.id;
    match tokio::time::timeout(time, gateway.caller.call(call, slot)).await {
        Ok(Ok(activation)) => Ok(Some(activation)),
        Ok(Err(_)) => Err(ApiError::Internal(format!("activation '{id}' was lost"))),
        Err(_) => Ok(None),
    }
}

/// The response while a call goes on: its activation's id, to be read later.
pub fn late(id: ActivationId) -> Response {
    respond(id, 202, &json!({ "activationId": id }))
}

fn finished(activation: &Activation, only_result: bool) -> Response {
    let status = activation.response.status.status();
    let id = activation.activation_id;
    match only_result {
        true => respond(id, status, &activation.response.result),
        false => respond(id, status, activation),
    }
}

fn respond(id: ActivationId, status: u16, value: &impl serde::Serialize) -> Response {
    let mut response = with_status(status, value);
    set_activation_id(&mut response, id);
    response
}

/// Names the activation in a header of the response.
pub fn set_activation_id(response: &mut Response, id: ActivationId) {
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(ID_HEADER, id);
    }
}

fn accepted(call: &Call) -> AcceptedCall {
    AcceptedCall {
        id: call.id,
        namespace: call.action.namespace.clone(),
        name: call.action.name.clone(),
        version: call.action.version,
        args: call.args.clone(),
        accepted_ms: call.asked_ms,
        trace: call.trace.clone(),
    }
}

/// The arguments in a body: an object, or nothing.
fn arguments(body: Vec<u8>) -> Result<Arguments, ApiError> {
    Arguments::from_body(body).map_err(|wrong| not_an_object(&wrong))
}

fn not_an_object(wrong: &serde_json::Error) -> ApiError {
    ApiError::BadRequest(format!("the body is not a JSON object: {wrong}"))
}

/// The arguments together with the action's parameters, in memory that is reserved.
fn with_parameters(
    given: Arguments,
    action: &Action,
    memory: Reservation,
) -> Result<Arguments, ApiError> {
    if action.parameters.is_empty() {
        return Ok(given.held(memory));
    }
    let fields = given.fields().map_err(|wrong| not_an_object(&wrong))?;
    merged(&fields, action, memory)
}

/// Fields together with the action's parameters. While they are merged, `memory` stands for both.
pub fn merged(
    given: &Fields<'_>,
    action: &Action,
    mut memory: Reservation,
) -> Result<Arguments, ApiError> {
    memory.grow(given.most_bytes(&action.parameters) as u64)?;
    Ok(given.arguments(&action.parameters).held(memory))
}

/// A new random id.
pub fn new_id() -> Result<ActivationId, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|_| ApiError::Internal("the kernel returned no random numbers".to_owned()))?;
    Ok(ActivationId(u128::from_le_bytes(bytes)))
}
