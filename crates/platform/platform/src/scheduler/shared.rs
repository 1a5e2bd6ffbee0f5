//! What all functions of a platform share.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::counter::KeyedCounter;
use super::fleet::SharedFleet;
use super::image_usage::SharedImageUsage;
use super::metrics::{FunctionCounters, Metrics};
use super::nodes::Nodes;
use super::outcome::{CallOutcome, CallTimes, QueuedCall};
use super::running::Running;
use super::turns::SharedTurns;
use super::{Advisor, CallCounts, image};
use crate::api::{Action, Activation, Name, Outcome, Response, StartKind, Times};
use crate::clock::now_ms;
use crate::confine::Folders;
use crate::memory::RequestMemory;
use crate::runtimes::OtherRuntimes;
use crate::store::{FLUSH, Store, StoreError};

/// Delay after a failed flush.
const FLUSH_AGAIN: Duration = Duration::from_secs(1);

/// What all functions share.
#[derive(Debug)]
pub struct Shared {
    /// What survives a restart.
    pub store: Arc<dyn Store>,
    /// The nodes.
    pub nodes: Arc<dyn Nodes>,
    /// The policies.
    pub advisor: Arc<Advisor>,
    /// All instances.
    pub fleet: Arc<SharedFleet>,
    /// Turns of namespaces for starts without an image.
    pub turns: Arc<SharedTurns>,
    /// Use of images.
    pub image_usage: Arc<SharedImageUsage>,
    /// Metrics.
    pub metrics: Metrics,
    /// Files of functions.
    pub folders: Folders,
    /// Runtimes of other kinds than Python.
    pub others: OtherRuntimes,
    /// Number of tasks per version of a function, by image name. A version's image and files are
    /// removed when its last task ends: a call that was looked up before an update may arrive after
    /// it.
    pub served: Arc<KeyedCounter<String>>,
    /// Counts the memory of requests.
    pub memory: Arc<RequestMemory>,
    /// Counts the memory of lines that running calls have printed.
    pub log_memory: Arc<RequestMemory>,
    /// Running calls.
    pub running: Arc<Running>,
    /// Concurrent calls, waiting or running.
    pub call_counts: Arc<CallCounts>,
    /// Whether the store has something that is not on disk.
    is_dirty: AtomicBool,
    /// When the platform began, in milliseconds since 1970.
    pub began_ms: u64,
}

impl Shared {
    /// Of a platform that begins.
    pub fn new(
        store: Arc<dyn Store>,
        nodes: Arc<dyn Nodes>,
        advisor: Arc<Advisor>,
        folders: Folders,
        others: OtherRuntimes,
        memory: Arc<RequestMemory>,
    ) -> Arc<Shared> {
        let fleet = Arc::<SharedFleet>::default();
        Arc::new(Shared {
            metrics: Metrics::new(&nodes, &fleet, &advisor).of_disk(&store, &folders),
            store,
            turns: SharedTurns::new(nodes.most_cold_starts()),
            nodes,
            advisor,
            fleet,
            image_usage: Arc::default(),
            folders,
            others,
            served: Arc::default(),
            log_memory: RequestMemory::new(memory.limits()),
            memory,
            running: Arc::default(),
            call_counts: Arc::default(),
            is_dirty: AtomicBool::new(false),
            began_ms: now_ms(),
        })
    }

