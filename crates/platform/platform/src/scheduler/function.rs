//! One version of one action: its queue, its instances, its image. One task owns all of it; whatever
//! takes time is done elsewhere and comes back as a message.
//!
//! ```text
//!              ┌────────────── a call is there ───────────────┐
//!  starting ──►idle ──► frozen after a while ─────► busy ─────┤ answered well ──► idle
//!              │ too long, or room is needed         │        └ else ──► gone
//!              ▼                                     ▼ enough calls, no image yet
//!             gone                              checkpointing ──► idle
//! ```

mod imaging;
mod resting;
mod starting;
mod tiering;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use farfork_policy::observed::{IdleGaps, RecentLatency};
use farfork_types::Tiering;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::code::Code;
use super::counter::CountGuard;
use super::image_usage::ImageSlot;
use super::instance::{CallTimes, Instance};
use super::metrics::{CallPhases, FunctionCounters};
use super::nodes::{NodesError, Usage};
use super::platform::Shared;
use super::running::Run;
use super::{Call, CallSlot, image, snapshot};
use crate::api::{Action, Activation};
use resting::Idle;

/// An instance's memory, a guess until one was looked at.
const GUESSED_BYTES: u64 = 16 << 20;
/// What a start without an image takes, a guess until there was one.
const GUESSED_COLD_US: u64 = 300_000;
/// Times that a call is handed to an instance that does not take it.
const MOST_TRIES: u32 = 3;
/// So many clones of an image may not start, one after the other, before it is given up.
const MOST_FAILED_CLONES: u32 = 2;
/// Calls that are remembered to tell how often there are any.
const REMEMBERED_CALLS: usize = 1024;
const HOUR: Duration = Duration::from_secs(3600);
/// For so long a call waits for a node that answers.
const NO_NODE: Duration = Duration::from_secs(10);
/// How soon is looked again whether there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A call that waits.
#[derive(Debug)]
pub struct QueuedCall {
    /// It.
    pub call: Call,
    /// Who is told what comes of it; nobody if the caller has gone.
    pub answer: oneshot::Sender<Activation>,
    /// Its place among the calls of its namespace.
    pub place: CallSlot,
    /// How often it was handed to an instance that did not take it, or found none.
    pub tries: u32,
    /// Since when it waits here.
    pub since: Instant,
}

/// What a function is told by others.
#[derive(Debug)]
pub enum Command {
    /// It is called.
    Called(Box<QueuedCall>),
    /// There is no such version any more. It makes the calls that it was told of, and ends.
    Gone,
}

/// What comes of what a function has begun.
pub enum Message {
    /// Somebody else needs the room of this instance.
    Evict(u64),
    /// Somebody else needs the room of the image.
    Reclaim,
    /// An instance has ended.
    Ended(u64),
    /// An instance was started, or not.
    Started { result: Result<Box<Instance>, NodesError>, is_clone: bool },
    /// A call was made; the instance may make another.
    CallFinished { instance: Option<Box<Instance>>, run_us: Option<u64>, cold_us: Option<u64> },
    /// An instance did not take a call.
    NotTaken(Box<QueuedCall>),
    /// An instance was checkpointed, or not.
    Checkpointed { instance: Option<Box<Instance>>, result: Result<(), NodesError> },
}

/// The function's image.
#[derive(Debug)]
enum Image {
    /// There is none; it is not tried again before so many calls were answered.
    None { next_after: u64 },
    /// An instance is being checkpointed.
    InTheMaking,
    /// There is one.
    There(ImageSlot),
}

/// A function, owned by its task.
pub struct Function {
    shared: Arc<Shared>,
    /// The version that this schedules.
    version: Action,
    /// What its calls are made of: that version, or a later one where the code of it was no more.
    action: Action,
    served: CountGuard<String>,
    /// What its calls are counted by.
    counted: FunctionCounters,
    /// What the journal calls it.
    about: String,
    image_name: String,
    told: UnboundedReceiver<Command>,
    /// Whether it is told nothing any more.
    is_closed: bool,
    inbox: UnboundedReceiver<Message>,
    outbox: UnboundedSender<Message>,
    queue: VecDeque<QueuedCall>,
    /// The one that was used last is last.
    idle: Vec<Idle>,
    /// Instances that make a call or are being checkpointed.
    busy: usize,
    starting: usize,
    image: Image,
    /// How many clones of it did not start since one did.
    failed_clones: u32,
    code: Option<Arc<Code>>,
    tiering: Tiering,
    latency: RecentLatency,
    gaps: IdleGaps,
    recent_calls: VecDeque<Instant>,
    answered: u64,
    last_end: Option<Instant>,
    /// Most local memory that one of its instances was seen to take, in bytes.
    local_bytes: Option<u64>,
    /// Most local memory that a clone was seen to take while memory lived in this tier, in bytes.
    clone_bytes: Option<(Tiering, u64)>,
    /// Most memory that one was seen to have, with what it shares, in bytes.
    whole_bytes: Option<u64>,
    /// What a start without an image took last, with loading the code, in microseconds.
    cold_us: Option<u64>,
    /// When it is looked again whether there is room for an instance.
    look_again: Option<Instant>,
    is_gone: bool,
    /// How many calls it has said to wait.
    reported_waiting: usize,
}

