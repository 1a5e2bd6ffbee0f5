//! One version of one action: its queue, its instances, its image. One task owns all of it. Slow
//! work is done in other tasks, whose results come back as messages.
//!
//! ```text
//!              ┌──────────────── a call waits ────────────────┐
//!  starting ──►idle ──► frozen after a while ─────► busy ─────┤ succeeded ──► idle
//!              │ window over, or evicted             │        └ failed ──► ended
//!              ▼                                     ▼ enough calls, no image yet
//!            ended                              checkpointing ──► idle
//! ```

mod imaging;
mod resting;
mod shares;
mod starting;
mod tiering;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farfork_scheduler::ImageState;
use farfork_types::LocalShare;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::code::Code;
use super::counter::CountGuard;
use super::image_usage::ImageSlot;
use super::instance::Instance;
use super::metrics::{CallPhases, FunctionCounters};
use super::nodes::{NodesError, RegionGrant};
use super::outcome::{CallTimes, QueuedCall};
use super::running::Run;
use super::shared::Shared;
use super::turns::Turn;
use super::{image, snapshot};
use crate::api::Action;
use crate::clock::Clock;

const HOUR: Duration = Duration::from_secs(3600);

/// What the platform sends to a function.
#[derive(Debug)]
pub enum Command {
    /// Make a call.
    Call(Box<QueuedCall>),
    /// This version no longer exists: make the calls received so far, and end.
    Retire,
}

/// Results of a function's background work, and requests of other functions.
pub enum Message {
    /// The memory of this instance is needed.
    Evict(u64),
    /// The pool's space of the image is needed.
    Reclaim,
    /// An instance has ended.
    Ended(u64),
    /// An instance was started, or not.
    Started { result: Result<Box<Instance>, NodesError>, is_clone: bool },
    /// A turn for a start without an image.
    Turn(Turn),
    /// A call has ended; with the instance, if it can make another.
    CallFinished {
        id: u64,
        instance: Option<Box<Instance>>,
        run_us: Option<u64>,
        cold_us: Option<u64>,
        payload_bytes: u64,
        share: Option<LocalShare>,
    },
    /// A call was not sent to its instance.
    NotSent { id: u64, waiting: Box<QueuedCall> },
    /// An instance was checkpointed, or not.
    Checkpointed { instance: Option<Box<Instance>>, result: Result<(), NodesError> },
}

/// A function, owned by its task.
pub struct Function {
    shared: Arc<Shared>,
    /// The version that this schedules.
    version: Action,
    /// The version that calls run: that version, or a later one if its code was gone.
    action: Action,
    served: CountGuard<String>,
    /// Counters of its calls.
    counters: FunctionCounters,
    /// Its name in the log.
    about: String,
    image_name: String,
    commands: UnboundedReceiver<Command>,
    /// Whether all commands were received.
    is_closed: bool,
    inbox: UnboundedReceiver<Message>,
    outbox: UnboundedSender<Message>,
    clock: Clock,
    /// What is known of its calls, instances and image, and what happens next to them.
    state: farfork_scheduler::Function,
    /// Turns for starts without an image, to be used now.
    turns: Vec<Turn>,
    /// Number of turns that were asked for and have not come.
    turns_asked: usize,
    /// The calls that wait, by number.
    waiting: BTreeMap<u64, QueuedCall>,
    next_call: u64,
    /// The instances that rest.
    idle: BTreeMap<u64, Box<Instance>>,
    /// The use of its image, if there is one.
    image_slot: Option<ImageSlot>,
    code: Option<Arc<Code>>,
    /// The region that its instances get.
    region: Option<RegionGrant>,
    is_gone: bool,
    /// The number of waiting calls last reported.
    reported_waiting: usize,
}

impl Function {
    /// Starts the task of a function; returns the sender of its commands.
    pub fn spawn(shared: Arc<Shared>, action: Action) -> UnboundedSender<Command> {
        let (sender, commands) = unbounded_channel();
        let (outbox, inbox) = unbounded_channel();
        let image_name = image::name(&action);
        let state = farfork_scheduler::Function::new(
            action.path(),
            action.limits.memory_mb,
            tiering::objective(&action.annotations),
        );
        let state = shares::of_function(state, &shared, &action);
        let function = Function {
            counters: shared.metrics.functions.counters(&action),
            about: action.path(),
            served: shared.served.add(&image_name),
            image_name,
            shared,
            version: action.clone(),
            action,
            commands,
            is_closed: false,
            inbox,
            outbox,
            clock: Clock::default(),
            state,
            turns: Vec::new(),
            turns_asked: 0,
            waiting: BTreeMap::new(),
            next_call: 0,
            idle: BTreeMap::new(),
            image_slot: None,
            code: None,
            region: None,
            is_gone: false,
            reported_waiting: 0,
        };
        tokio::spawn(function.run());
        sender
    }