    /// Runs a request to the store, on a thread that may block if it may.
    pub async fn ask_store<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.store.blocks() {
            return ask(&*self.store);
        }
        let store = Arc::clone(&self.store);
        let asked = tokio::task::spawn_blocking(move || ask(&*store)).await;
        asked.unwrap_or_else(|_| Err(StoreError::Conflict))
    }

    /// Whether a function is deployed.
    pub fn has_functions(&self) -> bool {
        // If the store fails, the answer is no.
        let keys = self.store.keys(None).unwrap_or_default();
        let namespaces: HashSet<Name> = keys.into_iter().map(|key| key.namespace).collect();
        namespaces.iter().any(|namespace| {
            self.store.actions(namespace, 0, 1).is_ok_and(|actions| !actions.is_empty())
        })
    }

    /// Whether this is the current version.
    pub async fn is_current(&self, action: &Action) -> bool {
        let (namespace, name) = (action.namespace.clone(), action.name.clone());
        let found = self.ask_store(move |store| store.action(&namespace, &name)).await;
        // If the store fails, the version counts as current.
        found.map_or(true, |found| found.is_some_and(|now| now.updated_ms == action.updated_ms))
    }

    /// Removes image, files and metrics of an old version. If it has a task, that does so when it
    /// ends.
    pub async fn remove_unserved(&self, action: &Action) {
        if self.served.has(&image::name(action)) {
            return;
        }
        self.forget(action).await;
        self.remove_image(&image::name(action)).await;
        self.remove_folder(action).await;
    }

    /// Removes an image, if it exists.
    pub async fn remove_image(&self, image: &str) {
        if let Err(error) = self.nodes.remove_image(image).await {
            tracing::warn!(image, %error, "cannot remove an image");
        }
    }

    /// Removes the metrics of a version, unless the action has a newer one.
    async fn forget(&self, action: &Action) {
        let (namespace, name) = (action.namespace.clone(), action.name.clone());
        let found = self.ask_store(move |store| store.action(&namespace, &name)).await;
        // An action that was deleted and created again repeats its versions.
        let is_it = |now: &Action| now.updated_ms == action.updated_ms;
        let goes_on = |now: Action| is_it(&now) || now.version > action.version;
        // If the store fails, they stay.
        if found.is_ok_and(|found| !found.is_some_and(goes_on)) {
            self.metrics.functions.forget(action);
        }
    }

    /// Stores the activation of a call, and sends it to the caller.
    pub fn finish(
        &self,
        counters: &FunctionCounters,
        waiting: QueuedCall,
        kind: StartKind,
        outcome: CallOutcome,
    ) {
        let QueuedCall { call, answer, slot, since, .. } = waiting;
        let CallOutcome { response, logs, times, .. } = outcome;
        let outcome = response.status;
        let mut activation = Activation::new(call.id, &call.action, response, logs, (kind, times));
        activation.annotations.set("traceparent", &*call.trace.parent);
        tracing::debug!(
            id = %call.id,
            about = call.action.path(),
            traceparent = call.trace.parent,
            start = ?kind,
            outcome = ?outcome,
            wait_ms = times.wait_ms,
            init_ms = times.init_ms,
            duration_ms = activation.duration,
            "a call has ended"
        );
        let kept = self.store.finish(activation.clone());
        self.metrics.ended(counters, since.elapsed(), outcome);
        self.metrics.starts.calls.dec();
        // Before the answer: the caller may call again at once.
        let id = call.id;
        drop((slot, call));
        match kept {
            Ok(()) => self.is_dirty.store(true, Ordering::Release),
            Err(error) => self.metrics.starts.lost(&error, id),
        }
        // Also if the record is lost, since the call was made. The caller may have gone away.
        let _ = answer.send(activation);
    }

    /// Gives up a call for which no instance can be started.
    pub fn give_up(&self, counters: &FunctionCounters, waiting: QueuedCall, why: &str) {
        let about = waiting.call.action.path();
        tracing::error!(about, why, id = %waiting.call.id, "a call failed");
        let words = "The platform could not make the call; its log has the reason.";
        self.not_made(counters, waiting, Response::failure(Outcome::InternalError, words));
    }

    /// Answers a call that is not made.
    pub fn not_made(&self, counters: &FunctionCounters, waiting: QueuedCall, response: Response) {
        let now_ms = now_ms();
        let wait_ms = now_ms.saturating_sub(waiting.call.asked_ms);
        let times = Times { start_ms: now_ms, end_ms: now_ms, wait_ms, init_ms: None };
        counters.called(&response, None, times);
        let spent = CallTimes::default();
        let outcome = CallOutcome { response, logs: Vec::new(), times, spent, is_well: false };
        self.finish(counters, waiting, StartKind::Cold, outcome);
    }
}

/// Flushes activations to disk, as long as the platform runs.
pub async fn flush(shared: Arc<Shared>) {
    let mut has_failed = false;
    loop {
        tokio::time::sleep(FLUSH).await;
        if !shared.is_dirty.swap(false, Ordering::AcqRel) {
            continue;
        }
        let flushed = shared.ask_store(|store| store.flush()).await;
        if let Err(error) = &flushed {
            // A full disk stays full for a while: one line is enough.
            if !has_failed {
                tracing::error!(%error, "cannot flush activations to disk; it is tried again");
            }
            shared.is_dirty.store(true, Ordering::Release);
            tokio::time::sleep(FLUSH_AGAIN).await;
        }
        has_failed = flushed.is_err();
    }
}