impl Function {
    /// Begins to schedule a function; it is told what happens by what this returns.
    pub fn spawn(shared: Arc<Shared>, action: Action) -> UnboundedSender<Command> {
        let (tell, told) = unbounded_channel();
        let (outbox, inbox) = unbounded_channel();
        let image_name = image::name(&action);
        let function = Function {
            counted: shared.metrics.functions.counters(&action),
            about: action.path(),
            served: shared.served.add(&image_name),
            image_name,
            shared,
            version: action.clone(),
            action,
            told,
            is_closed: false,
            inbox,
            outbox,
            queue: VecDeque::new(),
            idle: Vec::new(),
            busy: 0,
            starting: 0,
            image: Image::None { next_after: 0 },
            failed_clones: 0,
            code: None,
            tiering: Tiering::default(),
            latency: RecentLatency::default(),
            gaps: IdleGaps::default(),
            recent_calls: VecDeque::new(),
            answered: 0,
            last_end: None,
            local_bytes: None,
            clone_bytes: None,
            whole_bytes: None,
            cold_us: None,
            look_again: None,
            is_gone: false,
            reported_waiting: 0,
        };
        tokio::spawn(function.live());
        tell
    }

    async fn live(mut self) {
        self.look_for_image().await;
        while !self.has_ended() {
            let shared = Arc::clone(&self.shared);
            let room = shared.fleet.room.notified();
            let wake = self.wake();
            tokio::select! {
                // Who has nothing to do any more is known before there is more to do.
                biased;
                // It has a sender itself.
                Some(message) = self.inbox.recv() => self.hear(message),
                told = self.told.recv(), if !self.is_closed => match told {
                    Some(Command::Called(waiting)) => self.called(*waiting),
                    Some(Command::Gone) => self.retire(),
                    None => self.is_closed = true,
                },
                () = sleep_until(wake) => {}
                () = room, if self.look_again.is_some() => self.look_again = None,
            }
            self.forget_ended();
            self.go_on().await;
            // Only now: whom a call has waited for was not idle, however short it may be so.
            self.tend_idle();
            self.forget_code();
            self.say();
        }
        if self.is_gone {
            drop(self.served);
            self.shared.remove_unserved(&self.version).await;
        }
    }

    /// Has those who look see how it stands.
    fn say(&mut self) {
        let waiting = self.queue.len();
        if waiting != self.reported_waiting {
            self.counted.wait(waiting as i64 - self.reported_waiting as i64);
            self.reported_waiting = waiting;
        }
        // If it is gone, another version speaks of the function.
        if !self.is_gone {
            self.counted.image(match self.image {
                Image::None { .. } => snapshot::Image::None,
                Image::InTheMaking => snapshot::Image::Making,
                Image::There(_) => snapshot::Image::Ready,
            });
        }
    }

    /// What an earlier run of the platform has left.
    async fn look_for_image(&mut self) {
        match self.shared.nodes.has_image(&self.image_name).await {
            Ok(true) => self.use_image(),
            Ok(false) => {}
            Err(error) => tracing::warn!(about = self.about, %error, "images are not looked at"),
        }
        // Somebody may have changed the action between a call of it and now.
        if !self.shared.is_current(&self.action).await {
            self.retire();
        }
    }

    /// Hears what it was told so far, and nothing else.
    fn retire(&mut self) {
        self.is_gone = true;
        self.told.close();
    }

    fn has_ended(&self) -> bool {
        self.is_gone && self.is_closed && self.queue.is_empty() && self.busy + self.starting == 0
    }

