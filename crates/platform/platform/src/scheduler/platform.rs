//! All functions, and what they share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::counter::KeyedCounter;
use super::decisions::Subscription;
use super::fleet::Fleet;
use super::function::{Command, Function, QueuedCall};
use super::image_usage::ImageUsage;
use super::instance::{CallOutcome, CallTimes};
use super::metrics::{FunctionCounters, Metrics};
use super::nodes::Nodes;
use super::running::{Running, Stage};
use super::snapshot::Snapshot;
use super::{Advisor, Call, CallCounts, CallSlot, Caller, MOST_CALLS, Observable, image, pressure};
use crate::api::{
    Action, Activation, ApiError, Exec, Limits, Name, Outcome, Parameters, Response, StartKind,
    Times,
};
use crate::clock::now_ms;
use crate::confine::Folders;
use crate::runtimes::OtherRuntimes;
use crate::store::{AcceptedCall, FLUSH, Store, StoreError};

/// For so long clients are waited for at the end, apart from their calls.
pub const GRACE: Duration = Duration::from_secs(10);
/// So long a disk is left alone that took nothing.
const FLUSH_AGAIN: Duration = Duration::from_secs(1);

/// What all functions share.
#[derive(Debug)]
pub struct Shared {
    /// What survives a restart.
    pub store: Arc<dyn Store>,
    /// What instances run on.
    pub nodes: Arc<dyn Nodes>,
    /// Who decides.
    pub advisor: Arc<Advisor>,
    /// All instances.
    pub fleet: Arc<Fleet>,
    /// The images that functions use.
    pub image_usage: Arc<ImageUsage>,
    /// What is counted.
    pub metrics: Metrics,
    /// Files of functions.
    pub folders: Folders,
    /// What serves functions of other kinds than Python.
    pub others: OtherRuntimes,
    /// How many tasks versions of functions have, by the names of their images: what there is of a version goes
    /// when its last task ends, and not before. A call that was looked up before an update may come after it.
    pub served: Arc<KeyedCounter<String>>,
    /// Calls that are being made.
    pub running: Arc<Running>,
    /// Calls that wait or are being made.
    call_counts: Arc<CallCounts>,
    /// Whether something was kept that is not on disk.
    is_dirty: AtomicBool,
    /// When the platform began, in milliseconds since 1970.
    began_ms: u64,
}

/// The functions of a platform: makes calls.
#[derive(Debug)]
pub struct Platform {
    shared: Arc<Shared>,
    functions: Mutex<HashMap<(Name, Name), Known>>,
}

/// A function that has been called.
#[derive(Debug)]
struct Known {
    /// Tells versions apart, also of an action that was deleted and made again.
    updated_ms: u64,
    tell: UnboundedSender<Command>,
}

impl Platform {
    /// A platform that makes calls, the first of which are those accepted before and not made. Has
    /// to be called where tasks can be.
    pub fn begin(
        store: Arc<dyn Store>,
        nodes: Arc<dyn Nodes>,
        advisor: Arc<Advisor>,
        folders: Folders,
        others: OtherRuntimes,
    ) -> Result<Arc<Platform>, StoreError> {
        let fleet = Arc::<Fleet>::default();
        let shared = Arc::new(Shared {
            metrics: Metrics::new(&nodes, &fleet, &advisor),
            store,
            nodes,
            advisor,
            fleet,
            image_usage: Arc::default(),
            folders,
            others,
            served: Arc::default(),
            running: Arc::default(),
            call_counts: Arc::default(),
            is_dirty: AtomicBool::new(false),
            began_ms: now_ms(),
        });
        let platform = Arc::new(Platform { shared, functions: Mutex::default() });
        platform.remove_old()?;
        platform.make_accepted()?;
        tokio::spawn(flush(Arc::clone(&platform.shared)));
        tokio::spawn(pressure::relieve(Arc::clone(&platform.shared)));
        tokio::spawn(pressure::reclaim(Arc::clone(&platform.shared)));
        Ok(platform)
    }