    async fn run(mut self) {
        self.look_for_image().await;
        while !self.has_ended() {
            let shared = Arc::clone(&self.shared);
            let room = shared.fleet.room.notified();
            let wake = self.wake();
            tokio::select! {
                // Results first: they may make instances idle for the next call.
                biased;
                // Never closed, as the function holds a sender.
                Some(message) = self.inbox.recv() => self.handle(message),
                command = self.commands.recv(), if !self.is_closed => match command {
                Some(Command::Call(waiting)) => self.enqueue(*waiting),
                Some(Command::Retire) => self.retire(),
                    None => self.is_closed = true,
                },
                () = sleep_until(wake) => {}
                () = room, if self.state.scaling().retry_us().is_some() => self.state.room(),
            }
            self.forget_ended();
            self.dispatch_calls().await;
            // After dispatching, so that an instance with a short window still serves a waiting
            // call.
            self.tend_idle();
            self.drop_unneeded_code();
            self.report();
        }
        if self.is_gone {
            drop(self.served);
            self.shared.remove_unserved(&self.version).await;
        }
    }

    /// Reports waiting calls and the image to the metrics.
    fn report(&mut self) {
        let waiting = self.state.scaling().waiting();
        if waiting != self.reported_waiting {
            self.counters.wait(waiting as i64 - self.reported_waiting as i64);
            self.reported_waiting = waiting;
        }
        // If this version is gone, another one reports for the function.
        if !self.is_gone {
            self.counters.image(match self.state.image() {
                ImageState::None { .. } => snapshot::Image::None,
                ImageState::InTheMaking => snapshot::Image::Making,
                ImageState::There => snapshot::Image::Ready,
            });
        }
    }

    /// Uses an image that an earlier run of the platform has left.
    async fn look_for_image(&mut self) {
        match self.shared.nodes.has_image(&self.image_name).await {
            Ok(true) => self.use_image(false),
            Ok(false) => {}
            Err(error) => tracing::warn!(about = self.about, %error, "cannot look up an image"),
        }
        // The action may have changed between the call and now.
        if !self.shared.is_current(&self.action).await {
            self.retire();
        }
    }

    /// Accepts no more commands than those sent so far.
    fn retire(&mut self) {
        self.is_gone = true;
        self.commands.close();
    }

    fn has_ended(&self) -> bool {
        let scaling = self.state.scaling();
        self.is_gone && self.is_closed && scaling.is_quiet() && scaling.starting() == 0
    }

