//! Actions: create, read, update, delete, list.

use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::json;

use super::auth::Identity;
use super::extract::{PathParams, QueryParams, read_body};
use super::page::Page;
use super::reply::{self, Reply, document};
use super::{Gateway, name};
use crate::api::{Action, ActionPut, ApiError, Name};
use crate::clock::now_ms;

/// Most bytes of an action's document, with its code in base64.
const MOST_BODY_BYTES: usize = 64 << 20;

/// `GET actions`.
pub async fn list(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams(namespace): PathParams<String>,
    QueryParams(page): QueryParams<Page>,
) -> Reply {
    let namespace = identity.opens(&namespace)?;
    let (skip, limit) = page.bounds()?;
    let actions = gateway.store.actions(namespace, skip, limit)?;
    if page.count {
        return Ok(document(json!({ "actions": actions.len() })));
    }
    Ok(document(actions.iter().map(Action::summary).collect::<Vec<_>>()))
}

/// Whether the code is returned, too.
#[derive(Debug, Deserialize)]
pub struct WithCode {
    #[serde(default = "yes")]
    code: bool,
}

fn yes() -> bool {
    true
}

/// `GET actions/NAME`.
pub async fn read(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams((namespace, action)): PathParams<(String, String)>,
    QueryParams(WithCode { code }): QueryParams<WithCode>,
) -> Reply {
    let (namespace, action) = (identity.opens(&namespace)?, name(&action)?);
    let found = find(&gateway, namespace, &action)?;
    if !code {
        return Ok(document(found));
    }
    let code = gateway.store.code(namespace, &action)?.unwrap_or_default();
    let document = found.with_code(&code).map(document);
    drop(code);
    let document = document.map_err(|error| ApiError::Internal(error.to_string()))?;
    reply::counted(document, gateway.memory.reservation(namespace))
}

/// The action, or an error for the client.
pub fn find(gateway: &Gateway, namespace: &Name, action: &Name) -> Result<Action, ApiError> {
    let found = gateway.store.action(namespace, action)?;
    found.ok_or_else(|| ApiError::NotFound(format!("action '{action}'")))
}

/// Whether an existing action is replaced.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Overwrite {
    overwrite: bool,
}

/// `PUT actions/NAME`.
pub async fn put(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams((namespace, action)): PathParams<(String, String)>,
    QueryParams(Overwrite { overwrite }): QueryParams<Overwrite>,
    request: Request,
) -> Reply {
    let (namespace, action) = (identity.opens(&namespace)?.clone(), name(&action)?);
    let mut memory = gateway.memory.reservation(&namespace);
    let body = read_body(request, MOST_BODY_BYTES, &mut memory).await?;
    let put: ActionPut = serde_json::from_slice(&body)
        .map_err(|wrong| ApiError::BadRequest(format!("malformed content: {wrong}")))?;
    let before = gateway.store.action(&namespace, &action)?;
    if before.is_some() && !overwrite {
        return Err(ApiError::Conflict("resource already exists".to_owned()));
    }
    let names = (&namespace, &action);
    let change = put.apply(names, before.as_ref(), &gateway.runtimes, now_ms())?;
    let document = match &change.code {
        Some(code) => change.action.with_code(code),
        None => serde_json::to_value(&change.action),
    };
    let document = document.map_err(|error| ApiError::Internal(error.to_string()))?;
    let version = before.as_ref().map(|before| before.version);
    let Gateway { store, caller, .. } = gateway;
    on_disk(move || {
        store.put_action(&change, version)?;
        if let Some(before) = before {
            caller.gone(&before);
        }
        Ok(())
    })
    .await?;
    Ok(reply::document(document))
}

/// `DELETE actions/NAME`.
pub async fn delete(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams((namespace, action)): PathParams<(String, String)>,
) -> Reply {
    let (namespace, action) = (identity.opens(&namespace)?.clone(), name(&action)?);
    let (Gateway { store, caller, .. }, name) = (gateway, action.clone());
    let deleted = on_disk(move || {
        let deleted = store.delete_action(&namespace, &name)?;
        deleted.iter().for_each(|deleted| caller.gone(deleted));
        Ok(deleted)
    });
    let deleted = deleted.await?;
    let deleted = deleted.ok_or_else(|| ApiError::NotFound(format!("action '{action}'")))?;
    Ok(document(deleted))
}

/// Runs work that waits for a disk on a thread of its own. It runs to its end even if the client
/// goes away, so follow-up steps belong into it.
pub async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, crate::store::StoreError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(ApiError::Internal("the store's thread panicked".to_owned())),
    }
}