    /// Removes files and images of versions that an earlier run of the platform could not.
    fn remove_old(&self) -> Result<(), StoreError> {
        // In this order: what is made from now on is not among them.
        let mut old = self.shared.nodes.made_images();
        let names = image::names(&*self.shared.store)?;
        old.retain(|image| !names.contains(image));
        if let Err(error) = self.shared.folders.keep_only(names.into_iter()) {
            tracing::warn!(%error, "files of functions stay");
        }
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            for image in old {
                tracing::info!(image, "an image goes key version is no more");
                shared.remove_image(&image).await;
            }
        });
        Ok(())
    }

    fn make_accepted(&self) -> Result<(), StoreError> {
        for accepted in self.shared.store.accepted()? {
            let AcceptedCall { id, namespace, name, args, accepted_ms, trace, .. } =
                accepted.clone();
            match self.shared.store.action(&namespace, &name)? {
                Some(action) => {
                    let place = self.shared.call_counts.add(&namespace);
                    let call = Call { id, action, args, asked_ms: accepted_ms, trace };
                    drop(self.call(call, place));
                }
                None => {
                    let why = "The action was deleted before the call was made.";
                    let response = Response::failure(Outcome::ApplicationError, why);
                    let times = Times { start_ms: now_ms(), end_ms: now_ms(), ..Times::default() };
                    let gone = deleted(&accepted);
                    let start = (StartKind::Cold, times);
                    let record = Activation::new(id, &gone, response, Vec::new(), start);
                    self.shared.store.finish(record)?;
                }
            }
        }
        Ok(())
    }

    /// Has no more calls begin than those that clients wait for, and none when these have gone or a while
    /// is over; waits for those that have begun, and brings to disk what came of them.
    pub async fn end(&self, mut clients: JoinHandle<()>) {
        let running = &self.shared.running;
        running.enter(Stage::Ending);
        let have_gone = timeout(GRACE, &mut clients).await.is_ok();
        running.enter(Stage::Closed);
        let left = running.over().await;
        if left > 0 {
            tracing::warn!(left, "calls that take longer than they may are given up");
        }
        // Those whose calls have just ended get their answers.
        if !have_gone && timeout(GRACE, clients).await.is_err() {
            tracing::warn!("clients that do not take their answers are left");
        }
        if let Err(error) = self.shared.ask_store(|store| store.flush()).await {
            tracing::error!(%error, "what came of calls is not on disk");
        }
    }

    fn functions(&self) -> MutexGuard<'_, HashMap<(Name, Name), Known>> {
        // Every step leaves the table valid.
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the function of an action of a call; an older version of it ends.
    fn tell(&self, action: Action, waiting: QueuedCall) {
        let mut functions = self.functions();
        let key = (action.namespace.clone(), action.name.clone());
        let mut told = Command::Called(Box::new(waiting));
        if let Some(known) = functions.remove(&key) {
            if known.updated_ms < action.updated_ms {
                let _ = known.tell.send(Command::Gone);
            } else if let Err(unsent) = known.tell.send(told) {
                // It is gone, and hears nothing any more.
                told = unsent.0;
            } else {
                functions.insert(key, known);
                return;
            }
        }
        let updated_ms = action.updated_ms;
        let tell = Function::spawn(Arc::clone(&self.shared), action);
        // It hears at least what it is told first.
        let _ = tell.send(told);
        functions.insert(key, Known { updated_ms, tell });
    }
}

impl Caller for Platform {
    fn admit(&self, namespace: &Name) -> Result<CallSlot, ApiError> {
        self.shared.call_counts.add_within(namespace, MOST_CALLS).map_err(|calls| {
            self.shared.metrics.starts.refused(namespace);
            let words = format!("{calls} calls of '{namespace}' wait or are being made already");
            ApiError::TooMany(words)
        })
    }

    fn call(&self, call: Call, place: CallSlot) -> oneshot::Receiver<Activation> {
        self.shared.metrics.starts.calls.inc();
        let (answer, receiver) = oneshot::channel();
        let action = call.action.clone();
        let since = Instant::now();
        self.tell(action, QueuedCall { call, answer, place, tries: 0, since });
        receiver
    }

