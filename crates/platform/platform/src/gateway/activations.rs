//! Activations: read and list.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use futures_util::stream::{self, Stream, StreamExt};
use serde::Deserialize;
use serde_json::json;

use super::actions::on_disk;
use super::auth::Identity;
use super::extract::{PathParams, QueryParams};
use super::page::Page;
use super::reply::{Reply, counted, document, streamed};
use super::{Gateway, name};
use crate::api::{Activation, ActivationId, ApiError, Name};
use crate::store::{Selection, Store};

/// The query parameters of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ListOptions {
    name: Option<String>,
    since: Option<u64>,
    upto: Option<u64>,
    docs: bool,
}

impl ListOptions {
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
    PathParams(namespace): PathParams<String>,
    QueryParams(page): QueryParams<Page>,
    QueryParams(wanted): QueryParams<ListOptions>,
) -> Reply {
    let namespace = identity.opens(&namespace)?;
    let (store, namespace) = (gateway.store.clone(), namespace.clone());
    let selection = wanted.selection(&page)?;
    if page.count {
        let count = on_disk(move || store.count_activations(&namespace, &selection)).await?;
        return Ok(document(json!({ "activations": count })));
    }
    let place = namespace.clone();
    let found = on_disk(move || store.activations(&place, &selection)).await?;
    if wanted.docs {
        let ids = found.into_iter().map(|found| found.activation_id).collect();
        return Ok(streamed(documents(gateway.store, namespace, ids)));
    }
    Ok(document(found))
}

/// A list of whole records, each read when the client has taken the ones before it: together they
/// may have gigabytes. Records deleted meanwhile are left out.
fn documents(
    store: Arc<dyn Store>,
    namespace: Name,
    ids: Vec<ActivationId>,
) -> impl Stream<Item = Result<Bytes, ApiError>> {
    let begin = stream::once(async { Ok(Bytes::from_static(b"[")) });
    let is_first = true;
    let records = stream::unfold((ids.into_iter(), is_first), move |(mut ids, is_first)| {
        let (store, namespace) = (Arc::clone(&store), namespace.clone());
        async move {
            let id = ids.next()?;
            let found = on_disk(move || store.activation(&namespace, id)).await;
            let (text, is_first) = match found {
                Ok(Some(activation)) => (element(&activation, is_first), false),
                Ok(None) => (Ok(Bytes::new()), is_first),
                Err(error) => (Err(error), is_first),
            };
            Some((text, (ids, is_first)))
        }
    });
    begin.chain(records).chain(stream::once(async { Ok(Bytes::from_static(b"]")) }))
}

fn element(activation: &Activation, is_first: bool) -> Result<Bytes, ApiError> {
    let mut text = if is_first { Vec::new() } else { vec![b','] };
    let written = serde_json::to_writer(&mut text, activation);
    written.map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok(text.into())
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
    PathParams(which): PathParams<(String, String)>,
) -> Reply {
    let found = find(&identity, &gateway, &which).await?;
    counted(document(found), gateway.memory.reservation(&identity.namespace))
}

/// `GET activations/ID/logs`.
pub async fn logs(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams(which): PathParams<(String, String)>,
) -> Reply {
    let found = find(&identity, &gateway, &which).await?;
    let logs = document(json!({ "logs": found.logs }));
    counted(logs, gateway.memory.reservation(&identity.namespace))
}

/// `GET activations/ID/result`.
pub async fn result(
    identity: Identity,
    State(gateway): State<Gateway>,
    PathParams(which): PathParams<(String, String)>,
) -> Reply {
    let found = find(&identity, &gateway, &which).await?;
    counted(document(found.response), gateway.memory.reservation(&identity.namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Embedded;

    #[tokio::test]
    async fn whole_records_are_read_when_they_are_sent() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(&directory.path().join("db")).unwrap());
        for id in 1..=3 {
            store.finish(Activation::example("hello", id, id as u64)).unwrap();
        }
        let streamed = |ids: [u128; 3]| {
            let ids = ids.map(ActivationId).to_vec();
            Box::pin(documents(Arc::clone(&store), Name::guest(), ids))
        };
        let all: Vec<Bytes> = streamed([3, 2, 1]).map(Result::unwrap).collect().await;
        let all: Vec<Activation> = serde_json::from_slice(&all.concat()).unwrap();
        assert_eq!(all, [3, 2, 1].map(|id| Activation::example("hello", id as u128, id)));
        let mut slow = streamed([1, 3, 2]);
        let mut seen = slow.next().await.unwrap().unwrap().to_vec();
        // The oldest is requested first, and deleted before it is sent.
        assert_eq!(store.forget(2).unwrap(), 1);
        while let Some(more) = slow.next().await {
            seen.extend(more.unwrap());
        }
        let seen: Vec<Activation> = serde_json::from_slice(&seen).unwrap();
        assert_eq!(seen, [3, 2].map(|id| Activation::example("hello", id as u128, id)));
    }
}
