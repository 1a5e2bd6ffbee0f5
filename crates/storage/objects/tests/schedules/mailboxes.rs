//! Objects that are sent, received, freed by another client, and allocated again.

use std::sync::{Arc, Mutex, PoisonError};

use farfork::Timeout;
use shuttle::rand::{Rng, thread_rng};

use crate::machine;
use crate::world::{Client, Stage, act, allocate, drain, free, life, receive, send};

const SLOTS: u64 = 2;
const MESSAGES: u64 = 4;
/// Two fit in a span, so that what others free is soon allocated again.
const BYTES: usize = 32 << 10;
const TRIES: u32 = 12;

/// What happened, for the end.
#[derive(Default)]
struct Story {
    begun: u64,
    done: u64,
    received: Vec<u64>,
}

type Shared = Arc<Mutex<Story>>;

fn note(story: &Shared, change: impl FnOnce(&mut Story)) {
    change(&mut story.lock().unwrap_or_else(PoisonError::into_inner));
}

fn produce(client: &mut Client, story: &Shared) {
    let to = client.mailbox("box", SLOTS).expect("a mailbox");
    for content in 0..MESSAGES {
        let Some(object) = allocate(client, BYTES, content) else { return };
        note(story, |story| story.begun += 1);
        if !send(client, to, object, TRIES, Timeout::Poll) {
            note(story, |story| story.begun -= 1);
            return free(client, object);
        }
        note(story, |story| story.done += 1);
    }
}

fn consume(client: &mut Client, story: &Shared) {
    let from = client.mailbox("box", SLOTS).expect("a mailbox");
    for _ in 0..TRIES {
        match receive(client, from, Timeout::Poll) {
            Some((object, content)) => {
                note(story, |story| story.received.push(content));
                free(client, object);
            }
            None => shuttle::thread::yield_now(),
        }
    }
}

fn contend(client: &mut Client) {
    let objects: Vec<usize> = (0..3).filter_map(|_| allocate(client, BYTES, u64::MAX)).collect();
    objects.into_iter().for_each(|object| free(client, object));
    // Whole spans.
    if let Some(object) = allocate(client, 100_000, u64::MAX) {
        free(client, object);
    }
}

/// Each message is there once and in order, but for one that a receiver died with.
fn judge(story: &Story, drained: &[u64], may_lose: bool) -> Result<(), String> {
    let all: Vec<u64> = story.received.iter().chain(drained).copied().collect();
    let sent = [story.done, story.begun];
    let is_right = sent.iter().any(|sent| {
        let whole: Vec<u64> = (0..*sent).collect();
        let at = story.received.len();
        let mut without = whole.clone();
        if at < without.len() {
            without.remove(at);
        }
        all == whole || may_lose && all == without
    });
    let words = || {
        format!("{} to {} sent, received {:?}, left {drained:?}", sent[0], sent[1], story.received)
    };
    if is_right { Ok(()) } else { Err(words()) }
}

fn play(stage: &Stage, deaths: bool) -> Result<(), String> {
    let story = Shared::default();
    let mut clients: Vec<Client> = (0..3).map(|_| stage.client()).collect();
    for client in &mut clients {
        client.mailbox("box", SLOTS).expect("a mailbox");
    }
    let [sender, receiver, other] = clients.try_into().map_err(|_| "three clients")?;
    let mut lives = [None; 3];
    if deaths {
        lives[thread_rng().gen_range(0..2)] = life(40);
        lives[2] = life(30);
    }
    machine::explore();
    let (of_sender, of_receiver) = (Arc::clone(&story), Arc::clone(&story));
    let mut tasks = vec![
        act(sender, lives[0], move |client| produce(client, &of_sender)),
        act(receiver, lives[1], move |client| consume(client, &of_receiver)),
    ];
    match deaths {
        false => tasks.push(act(other, None, contend)),
        true => {
            drop(other);
            tasks.extend([stage.rescuer(lives[2]), stage.rescuer(None)]);
        }
    }
    for task in tasks {
        task.join().map_err(|_| "a task ended by a panic")?;
    }
    stage.verify(|client| {
        let from = client.mailbox("box", SLOTS).map_err(|error| error.to_string())?;
        let drained = drain(client, from);
        works(client)?;
        let story = story.lock().unwrap_or_else(PoisonError::into_inner);
        judge(&story, &drained, lives[1].is_some())
    })
}

/// Messages pass through the mailbox again, for more than a round of its slots.
fn works(client: &mut Client) -> Result<(), String> {
    let both = client.mailbox("box", SLOTS).map_err(|error| error.to_string())?;
    for content in 0..=SLOTS {
        let object = allocate(client, 64, content).ok_or("no memory")?;
        if !send(client, both, object, 1, Timeout::Poll) {
            return Err("no room in an empty mailbox".to_owned());
        }
        let received = drain(client, both);
        if received != [content] {
            return Err(format!("received {received:?} instead of {content}"));
        }
    }
    Ok(())
}

/// Three clients; the third one takes memory away and gives it back.
pub fn exchange(stage: &Stage) -> Result<(), String> {
    play(stage, false)
}

/// A sender or a receiver dies, and two processes recover it, of which one dies, too.
pub fn recovery(stage: &Stage) -> Result<(), String> {
    play(stage, true)
}

/// Both sides sleep until the other one wakes them.
pub fn waiting(stage: &Stage) -> Result<(), String> {
    let mut clients = [stage.client(), stage.client()];
    let boxes = clients.each_mut().map(|client| client.mailbox("box", 1).expect("a mailbox"));
    let [sender, receiver] = clients;
    machine::explore();
    let late = move |client: &Client| {
        let late = client.late_wakes(boxes[0]);
        if late > 0 {
            machine::fail(format!("client {} was not woken {late} times", client.id()));
        }
    };
    let tasks = [
        act(sender, None, move |client| {
            for content in 0..3 {
                let object = allocate(client, 64, content).expect("an object");
                send(client, boxes[0], object, 1, Timeout::Never);
            }
            late(client);
        }),
        act(receiver, None, move |client| {
            for expected in 0..3 {
                match receive(client, boxes[1], Timeout::Never) {
                    Some((object, content)) if content == expected => free(client, object),
                    other => machine::fail(format!("{other:?} instead of {expected}")),
                }
            }
            late(client);
        }),
    ];
    for task in tasks {
        task.join().map_err(|_| "a task ended by a panic")?;
    }
    stage.verify(|_| Ok(()))
}