    fn gone(&self, action: &Action) {
        let key = (action.namespace.clone(), action.name.clone());
        let mut functions = self.functions();
        if let Some(known) = functions.remove(&key) {
            if known.updated_ms > action.updated_ms {
                functions.insert(key, known);
            } else if known.tell.send(Command::Gone).is_ok() {
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
        // Those that were called were deployed.
        snapshot.has_functions = !snapshot.functions.is_empty() || self.shared.has_functions();
        snapshot
    }

    fn subscribe(&self) -> Subscription {
        self.shared.advisor.decisions.subscribe()
    }
}

impl Shared {
    /// Asks the store something where it holds nobody up.
    pub async fn ask_store<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = Arc::clone(&self.store);
        let asked = tokio::task::spawn_blocking(move || ask(&*store)).await;
        asked.unwrap_or_else(|_| Err(StoreError::Conflict))
    }

    /// Whether anybody has deployed a function.
    fn has_functions(&self) -> bool {
        // Of a store that does not answer nothing is known.
        let keys = self.store.keys(None).unwrap_or_default();
        let namespaces: HashSet<Name> = keys.into_iter().map(|key| key.namespace).collect();
        namespaces.iter().any(|namespace| {
            self.store.actions(namespace, 0, 1).is_ok_and(|actions| !actions.is_empty())
        })
    }

    /// Whether this is the version that there is.
    pub async fn is_current(&self, action: &Action) -> bool {
        let (namespace, name) = (action.namespace.clone(), action.name.clone());
        let found = self.ask_store(move |store| store.action(&namespace, &name)).await;
        // Of a store that does not answer nothing is known.
        found.map_or(true, |found| found.is_some_and(|now| now.updated_ms == action.updated_ms))
    }

    /// Removes what there is of a version that is no more; if it has a task, that does so when it ends.
    pub async fn remove_unserved(&self, action: &Action) {
        if self.served.has(&image::name(action)) {
            return;
        }
        self.forget(action).await;
        self.remove_image(&image::name(action)).await;
        self.remove_folder(action).await;
    }

    /// Removes an image, if there is one of this name.
    pub async fn remove_image(&self, image: &str) {
        if let Err(error) = self.nodes.remove_image(image).await {
            tracing::warn!(image, %error, "an image stays");
        }
    }

    /// Takes the figures of a version away, unless the action goes on with another.
    async fn forget(&self, action: &Action) {
        let (namespace, name) = (action.namespace.clone(), action.name.clone());
        let found = self.ask_store(move |store| store.action(&namespace, &name)).await;
        // One that was deleted and made again has its versions again.
        let is_it = |now: &Action| now.updated_ms == action.updated_ms;
        let goes_on = |now: Action| is_it(&now) || now.version > action.version;
        // Of a store that does not answer nothing is known.
        if found.is_ok_and(|found| !found.is_some_and(goes_on)) {
            self.metrics.functions.forget(action);
        }
    }

    /// Keeps what came of a call, and tells it.
    pub fn finish(
        &self,
        counted: &FunctionCounters,
        waiting: QueuedCall,
        kind: StartKind,
        made: CallOutcome,
    ) {
        let QueuedCall { call, answer, place, since, .. } = waiting;
        let CallOutcome { response, logs, times, .. } = made;
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
        self.metrics.ended(counted, since.elapsed(), outcome);
        self.metrics.starts.calls.dec();
        // Whoever hears of it may call again.
        drop(place);
        match kept {
            Ok(()) => {
                self.is_dirty.store(true, Ordering::Release);
                // A caller may have gone.
                let _ = answer.send(activation);
            }
            // Whoever waits hears that the activation was lost.
            Err(error) => tracing::error!(%error, id = %call.id, "an activation is lost"),
        }
    }

    /// Gives a call up that no instance can be had for.
    pub fn give_up(&self, counted: &FunctionCounters, waiting: QueuedCall, why: &str) {
        let about = waiting.call.action.path();
        tracing::error!(about, why, id = %waiting.call.id, "a call is given up");
        let words = "The platform could not make the call; its log tells why.";
        self.not_made(counted, waiting, Response::failure(Outcome::InternalError, words));
    }

    /// Answers a call that is not made.
    pub fn not_made(&self, counted: &FunctionCounters, waiting: QueuedCall, response: Response) {
        let now_ms = now_ms();
        let wait_ms = now_ms.saturating_sub(waiting.call.asked_ms);
        let times = Times { start_ms: now_ms, end_ms: now_ms, wait_ms, init_ms: None };
        counted.called(&response, None, times);
        let spent = CallTimes::default();
        let made = CallOutcome { response, logs: Vec::new(), times, spent, is_well: false };
        self.finish(counted, waiting, StartKind::Cold, made);
    }
}

/// Brings to disk what came of calls.
async fn flush(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(FLUSH).await;
        if shared.is_dirty.swap(false, Ordering::AcqRel)
            && let Err(error) = shared.ask_store(|store| store.flush()).await
        {
            tracing::error!(%error, "what came of calls is not on disk");
            shared.is_dirty.store(true, Ordering::Release);
            tokio::time::sleep(FLUSH_AGAIN).await;
        }
    }
}

/// What is known of the action of a call that was accepted, and is gone.
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
