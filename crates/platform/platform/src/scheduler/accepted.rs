//! Accepted calls of the last run, which are made again.
//!
//! Invariant: a call is read from the store only when there is memory for it. So a restart after a burst
//! takes no more memory than the burst could.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::running::Stage;
use super::shared::Shared;
use super::{Call, Caller};
use crate::api::{
    Action, Activation, Exec, Limits, Name, Outcome, Parameters, Response, StartKind, Times,
};
use crate::clock::now_ms;
use crate::memory::{RequestMemory, Reservation};
use crate::store::{AcceptedCall, AcceptedEntry, StoreError};

/// Makes them in the background, the oldest of each namespace first.
pub fn make(shared: &Arc<Shared>, caller: &Arc<dyn Caller>) -> Result<(), StoreError> {
    let mut all = BTreeMap::<Name, Vec<AcceptedEntry>>::new();
    for entry in shared.store.accepted()? {
        all.entry(entry.namespace.clone()).or_default().push(entry);
    }
    for entries in all.into_values() {
        let (memory, caller) = (Arc::clone(&shared.memory), Arc::downgrade(caller));
        tokio::spawn(make_in_order(Arc::downgrade(shared), caller, memory, entries));
    }
    Ok(())
}

async fn make_in_order(
    shared: Weak<Shared>,
    caller: Weak<dyn Caller>,
    memory: Arc<RequestMemory>,
    entries: Vec<AcceptedEntry>,
) {
    for entry in entries {
        let memory = memory.when_free(&entry.namespace, entry.bytes).await;
        let (Some(shared), Some(caller)) = (shared.upgrade(), caller.upgrade()) else { return };
        if shared.running.stage() != Stage::Open {
            // The next run makes the rest.
            return;
        }
        let id = entry.id;
        if let Err(error) = make_one(&shared, &*caller, entry, memory).await {
            tracing::error!(%error, %id, "an accepted call waits for the next start of the platform");
        }
    }
}

async fn make_one(
    shared: &Shared,
    caller: &dyn Caller,
    entry: AcceptedEntry,
    memory: Reservation,
) -> Result<(), StoreError> {
    let found = shared.ask_store(move |store| {
        let Some(accepted) = store.accepted_call(&entry)? else { return Ok(None) };
        let action = store.action(&accepted.namespace, &accepted.name)?;
        if action.is_none() {
            store.finish(unmade(&accepted))?;
        }
        Ok(action.map(|action| (accepted, action)))
    });
    if let Some((accepted, action)) = found.await? {
        let AcceptedCall { id, namespace, args, accepted_ms, trace, .. } = accepted;
        let slot = shared.call_counts.add(&namespace);
        let call = Call { id, action, args: args.held(memory), asked_ms: accepted_ms, trace };
        drop(caller.call(call, slot));
    }
    Ok(())
}

/// The record of a call whose action is gone.
fn unmade(call: &AcceptedCall) -> Activation {
    let why = "The action was deleted before the call was made.";
    let response = Response::failure(Outcome::ApplicationError, why);
    let times = Times { start_ms: now_ms(), end_ms: now_ms(), ..Times::default() };
    let start = (StartKind::Cold, times);
    Activation::new(call.id, &deleted(call), response, Vec::new(), start)
}

/// A stand-in for the deleted action of an accepted call.
fn deleted(call: &AcceptedCall) -> Action {
    Action {
        namespace: call.namespace.clone(),
        name: call.name.clone(),
        version: call.version,
        publish: false,
        exec: Exec { kind: "unknown".to_owned(), binary: false, main: None },
        parameters: Parameters::default(),
        annotations: Parameters::default(),
        limits: Limits::default(),
        updated_ms: 0,
    }
}
