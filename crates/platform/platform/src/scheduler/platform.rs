//! All functions, and what they share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::decisions::Subscription;
use super::function::{Command, Function};
use super::nodes::Nodes;
use super::outcome::QueuedCall;
use super::running::Stage;
use super::shared::Shared;
use super::snapshot::Snapshot;
use super::{
    Advisor, Call, CallSlot, Caller, MOST_CALLS, Observable, accepted, image, pressure, shared,
};
use crate::api::{Action, Activation, ApiError, Name, Parameters};
use crate::clock::now_ms;
use crate::confine::Folders;
use crate::memory::RequestMemory;
use crate::runtimes::OtherRuntimes;
use crate::store::{Store, StoreError};

/// How long clients are waited for at shutdown, apart from their calls.
pub const GRACE: Duration = Duration::from_secs(10);
/// The functions of a platform; makes their calls.
#[derive(Debug)]
pub struct Platform {
    shared: Arc<Shared>,
    functions: Mutex<HashMap<(Name, Name), Known>>,
}

/// A function that has been called.
#[derive(Debug)]
struct Known {
    /// Identifies the version, also of an action that was deleted and created again.
    updated_ms: u64,
    commands: UnboundedSender<Command>,
}

impl Platform {
    /// Starts the platform, which first makes the accepted calls of the last run. Must be called
    /// within a Tokio runtime.
    pub fn begin(
        store: Arc<dyn Store>,
        nodes: Arc<dyn Nodes>,
        advisor: Arc<Advisor>,
        folders: Folders,
        others: OtherRuntimes,
        memory: Arc<RequestMemory>,
    ) -> Result<Arc<Platform>, StoreError> {
        let shared = Shared::new(store, nodes, advisor, folders, others, memory);
        let platform = Arc::new(Platform { shared, functions: Mutex::default() });
        platform.remove_old()?;
        let caller: Arc<dyn Caller> = platform.clone();
        accepted::make(&platform.shared, &caller)?;
        tokio::spawn(shared::flush(Arc::clone(&platform.shared)));
        tokio::spawn(pressure::relieve(Arc::clone(&platform.shared)));
        tokio::spawn(pressure::reclaim(Arc::clone(&platform.shared)));
        Ok(platform)
    }

    /// Removes files and images of old versions that an earlier run of the platform has left.
    fn remove_old(&self) -> Result<(), StoreError> {
        // Read before the store, so that images of new versions are not among them.
        let mut old = self.shared.nodes.made_images();
        let names = image::names(&*self.shared.store)?;
        old.retain(|image| !names.contains(image));
        if let Err(error) = self.shared.folders.keep_only(names.into_iter()) {
            tracing::warn!(%error, "cannot remove old files of functions");
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            for image in old {
                tracing::info!(image, "removing the image of an old version");
                shared.remove_image(&image).await;
            }
        });
        Ok(())
    }

    /// Shuts down: only calls that clients wait for begin, and none once the clients have gone or a
    /// grace period is over. Waits for running calls, and flushes their activations to disk.
    pub async fn end(&self, mut clients: JoinHandle<()>) {
        let running = &self.shared.running;
        running.enter(Stage::Ending);
        let have_gone = timeout(GRACE, &mut clients).await.is_ok();
        running.enter(Stage::Closed);
        let left = running.over().await;
        if left > 0 {
            tracing::warn!(left, "calls over their time limit are aborted");
        }
        // Clients whose calls have just ended get their responses.
        if !have_gone && timeout(GRACE, clients).await.is_err() {
            tracing::warn!("clients that do not read their responses are disconnected");
        }
        if let Err(error) = self.shared.ask_store(|store| store.flush()).await {
            tracing::error!(%error, "cannot flush activations to disk");
        }
    }

    fn functions(&self) -> MutexGuard<'_, HashMap<(Name, Name), Known>> {
        // Every step leaves the table valid.
        locked(&self.functions)
    }

    /// Sends a call to the function of its action; retires an older version.
    fn send(&self, action: Action, waiting: QueuedCall) {
        let mut functions = self.functions();
        let key = (action.namespace.clone(), action.name.clone());
        let mut command = Command::Call(Box::new(waiting));
        if let Some(known) = functions.remove(&key) {
            if known.updated_ms < action.updated_ms {
                let _ = known.commands.send(Command::Retire);
            } else if let Err(unsent) = known.commands.send(command) {
                // Its task has ended.
                command = unsent.0;
            } else {
                functions.insert(key, known);
                return;
            }
        }
        let updated_ms = action.updated_ms;
        let commands = Function::spawn(Arc::clone(&self.shared), action);
        // A new task receives at least its first command.
        let _ = commands.send(command);
        functions.insert(key, Known { updated_ms, commands });
    }
}

impl Caller for Platform {
    fn admit(&self, namespace: &Name) -> Result<CallSlot, ApiError> {
        self.shared.call_counts.add_within(namespace, MOST_CALLS).map_err(|calls| {
            self.shared.metrics.starts.refused(namespace);
            let words = format!("{calls} calls of '{namespace}' are waiting or running already");
            ApiError::TooMany(words)
        })
    }

    fn call(&self, mut call: Call, slot: CallSlot) -> oneshot::Receiver<Activation> {
        self.shared.metrics.starts.calls.inc();
        let (answer, receiver) = oneshot::channel();
        let action = Action { parameters: Parameters::default(), ..call.action.clone() };
        call.action = call.action.bare();
        let since = Instant::now();
        self.send(action, QueuedCall { call, answer, slot, since });
        receiver
    }

    fn gone(&self, action: &Action) {
        let key = (action.namespace.clone(), action.name.clone());
        let mut functions = self.functions();
        if let Some(known) = functions.remove(&key) {
            if known.updated_ms > action.updated_ms {
                functions.insert(key, known);
            } else if known.commands.send(Command::Retire).is_ok() {
                return;
            }
        }
        drop(functions);
        // An earlier run of the platform may have left an image of it.
        let (shared, action) = (Arc::clone(&self.shared), action.clone());
        tokio::spawn(async move { shared.remove_unserved(&action).await });
    }

    fn metrics(&self) -> String {
        self.shared.metrics.text()
    }
}

impl Observable for Platform {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.shared.metrics.snapshot();
        snapshot.version = env!("CARGO_PKG_VERSION").to_owned();
        (snapshot.began_ms, snapshot.at_ms) = (self.shared.began_ms, now_ms());
        // A called function is deployed, so the store need not be read.
        snapshot.has_functions = !snapshot.functions.is_empty() || self.shared.has_functions();
        snapshot
    }

    fn subscribe(&self) -> Subscription {
        self.shared.advisor.decisions.subscribe()
    }
}
