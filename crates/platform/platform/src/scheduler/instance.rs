//! One instance: its connection, output and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farfork_scheduler::History;
use farfork_types::wire::AddressRange;
use farfork_types::{LocalShare, Tiering};
use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::call_error::CallError;
use super::code::Code;
use super::exchange::{Deadline, End, exchange, until_deadline};
use super::fleet::FleetSlot;
use super::logs::{Lines, Logs};
use super::near_share::NearShare;
use super::nodes::{Connect, Nodes, NodesError, Paused, StartTimes, Started};
use super::outcome::{CallOutcome, CallTimes};
use super::prepare::prepare;
use super::turns::Turn;
use super::{Call, launch, protocol};
use crate::api::{Action, Outcome, Response, StartKind, Times};
use crate::clock::now_ms;
use crate::http::Connection;
use crate::memory::RequestMemory;

/// How long to wait for the reason of an exit after a lost connection. It is known when the
/// container is gone, which takes a while on a busy machine.
const REASON: Duration = Duration::from_secs(5);

/// How long a call waits for a change of its instance's share of near memory.
const CHANGE_PATIENCE: Duration = Duration::from_millis(100);

/// An instance. It is ended when this is dropped.
pub struct Instance {
    /// Its name.
    pub id: u64,
    /// How its next call gets it.
    pub kind: StartKind,
    /// Its tiering policy, if it is a clone of its function's image.
    tiering: Option<Tiering>,
    /// Its share of near memory.
    share: NearShare,
    /// Bytes of the arguments that it was started for, by which its share is decided.
    pub started_for_bytes: u64,
    /// Whether it was promoted, or is about to be.
    pub is_local: Arc<AtomicBool>,
    /// The calls that it has answered.
    pub history: History,
    /// Its entry in the fleet.
    pub slot: FleetSlot,
    /// The times of its start.
    pub took: StartTimes,
    /// Returns how long it was paused in all.
    paused: Paused,
    connect: Connect,
    connection: Option<Connection>,
    /// Bytes of its region.
    region_bytes: Option<u64>,
    logs: Logs,
    has_code: bool,
    /// Its turn, until it has loaded its code.
    turn: Option<Turn>,
    /// Whether its server is a blackbox's.
    is_blackbox: bool,
    end: watch::Receiver<Option<End>>,
    watcher: JoinHandle<()>,
    /// The freeze since its last call, if any.
    freezing: Option<JoinHandle<Result<(), NodesError>>>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Instance {
    /// A started instance; `on_exit` is called when it has exited.
    pub fn new(
        started: Started,
        kind: StartKind,
        (slot, turn): (FleetSlot, Option<Turn>),
        on_exit: impl FnOnce() + Send + 'static,
    ) -> Instance {
        let Started { id, took, tiering, share, paused, region_bytes, .. } = started;
        let Started { connect, output, ended, .. } = started;
        let (ends, end) = watch::channel(None);
        let watcher = tokio::spawn(async move {
            let why = ended.await;
            ends.send_replace(Some(End { why }));
            on_exit();
        });
        Instance {
            id,
            kind,
            tiering: (kind != StartKind::Cold).then_some(tiering),
            share,
            started_for_bytes: 0,
            is_local: Arc::default(),
            history: History::default(),
            slot,
            took,
            paused,
            connect,
            connection: None,
            region_bytes,
            logs: Logs::new(output),
            has_code: kind != StartKind::Cold,
            turn,
            is_blackbox: false,
            end,
            watcher,
            freezing: None,
        }
    }

    /// Freezes it until its next call.
    pub fn freeze(&mut self, nodes: &dyn Nodes) {
        self.freezing = Some(tokio::spawn(nodes.freeze(self.id)));
    }

    /// Thaws it if it may be frozen; returns whether it can serve a call.
    pub async fn thaw(&mut self, nodes: &dyn Nodes) -> bool {
        let Some(freezing) = self.freezing.take() else { return true };
        if let Ok(Err(error)) = freezing.await {
            // It may have been frozen all the same.
            tracing::debug!(id = self.id, %error, "an instance was not frozen");
        }
        let thawed = nodes.thaw(self.id).await;
        if let Err(error) = &thawed {
            tracing::warn!(id = self.id, %error, "an instance is lost: it cannot be thawed");
        }
        thawed.is_ok()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Whether it has loaded its function's code, or is a clone of one that has.
    pub fn has_code(&self) -> bool {
        self.has_code
    }

    /// Its tiering policy, if it is a clone of its function's image and was not promoted.
    pub fn tiering(&self) -> Option<Tiering> {
        self.tiering.filter(|_| !self.is_local.load(Ordering::Relaxed))
    }

    /// Its share of near memory, if that was decided, and as long as it has it: not before it does, nor once more of it
    /// is promoted.
    pub fn share(&self) -> Option<LocalShare> {
        self.share.has().filter(|_| !self.is_local.load(Ordering::Relaxed))
    }

    /// The share that it was asked to have last, if that can be changed now: it is a clone that nothing else decides
    /// about, and no change is under way.
    pub fn changeable_share(&self) -> Option<LocalShare> {
        self.share.settled().filter(|_| self.tiering() == Some(Tiering::Mow))
    }

    /// Gets it ready for a call: thaws it if it may be frozen, and has its share changed if that was decided. Returns
    /// whether it can serve the call.
    pub async fn ready(&mut self, change: Option<LocalShare>, nodes: &dyn Nodes) -> bool {
        let is_awake = self.thaw(nodes).await;
        if let Some(to) = change.filter(|_| is_awake) {
            self.change_share(to, nodes).await;
        }
        is_awake
    }

    /// Has another share of its memory near. A change that takes long goes on during the call.
    async fn change_share(&mut self, to: LocalShare, nodes: &dyn Nodes) {
        let id = self.id;
        let Some(from) = self.changeable_share() else { return };
        let Some(changing) = nodes.set_share(id, from, to) else {
            return tracing::debug!(id, %from, %to, "no room to change a share of near memory");
        };
        let change = self.share.begin(to);
        let changed = tokio::spawn(async move {
            match changing.await {
                Ok(true) => change.met(),
                Ok(false) => {}
                Err(error) => tracing::warn!(id, %from, %to, %error, "a share is not changed"),
            }
        });
        // Dropping the handle does not end the task.
        let _ = timeout(CHANGE_PATIENCE, changed).await;
    }

    /// Whether it reads its function's pages from the pool.
    pub fn reads_from_pool(&self) -> bool {
        self.tiering() == Some(Tiering::Mow)
    }

    /// Makes a call; `None` if nothing was sent to the instance.
    pub async fn call(
        &mut self,
        call: &Call,
        code: Option<&Code>,
        log_memory: &Arc<RequestMemory>,
    ) -> Option<CallOutcome> {
        let limits = call.action.limits;
        self.is_blackbox = call.action.exec.is_blackbox();
        let mut lines =
            Lines::new(limits.logs_mb << 20, log_memory.reservation(&call.action.namespace));
        let start_ms = now_ms();
        let wait_ms = start_ms.saturating_sub(call.asked_ms);
        let mut spent = CallTimes::default();
        let (response, is_whole) = match self.steps(call, code, &mut lines, &mut spent).await {
            Ok(response) => (response, true),
            Err(CallError::NotSent) => return None,
            Err(error) => {
                let response = self.failure(error, limits.timeout_ms, &mut lines).await;
                (response, false)
            }
        };
        let times = Times { start_ms, end_ms: now_ms(), wait_ms, init_ms: spent.init.map(millis) };
        let is_well = is_whole && response.status != Outcome::DeveloperError;
        match is_whole {
            true => self.logs.rest(&mut lines, self.is_blackbox).await,
            false => self.logs.last(&mut lines).await,
        }
        if is_well {
            self.history.answered(spent.run_us());
            self.kind = StartKind::Warm;
        }
        Some(CallOutcome { response, logs: lines.into_lines(), times, spent, is_well })
    }

    /// Loads the code if necessary, and calls it.
    async fn steps(
        &mut self,
        call: &Call,
        code: Option<&Code>,
        lines: &mut Lines,
        spent: &mut CallTimes,
    ) -> Result<Response, CallError> {
        let limit = Duration::from_millis(call.action.limits.timeout_ms);
        if !self.has_code {
            let begun = Instant::now();
            // The function keeps the code as long as an instance may load it.
            let code = code.ok_or(CallError::NotSent)?;
            let deadline = Deadline::after(limit, &self.paused);
            let failure = self.load(&call.action, code, &deadline, lines).await?;
            self.turn = None;
            spent.init = Some(begun.elapsed());
            if let Some(failure) = failure {
                return Ok(failure);
            }
            self.has_code = true;
        }
        let begun = Instant::now();
        let deadline = Deadline::after(limit, &self.paused);
        let (status, body) =
            self.post("/run", protocol::run(call), &deadline, lines).await.map_err(|error| {
                // An instance that refuses its first call after loading the code counts as exited.
                let is_new = spent.init.is_some();
                if is_new && matches!(error, CallError::NotSent) {
                    CallError::Exited
                } else {
                    error
                }
            })?;
        spent.run = Some(begun.elapsed());
        Ok(protocol::ran((status, &body)))
    }

    /// Loads the code; returns the failure if the code is at fault.
    async fn load(
        &mut self,
        action: &Action,
        code: &Code,
        deadline: &Deadline,
        lines: &mut Lines,
    ) -> Result<Option<Response>, CallError> {
        if let Some(server) = &code.server {
            let document = protocol::launch(code, server, self.region_bytes);
            if let Some(failure) = self.launch(document, deadline, lines).await? {
                return Ok(Some(failure));
            }
        }
        let document = protocol::init(action, code, self.region_bytes);
        let init = self.post("/init", document, deadline, lines).await;
        let (status, body) = init.map_err(|error| match error {
            // Not retried elsewhere: the owner's program would fail there, too.
            CallError::NotSent if code.server.is_some() => CallError::Exited,
            error => error,
        })?;
        Ok(protocol::initialised((status, &body)))
    }

    /// Makes the server execute another program, and waits until that listens.
    async fn launch(
        &mut self,
        document: Bytes,
        deadline: &Deadline,
        lines: &mut Lines,
    ) -> Result<Option<Response>, CallError> {
        let Instance { connect, connection, logs, end, .. } = self;
        let launching = launch::launch(connect, document);
        if let Some(failure) = until_deadline(launching, deadline, end, logs, lines).await? {
            return Ok(Some(failure));
        }
        match until_deadline(launch::listening(connect), deadline, end, logs, lines).await {
            Ok(made) => *connection = Some(made),
            Err(CallError::TimedOut) => return Err(CallError::NotListening),
            Err(_) => return Err(CallError::Exited),
        }
        Ok(None)
    }

    async fn post(
        &mut self,
        path: &str,
        body: Bytes,
        deadline: &Deadline,
        lines: &mut Lines,
    ) -> Result<(u16, Bytes), CallError> {
        let Instance { connect, connection, logs, end, .. } = self;
        let work = exchange(connect, connection, path, body);
        let answer = until_deadline(work, deadline, end, logs, lines).await;
        if self.is_blackbox {
            // Only the program knows how long it keeps connections.
            self.connection = None;
        }
        answer
    }

    /// The response for a call without an answer.
    async fn failure(&mut self, error: CallError, timeout_ms: u64, lines: &mut Lines) -> Response {
        if matches!(error, CallError::Exited | CallError::NotSent)
            && let Some(why) = self.exit_reason().await
        {
            lines.note("stderr", &format!("The instance has ended: {why}"));
        }
        Response::failure(Outcome::DeveloperError, &error.message(timeout_ms, self.has_code))
    }

    /// The reason of its exit, if known soon.
    async fn exit_reason(&mut self) -> Option<String> {
        let ended = timeout(REASON, self.end.wait_for(Option::is_some)).await;
        ended.ok()?.ok()?.clone()?.why
    }

    /// Prepares its checkpoint: runs its hooks and closes its connections. Returns the ranges of
    /// memory that it declares hot.
    pub async fn prepare(&mut self) -> Result<Vec<AddressRange>, String> {
        self.connection = None;
        prepare(&self.connect).await
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
