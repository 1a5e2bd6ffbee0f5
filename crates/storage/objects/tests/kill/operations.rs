//! What clients are doing when they are killed.

use std::path::Path;

use farfork::{Client, Platform, Region, Timeout};

use crate::child::{self, End, run_stepped};
use crate::platforms::{Counting, arm};
use crate::stage::{Actor, RUN_BYTES, SLOTS, Stage, demand, words};

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Allocate,
    Free,
    Send,
    Receive,
    /// Allocations that need new spans, and frees that give them back.
    ManyObjects,
    /// Becoming a client, its first mailbox, its first send and receive.
    Open,
    Close,
    /// Allocating whole spans.
    AllocateRun,
    /// Freeing whole spans that the peer allocated.
    FreeRun,
    /// Recovering another client, which died after so many stores of an operation.
    Recover {
        dead: Dead,
        stores: u64,
    },
}

/// What a client was doing that is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dead {
    Send,
    Receive,
    AllocateRun,
    FreeRun,
}

impl Dead {
    fn operation(self) -> Operation {
        match self {
            Dead::Send => Operation::Send,
            Dead::Receive => Operation::Receive,
            Dead::AllocateRun => Operation::AllocateRun,
            Dead::FreeRun => Operation::FreeRun,
        }
    }
}

/// Few instructions each.
pub const FAST: [Operation; 4] =
    [Operation::Allocate, Operation::Free, Operation::Send, Operation::Receive];
/// All.
pub const ALL: [Operation; 18] = [
    Operation::Allocate,
    Operation::Free,
    Operation::Send,
    Operation::Receive,
    Operation::ManyObjects,
    Operation::Open,
    Operation::Close,
    Operation::AllocateRun,
    Operation::FreeRun,
    Operation::Recover { dead: Dead::Send, stores: 1 },
    Operation::Recover { dead: Dead::Send, stores: 2 },
    Operation::Recover { dead: Dead::Send, stores: 3 },
    Operation::Recover { dead: Dead::Receive, stores: 1 },
    Operation::Recover { dead: Dead::Receive, stores: 2 },
    Operation::Recover { dead: Dead::AllocateRun, stores: 3 },
    Operation::Recover { dead: Dead::AllocateRun, stores: 6 },
    Operation::Recover { dead: Dead::FreeRun, stores: 2 },
    Operation::Recover { dead: Dead::FreeRun, stores: 3 },
];

/// Objects that the victim owns all the time.
const OWNED: u64 = 30;
/// Contents of messages from the child.
const MESSAGES: [u64; 3] = [1, 2, 3];

/// When to kill.
#[derive(Debug, Clone, Copy)]
pub enum Kill {
    /// After so many instructions.
    Instruction(u64),
    /// After so many stores to shared memory.
    Store(u64),
}

/// A client before its operation.
struct Prepared<P: Platform> {
    actor: Actor<P>,
    object: std::ptr::NonNull<u8>,
    /// Whole spans of the peer.
    run: Option<std::ptr::NonNull<u8>>,
}

fn prepare<P: Platform>(path: &Path, operation: Operation) -> Prepared<P> {
    let mut actor = Actor::<P>::new(path);
    for content in 0..OWNED {
        actor.object(content);
    }
    if operation == Operation::Receive {
        // Its role is taken, and the slots are not all full yet.
        let first = actor.client.receive(actor.to_child, Timeout::Poll).expect("a receiver");
        actor.client.free(first.expect("a message")).expect("its own");
    }
    if matches!(operation, Operation::Send | Operation::Close) {
        for content in &MESSAGES[..2] {
            let object = actor.object(*content);
            actor.send(object);
        }
    }
    let mut run = None;
    while operation == Operation::FreeRun && run.is_none() {
        let object = actor.client.receive(actor.to_child, Timeout::Poll).expect("a receiver");
        let object = object.expect("a run among the messages");
        match actor.client.usable_size(object).expect("its own") {
            64 => actor.client.free(object).expect("its own"),
            _ => run = Some(object),
        }
    }
    let object = actor.object(MESSAGES[2]);
    Prepared { actor, object, run }
}

