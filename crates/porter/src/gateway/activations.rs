//! Activations: read and list.

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;

use super::actions::on_disk;
use super::auth::Identity;
use super::extract::{Asked, Place};
use super::page::Page;
use super::reply::{Reply, document};
use super::{Gateway, name};
use crate::api::{Activation, ActivationId, ApiError};
use crate::store::Selection;

/// Which activations are listed, and how.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
    name: Option<String>,
    since: Option<u64>,
    upto: Option<u64>,
    docs: bool,
}

impl Wanted {
    fn selection(&self, page: &Page) -> Result<Selection, ApiError> {
        let (skip, limit) = page.bounds()?;
        Ok(Selection {
            name: self.name.as_deref().map(name).transpose()?,
            since_ms: self.since,
            upto_ms: self.upto,
            skip,
            limit,
        })
    }
}

/// `GET activations`.
pub async fn list(
    identity: Identity,
    State(gateway): State<Gateway>,
    Place(namespace): Place<String>,
    Asked(page): Asked<Page>,
    Asked(wanted): Asked<Wanted>,
) -> Reply {
    let namespace = identity.opens(&namespace)?;
    let (store, namespace) = (gateway.store.clone(), namespace.clone());
    let selection = wanted.selection(&page)?;
    let found = on_disk(move || store.activations(&namespace, &selection)).await?;
    if page.count {
        return Ok(document(json!({ "activations": found.len() })));
    }
    if wanted.docs {
        return Ok(document(found));
    }
    Ok(document(found.iter().map(Activation::summary).collect::<Vec<_>>()))
}

async fn find(
    identity: &Identity,
    gateway: &Gateway,
    (namespace, id): &(String, String),
) -> Result<Activation, ApiError> {
    let (store, namespace) = (gateway.store.clone(), identity.opens(namespace)?.clone());
    let id: ActivationId =
        id.parse().map_err(|wrong| ApiError::BadRequest(format!("'{id}': {wrong}")))?;
    let found = on_disk(move || store.activation(&namespace, id)).await?;
    found.ok_or_else(|| ApiError::NotFound(format!("activation '{id}'")))
}

/// `GET activations/ID`.
pub async fn read(
    identity: Identity,
    State(gateway): State<Gateway>,
    Place(which): Place<(String, String)>,
) -> Reply {
    Ok(document(find(&identity, &gateway, &which).await?))
}

/// `GET activations/ID/logs`.
pub async fn logs(
    identity: Identity,
    State(gateway): State<Gateway>,
    Place(which): Place<(String, String)>,
) -> Reply {
    Ok(document(json!({ "logs": find(&identity, &gateway, &which).await?.logs })))
}

/// `GET activations/ID/result`.
pub async fn result(
    identity: Identity,
    State(gateway): State<Gateway>,
    Place(which): Place<(String, String)>,
) -> Reply {
    let response = find(&identity, &gateway, &which).await?.response;
    Ok(document(json!({
        "result": response.result,
        "success": response.success,
        "status": response.status,
        "statusCode": response.status_code,
        "size": response.size,
    })))
}
