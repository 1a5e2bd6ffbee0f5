//! Structures that one client changes while others hold and read them.

use std::ptr::NonNull;

use farfork::words::Words;
use farfork::{Mailbox, Timeout};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{JoinHandle, spawn, yield_now};

use crate::machine;
use crate::world::{Client, Stage, act, life, pointer};

const SLOTS: u64 = 2;
const TRIES: u32 = 12;
/// References of each object.
const FIELDS: u16 = 2;

type Object = NonNull<u8>;

fn check<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Option<T> {
    result.map_err(|error| machine::fail(format!("{what}: {error}"))).ok()
}

/// A reference as it is in memory.
fn reference(client: &Client, object: Object, field: usize) -> u64 {
    let offset = object.addr().get() - client.region().header().address as usize;
    machine::memory().word(offset + 8 * field)
}

/// What a client that holds a structure can reach stays an object while it looks.
fn walk(client: &Client, object: Object, depth: u32) {
    for field in 0..usize::from(FIELDS) {
        let reference = reference(client, object, field);
        if reference == 0 {
            continue;
        }
        if let Some(next) = check("a reference", client.object(reference))
            && depth > 0
        {
            walk(client, next, depth - 1);
        }
    }
}

fn read(client: &mut Client, from: Mailbox) {
    for _ in 0..TRIES {
        let received = check("a receive", client.receive(from, Timeout::Poll)).flatten();
        let Some(root) = received else {
            yield_now();
            continue;
        };
        walk(client, root, 2);
        check("a release", client.release(root));
        return;
    }
}

fn write(client: &mut Client, to: &[Mailbox]) {
    let new = |client: &mut Client| check("an allocation", client.allocate_linkable(48, FIELDS));
    let Some(root) = new(client) else { return };
    let Some(child) = new(client) else { return };
    check("a link", client.link(root, root, 0, child));
    for to in to {
        check("a send", client.send_root(*to, root, Timeout::Poll));
    }
    if let Some(grandchild) = new(client) {
        check("a link", client.link(root, child, 1, grandchild));
    }
    if let Some(other) = new(client) {
        check("a change", client.change(root, root, 0, Some(other)));
        check("a second reference", client.change(root, root, 1, Some(other)));
        check("an unlink", client.unlink(root, root, 0));
    }
    if to.is_empty() {
        check("a free", client.free(root));
    } else {
        check("a look", client.collect(root));
        check("a release", client.release(root));
    }
}

fn play(stage: &Stage, deaths: bool) -> Result<(), String> {
    let mut clients: Vec<Client> = (0..3).map(|_| stage.client()).collect();
    let names = ["one", "other"];
    let open =
        |client: &mut Client| names.map(|name| client.mailbox(name, SLOTS).expect("a mailbox"));
    let boxes = clients.iter_mut().map(open).last().ok_or("no clients")?;
    let [writer, one, other] = clients.try_into().map_err(|_| "three clients")?;
    let mut lives = [None; 4];
    if deaths {
        lives[thread_rng().gen_range(0..2)] = life(120);
        lives[3] = life(60);
    }
    machine::explore();
    let mut tasks = vec![
        act(writer, lives[0], move |client| write(client, &boxes)),
        act(one, lives[1], move |client| read(client, boxes[0])),
        act(other, lives[2], move |client| read(client, boxes[1])),
    ];
    if deaths {
        tasks.push(stage.rescuer(lives[3]));
        tasks.push(stage.rescuer(None));
    }
    for task in tasks {
        task.join().map_err(|_| "a task ended by a panic")?;
    }
    stage.verify(|client| {
        for name in names {
            let from = client.mailbox(name, SLOTS).map_err(|error| error.to_string())?;
            for _ in 0..70 {
                if let Some(root) =
                    client.receive(from, Timeout::Poll).map_err(|error| error.to_string())?
                {
                    client.release(root).map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(())
    })
}

/// Joins all, and sees to it that nothing is left.
fn finish(stage: &Stage, tasks: Vec<JoinHandle<()>>) -> Result<(), String> {
    for task in tasks {
        task.join().map_err(|_| "a task ended by a panic")?;
    }
    stage.verify(|_| Ok(()))
}

/// A client that changes a structure of its own dies, and two processes recover it.
pub fn changes(stage: &Stage) -> Result<(), String> {
    let writer = stage.client();
    let life = life(80);
    machine::explore();
    let tasks = vec![
        act(writer, life, |client| write(client, &[])),
        stage.rescuer(None),
        stage.rescuer(None),
    ];
    finish(stage, tasks)
}

/// A root is received while it is sent.
pub fn sending(stage: &Stage) -> Result<(), String> {
    let mut clients = [stage.client(), stage.client()];
    let boxes = clients.each_mut().map(|client| client.mailbox("one", SLOTS).expect("a mailbox"));
    let [mut writer, reader] = clients;
    let root = writer.allocate_linkable(48, FIELDS).map_err(|error| error.to_string())?;
    let root = root.addr().get();
    machine::explore();
    let tasks = vec![
        act(writer, None, move |client| {
            check("a send", client.send_root(boxes[0], pointer(root), Timeout::Poll));
        }),
        act(reader, None, move |client| {
            while check("a receive", client.receive(boxes[1], Timeout::Poll)) == Some(None) {
                yield_now();
            }
        }),
    ];
    finish(stage, tasks)
}

/// The last two holds of a structure end at the same time.
pub fn releases(stage: &Stage) -> Result<(), String> {
    let mut clients = [stage.client(), stage.client()];
    let boxes = clients.each_mut().map(|client| client.mailbox("one", SLOTS).expect("a mailbox"));
    let [mut one, mut other] = clients;
    let words = |error: farfork::ObjectsError| error.to_string();
    let root = one.allocate_linkable(48, FIELDS).map_err(words)?;
    one.send_root(boxes[0], root, Timeout::Poll).map_err(words)?;
    other.receive(boxes[1], Timeout::Poll).map_err(words)?.ok_or("nothing came")?;
    let root = root.addr().get();
    machine::explore();
    let tasks = [one, other].map(|mut client| {
        spawn(move || {
            check("a release", client.release(pointer(root)));
            machine::set_ended();
            client
        })
    });
    let clients = tasks.map(|task| task.join().map_err(|_| "a task ended by a panic"));
    machine::end()?;
    // A client that closes looks once more, and would hide it.
    for client in &clients {
        let left = client.as_ref().map_err(|words| *words)?.region().check().map_err(words)?;
        if left.linked > 0 {
            return Err(format!("no client freed the structure: {left:?}"));
        }
    }
    drop(clients);
    stage.verify(|_| Ok(()))
}

/// One client changes a structure and gives it up while two others receive, read and release it.
pub fn sharing(stage: &Stage) -> Result<(), String> {
    play(stage, false)
}

/// The same; the writer or a reader dies, and two processes recover it, of which one dies, too.
pub fn recovery(stage: &Stage) -> Result<(), String> {
    play(stage, true)
}