fn operate<P: Platform>(prepared: Prepared<P>, operation: Operation, path: &Path) {
    let Prepared { mut actor, object, run } = prepared;
    match operation {
        Operation::Allocate => drop(actor.client.allocate(64)),
        Operation::Free => drop(actor.client.free(object)),
        Operation::Send => drop(actor.client.send(actor.from_child, object, Timeout::Poll)),
        Operation::Receive => drop(actor.client.receive(actor.to_child, Timeout::Poll)),
        Operation::AllocateRun => drop(actor.client.allocate(3 * RUN_BYTES / 2)),
        Operation::FreeRun => actor.client.free(run.expect("a run")).expect("its own"),
        Operation::ManyObjects => {
            let objects: Vec<_> = (0..3000).map(|_| actor.client.allocate(64)).collect();
            for object in objects {
                drop(actor.client.free(object.expect("an object")));
            }
        }
        Operation::Open => {
            let mut other = Client::<P>::open_on(path).expect("a client");
            let mailbox = other.mailbox("another", 8).expect("a mailbox");
            let object = other.allocate(64).expect("an object");
            other.send(mailbox, object, Timeout::Poll).expect("a sender");
            let object = other.receive(mailbox, Timeout::Poll).expect("a receiver");
            other.free(object.expect("a message")).expect("its own");
            std::mem::forget(other);
        }
        Operation::Close => return drop(actor),
        // Not by a client: it could take the dead one's id, and would have recovered it then.
        Operation::Recover { .. } => unreachable!("recovered without a client"),
    }
    std::mem::forget(actor);
}

/// Dies in the middle of an operation, after so many of its stores.
fn die(path: &Path, operation: Operation, stores: u64) -> Result<(), String> {
    let victim = child::start(|| {
        let prepared = prepare::<Counting>(path, operation);
        arm(stores);
        operate(prepared, operation, path);
    });
    child::end(victim).map(|_| ())
}

/// Kills a client in the middle of an operation, and verifies what is left. Returns how it ended, and whether
/// the operation had happened.
pub fn run<P: Platform + 'static>(
    stage: &mut Stage,
    operation: Operation,
    kill: Kill,
) -> Result<(End, bool), String> {
    let (did, dead) = match operation {
        Operation::Recover { dead, stores } => (dead.operation(), Some(stores)),
        _ => (operation, None),
    };
    stage.fill(if did == Operation::Receive || did == Operation::FreeRun { 3 } else { 1 })?;
    if let Some(stores) = dead {
        die(&stage.path, did, stores)?;
    }
    let before = stage.sent.clone();
    let path = stage.path.clone();
    let prepared = || prepare::<P>(&path, operation);
    let end = match (operation, kill) {
        (Operation::Recover { .. }, Kill::Store(stores) | Kill::Instruction(stores)) => {
            child::end(child::start(|| {
                let region = Region::<P>::open(&path).expect("a region");
                arm(stores);
                assert_eq!(region.recover().expect("a recovery"), 1);
            }))?
        }
        (_, Kill::Instruction(steps)) => {
            run_stepped(steps, prepared, |prepared| operate(prepared, operation, &path))?
        }
        (_, Kill::Store(stores)) => child::end(child::start(|| {
            let prepared = prepared();
            arm(stores);
            operate(prepared, operation, &path);
        }))?,
    };
    let mut received = stage.work()?;
    stage.peer.region().recover().map_err(words)?;
    received.extend(stage.receive_all()?);
    let is_sent = matches!(did, Operation::Send | Operation::Close);
    let least = if is_sent { 2 } else { 0 };
    demand(received == MESSAGES[..received.len()] && received.len() >= least, || {
        format!("the peer received {received:?}")
    })?;
    // What was taken before the operation, and then perhaps one more.
    let is_receive = did == Operation::Receive;
    let taken = match did {
        Operation::Receive => 1,
        // Up to the first run.
        Operation::FreeRun => {
            1 + before.iter().position(|sent| sent.is_multiple_of(2)).ok_or("no run")?
        }
        _ => 0,
    };
    let news = stage.sent[before.len()..].to_vec();
    demand(!news.is_empty() || before.len() as u64 == SLOTS, || "no room for the peer".to_owned())?;
    let of = |taken: usize| [&before[taken..], &news[..]].concat();
    let expected = if is_receive { vec![of(taken), of(taken + 1)] } else { vec![of(taken)] };
    let was_received = stage.verify(&expected)? == 1;
    Ok((end, was_received || received.len() == MESSAGES.len()))
}

/// Kills at every `stride`-th instruction or store from `first` on, until the operation finishes; returns how many
/// kills there were.
pub fn kill_everywhere<P: Platform + 'static>(
    stage: &mut Stage,
    operation: Operation,
    stride: u64,
    kill: fn(u64) -> Kill,
) -> Result<u64, String> {
    let (mut at, mut kills, mut had_happened) = (0, 0, false);
    loop {
        let said = |what: String| format!("{operation:?}, {:?}: {what}", kill(at));
        let (end, has_happened) = run::<P>(stage, operation, kill(at)).map_err(said)?;
        // Operations happen at one store: what has happened at one kill has at all later ones.
        let is_single = FAST.contains(&operation);
        demand(!is_single || has_happened || !had_happened, || "it was undone".to_owned())
            .map_err(said)?;
        had_happened |= has_happened;
        if end == End::Finished {
            let must = matches!(operation, Operation::Send | Operation::Receive);
            demand(!must || has_happened, || "it never happened".to_owned()).map_err(said)?;
            return Ok(kills);
        }
        kills += 1;
        at += stride;
    }
}