    /// When to wake up without a message.
    fn wake(&self) -> Instant {
        self.state.due_us().map_or_else(|| Instant::now() + HOUR, |us| self.clock.at(us))
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Evict(id) | Message::Ended(id) => {
                self.end_idle(id);
            }
            Message::Reclaim if self.state.has_image() => self.do_without_image(),
            Message::Reclaim => {}
            Message::Started { result, is_clone } => self.started(result, is_clone),
            Message::Turn(turn) => {
                self.turns_asked -= 1;
                self.turns.push(turn);
            }
            Message::CallFinished { id, instance, run_us, cold_us, payload_bytes, share } => {
                self.state.call_ended(self.clock.now_us(), id, run_us, cold_us);
                self.learn_share(instance.as_deref(), (payload_bytes, share), run_us);
                self.call_finished(instance);
            }
            Message::NotSent { id, waiting } => {
                self.waiting.insert(id, *waiting);
                let given_up = self.state.not_sent(id);
                self.give_up(given_up, "its instances do not accept the call");
            }
            Message::Checkpointed { instance, result } => {
                self.state.checkpoint_ended();
                self.checkpointed(result);
                self.rest(instance);
            }
        }
    }

    fn enqueue(&mut self, waiting: QueuedCall) {
        let now_us = self.clock.now_us();
        let id = self.next_call;
        self.next_call += 1;
        let since_us = now_us.saturating_sub(micros(waiting.since.elapsed()));
        self.state.called(now_us, id, since_us);
        self.state.called_with(now_us, shares::payload_bytes(&waiting));
        self.waiting.insert(id, waiting);
    }

    fn call_finished(&mut self, instance: Option<Box<Instance>>) {
        let Some(instance) = instance else { return };
        if let Some(usage) = self.shared.nodes.usage(instance.id) {
            self.state.measured(usage, instance.tiering());
        }
        match self.is_due(&instance) {
            true => self.checkpoint(instance),
            false => self.rest(Some(instance)),
        }
    }

    /// Drops the code unless an instance may load it: it may have tens of megabytes, and the store
    /// has it.
    pub(super) fn drop_unneeded_code(&mut self) {
        let mut idle = self.idle.values();
        let has_code = idle.all(|instance| instance.has_code());
        let scaling = self.state.scaling();
        if scaling.waiting() + scaling.starting() == 0 && has_code {
            self.code = None;
        }
    }

    /// Dispatches calls to idle instances, and starts as many instances as are missing.
    async fn dispatch_calls(&mut self) {
        let limit = Duration::from_millis(self.action.limits.timeout_ms);
        while let Some(id) = self.state.next() {
            let is_awaited = self.waiting.get(&id).is_some_and(|call| !call.answer.is_closed());
            // A call that may not begin any more, as the platform is ending, is left to the next
            // run.
            let Some(run) = self.shared.running.begin(limit, is_awaited) else {
                self.state.drop_next();
                self.waiting.remove(&id);
                continue;
            };
            // The most recently used, so that the windows of others run out.
            let taken = self.state.send(|id| self.shared.nodes.begin_work(id));
            let Some(instance) = taken.and_then(|id| self.idle.remove(&id)) else { break };
            if let Some(waiting) = self.waiting.remove(&id) {
                self.dispatch(instance, (id, waiting), run);
            }
        }
        let lacking = self.state.lacking(self.clock.now_us());
        if lacking > 0 {
            self.start(lacking).await;
        }
        // What cannot be used now is asked for again.
        self.turns.clear();
    }

    /// Has an instance make a call.
    fn dispatch(
        &mut self,
        mut instance: Box<Instance>,
        (id, mut waiting): (u64, QueuedCall),
        running: Run,
    ) {
        instance.slot.set_idle(None, None);
        // The call may have been accepted for an earlier version.
        waiting.call.action = self.action.clone();
        let (shared, outbox, code) =
            (Arc::clone(&self.shared), self.outbox.clone(), self.code.clone());
        let counters = self.counters.clone();
        let payload_bytes = shares::payload_bytes(&waiting);
        let change = self.share_change(&instance);
        tokio::spawn(async move {
            let (kind, took) = (instance.kind, instance.took);
            let is_awake = instance.ready(change, &*shared.nodes).await;
            let waited = waiting.since.elapsed();
            // One that comes during the call says nothing about it.
            let share = instance.share();
            let outcome = match is_awake {
                true => instance.call(&waiting.call, code.as_deref(), &shared.log_memory).await,
                false => None,
            };
            let Some(outcome) = outcome else {
                // Fails if the function has ended.
                let _ = outbox.send(Message::NotSent { id, waiting: Box::new(waiting) });
                return;
            };
            let CallTimes { init, run } = outcome.spent;
            // Failed calls may be short, so they do not count for the extra time.
            let well = run.filter(|_| outcome.is_well);
            let faults = well.and_then(|run| counters.ran(kind, run));
            shared.metrics.starts.called(&CallPhases {
                start: kind,
                waited,
                took,
                init,
                run,
                faults,
            });
            counters.called(&outcome.response, Some(kind), outcome.times);
            let run_us = outcome.is_well.then_some(outcome.spent.run_us());
            let cold_us = init.map(|init| micros(took.whole + init));
            let instance = outcome.is_well.then_some(instance);
            // Before the caller gets its response, so that its next call finds the instance idle.
            let _ = outbox.send(Message::CallFinished {
                id,
                instance,
                run_us,
                cold_us,
                payload_bytes,
                share,
            });
            shared.finish(&counters, waiting, kind, outcome);
            drop(running);
        });
    }

    /// Gives up calls that do not wait any more.
    fn give_up(&mut self, ids: impl IntoIterator<Item = u64>, why: &str) {
        for waiting in ids.into_iter().filter_map(|id| self.waiting.remove(&id)) {
            self.shared.give_up(&self.counters, waiting, why);
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