    /// When there is something to do though nothing happens.
    fn wake(&self) -> Instant {
        let due = self.idle.iter().map(Idle::due).chain(self.look_again).min();
        due.unwrap_or_else(|| Instant::now() + HOUR)
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Evict(id) | Message::Ended(id) => {
                self.idle.retain(|idle| idle.instance.id != id);
            }
            Message::Reclaim if self.has_image() => self.do_without_image(),
            Message::Reclaim => {}
            Message::Started { result, is_clone } => {
                self.starting -= 1;
                self.started(result, is_clone);
            }
            Message::CallFinished { instance, run_us, cold_us } => {
                self.busy -= 1;
                self.cold_us = cold_us.or(self.cold_us);
                self.made(instance, run_us);
            }
            Message::NotTaken(waiting) => {
                self.busy -= 1;
                self.again(*waiting, "no instance of it takes the call");
            }
            Message::Checkpointed { instance, result } => {
                self.busy -= 1;
                self.checkpointed(result);
                self.rest(instance);
            }
        }
    }

    fn called(&mut self, waiting: QueuedCall) {
        let now = Instant::now();
        if let Some(end) = self.last_end.filter(|_| self.busy == 0 && self.queue.is_empty()) {
            self.gaps.add(millis(now - end));
        }
        self.recent_calls.push_back(now);
        if self.recent_calls.len() > REMEMBERED_CALLS {
            self.recent_calls.pop_front();
        }
        self.queue.push_back(waiting);
    }

    /// Calls in the last hour.
    fn calls_per_hour(&mut self) -> u64 {
        let now = Instant::now();
        while self.recent_calls.front().is_some_and(|at| now - *at > HOUR) {
            self.recent_calls.pop_front();
        }
        self.recent_calls.len() as u64
    }

    fn made(&mut self, instance: Option<Box<Instance>>, run_us: Option<u64>) {
        self.last_end = Some(Instant::now());
        if let Some(run_us) = run_us {
            self.latency.add(run_us);
            self.answered += 1;
        }
        let Some(instance) = instance else { return };
        if let Some(Usage { local_bytes, pool_bytes }) = self.shared.nodes.usage(instance.id) {
            self.local_bytes = self.local_bytes.max(Some(local_bytes));
            self.whole_bytes = self.whole_bytes.max(Some(local_bytes + pool_bytes));
            self.note_clone(instance.tiering(), local_bytes);
        }
        match self.is_due(&instance) {
            true => self.checkpoint(instance),
            false => self.rest(Some(instance)),
        }
    }

    /// Code may have tens of megabytes, and the store has it, too: it is kept while somebody may load it.
    fn forget_code(&mut self) {
        let lacks_code = |idle: &Idle| !idle.instance.has_code();
        if self.queue.is_empty() && self.starting == 0 && !self.idle.iter().any(lacks_code) {
            self.code = None;
        }
    }

    /// Hands calls to instances, and starts as many as are lacking.
    async fn go_on(&mut self) {
        let limit = Duration::from_millis(self.action.limits.timeout_ms);
        while let Some(waiting) = self.queue.pop_front() {
            let is_awaited = !waiting.answer.is_closed();
            // What may not begin any more, as the platform ends, is left to its next run.
            let Some(run) = self.shared.running.begin(limit, is_awaited) else { continue };
            // The one that was used last, so that others become old.
            let has_room = |idle: &Idle| self.shared.nodes.begin_work(idle.instance.id);
            let Some(index) = self.idle.iter().rposition(has_room) else {
                self.queue.push_front(waiting);
                break;
            };
            let idle = self.idle.remove(index);
            self.hand(idle.instance, waiting, run);
        }
        let now = Instant::now();
        if self.look_again.is_some_and(|at| at > now) && !self.queue.is_empty() {
            return;
        }
        self.look_again = None;
        let lacking = self.queue.len().saturating_sub(self.starting);
        // Soon there is an image, and an instance of it starts sooner than one without.
        if lacking > 0 && !matches!(self.image, Image::InTheMaking) {
            self.start(lacking).await;
        }
    }

    /// Hands a call to an instance.
    fn hand(&mut self, mut instance: Box<Instance>, mut waiting: QueuedCall, running: Run) {
        self.busy += 1;
        instance.slot.set_idle(None, None);
        // The call may be of a version that was there when it came.
        waiting.call.action = self.action.clone();
        let (shared, outbox, code) =
            (Arc::clone(&self.shared), self.outbox.clone(), self.code.clone());
        let counted = self.counted.clone();
        tokio::spawn(async move {
            let (kind, took) = (instance.kind, instance.took);
            let is_awake = instance.thaw(&*shared.nodes).await;
            let waited = waiting.since.elapsed();
            let made = match is_awake {
                true => instance.make(&waiting.call, code.as_deref()).await,
                false => None,
            };
            let Some(made) = made else {
                // A function that has ended waits for nothing.
                let _ = outbox.send(Message::NotTaken(Box::new(waiting)));
                return;
            };
            let CallTimes { init, run } = made.spent;
            // What fails may take no time.
            let well = run.filter(|_| made.is_well);
            let faults = well.and_then(|run| counted.ran(kind, run));
            shared.metrics.starts.called(&CallPhases {
                start: kind,
                waited,
                took,
                init,
                run,
                faults,
            });
            counted.called(&made.response, Some(kind), made.times);
            let run_us = made.is_well.then_some(made.spent.run_us());
            let cold_us = init.map(|init| micros(took.whole + init));
            let instance = made.is_well.then_some(instance);
            // The caller hears of it later, so that the next call finds the instance.
            let _ = outbox.send(Message::CallFinished { instance, run_us, cold_us });
            shared.finish(&counted, waiting, kind, made);
            drop(running);
        });
    }

    /// Puts a call back that was not made, or gives it up.
    fn again(&mut self, mut waiting: QueuedCall, why: &str) {
        waiting.tries += 1;
        if waiting.tries < MOST_TRIES {
            self.queue.push_front(waiting);
        } else {
            self.give_up(waiting, why);
        }
    }

    fn give_up(&self, waiting: QueuedCall, why: &str) {
        self.shared.give_up(&self.counted, waiting, why);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
