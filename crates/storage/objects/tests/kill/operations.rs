//! What clients are doing when they are killed.

use std::path::Path;

use farfork::{Client, Platform, Region, Timeout};

use crate::child::{self, End, run_stepped};
use crate::platforms::{Counting, NoFault, arm};
use crate::stage::{Actor, SLOTS, Stage, demand, words};

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
    /// Recovering another client, which died after so many stores of a send or a receive.
    Recover {
        is_send: bool,
        stores: u64,
    },
}

/// Few instructions each.
pub const FAST: [Operation; 4] =
    [Operation::Allocate, Operation::Free, Operation::Send, Operation::Receive];
/// All.
pub const ALL: [Operation; 12] = [
    Operation::Allocate,
    Operation::Free,
    Operation::Send,
    Operation::Receive,
    Operation::ManyObjects,
    Operation::Open,
    Operation::Close,
    Operation::Recover { is_send: true, stores: 1 },
    Operation::Recover { is_send: true, stores: 2 },
    Operation::Recover { is_send: true, stores: 3 },
    Operation::Recover { is_send: false, stores: 1 },
    Operation::Recover { is_send: false, stores: 2 },
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
    let object = actor.object(MESSAGES[2]);
    Prepared { actor, object }
}

fn operate<P: Platform>(prepared: Prepared<P>, operation: Operation, path: &Path) {
    let Prepared { mut actor, object } = prepared;
    match operation {
        Operation::Allocate => drop(actor.client.allocate(64)),
        Operation::Free => drop(actor.client.free(object)),
        Operation::Send => drop(actor.client.send(actor.from_child, object, Timeout::Poll)),
        Operation::Receive => drop(actor.client.receive(actor.to_child, Timeout::Poll)),
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

/// Dies in the middle of a send (`true`) or a receive, after so many of its stores.
fn die(path: &Path, is_send: bool, stores: u64) -> Result<(), String> {
    let victim = child::start(|| {
        let operation = if is_send { Operation::Send } else { Operation::Receive };
        let prepared = prepare::<Counting<NoFault>>(path, operation);
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
    stage.fill(if operation == Operation::Receive { 3 } else { 1 })?;
    if let Operation::Recover { is_send, stores } = operation {
        stage.fill(if is_send { 1 } else { 3 })?;
        die(&stage.path, is_send, stores)?;
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
    let is_sent = matches!(
        operation,
        Operation::Send | Operation::Close | Operation::Recover { is_send: true, .. }
    );
    let least = if is_sent { 2 } else { 0 };
    demand(received == MESSAGES[..received.len()] && received.len() >= least, || {
        format!("the peer received {received:?}")
    })?;
    // What was taken before the operation, and then perhaps one more.
    let is_receive =
        matches!(operation, Operation::Receive | Operation::Recover { is_send: false, .. });
    let taken = usize::from(is_receive);
    let news = stage.sent[before.len()..].to_vec();
    demand(!news.is_empty() || before.len() as u64 == SLOTS, || "no room for the peer".to_owned())?;
    let of = |taken: usize| [&before[taken..], &news[..]].concat();
    let expected = if is_receive { vec![of(taken), of(taken + 1)] } else { vec![of(0)] };
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
