//! Clients that die while they change, pass on or free structures.

use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use farfork::{Client, ClientId, Mailbox, Platform, Region, Timeout};

use crate::child::{self, End, run_stepped};
use crate::objects::{field, node_number, set_node_number};
use crate::operations::Kill;
use crate::platforms::{Counting, arm};
use crate::stage::{create, demand, words};

type Object = NonNull<u8>;

/// What a client does when it is killed. Its list is 1, 2, 3, 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Allocate,
    /// A new last object.
    Link,
    /// All after the first one.
    Unlink,
    /// The second object instead of the first's next one.
    Change,
    /// The whole list, which is its own.
    Free,
    /// The list as a shared structure, for the first time.
    Share,
    /// A shared list from the peer.
    Receive,
    /// As the last one.
    Release,
    /// All after the first one, while the peer reads.
    UnlinkShared,
    /// What was unlinked.
    Collect,
    /// Recovering another client that died after so many stores of a deed.
    Recover {
        dead: &'static Deed,
        stores: u64,
    },
}

pub const ALL: [Deed; 19] = [
    Deed::Allocate,
    Deed::Link,
    Deed::Unlink,
    Deed::Change,
    Deed::Free,
    Deed::Share,
    Deed::Receive,
    Deed::Release,
    Deed::UnlinkShared,
    Deed::Collect,
    Deed::Recover { dead: &Deed::Link, stores: 7 },
    Deed::Recover { dead: &Deed::Unlink, stores: 10 },
    Deed::Recover { dead: &Deed::Unlink, stores: 20 },
    Deed::Recover { dead: &Deed::Free, stores: 12 },
    Deed::Recover { dead: &Deed::Share, stores: 170 },
    Deed::Recover { dead: &Deed::Receive, stores: 2 },
    Deed::Recover { dead: &Deed::Release, stores: 2 },
    Deed::Recover { dead: &Deed::Release, stores: 20 },
    Deed::Recover { dead: &Deed::UnlinkShared, stores: 10 },
];

/// Few instructions each.
pub const FAST: [Deed; 3] = [Deed::Allocate, Deed::Link, Deed::Receive];

/// A region with a peer that lives.
pub struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
    peer: Client,
    down: Mailbox,
    up: Mailbox,
}

impl Place {
    pub fn new() -> Place {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = create(directory.path(), 2 << 20);
        let (peer, down, up) = open::<farfork::Node>(&path);
        Place { _directory: directory, path, peer, down, up }
    }
}

fn open<P: Platform>(path: &Path) -> (Client<P>, Mailbox, Mailbox) {
    let mut client = Client::<P>::open_on(path).expect("a client");
    let down = client.mailbox("down", 4).expect("a mailbox");
    let up = client.mailbox("up", 4).expect("a mailbox");
    (client, down, up)
}

pub fn node<P: Platform>(client: &mut Client<P>, number: u64) -> Object {
    let object = client.allocate_linkable(24, 2).expect("an object");
    set_node_number(object, number);
    object
}

pub fn list<P: Platform>(client: &mut Client<P>) -> Vec<Object> {
    let objects: Vec<_> = (1..=4).map(|number| node(client, number)).collect();
    for pair in objects.windows(2).rev() {
        client.link(pair[0], pair[0], 0, pair[1]).expect("linked");
    }
    objects
}

pub fn walk<P: Platform>(client: &Client<P>, root: Object) -> Result<Vec<u64>, String> {
    let (mut numbers, mut at) = (Vec::new(), Some(root));
    while let Some(object) = at {
        numbers.push(node_number(object));
        demand(numbers.len() < 10, || format!("a list without an end: {numbers:?}"))?;
        let reference = field(object, 0);
        at = match reference {
            0 => None,
            _ => Some(client.object(reference).map_err(words)?),
        };
    }
    Ok(numbers)
}

/// A client before its deed.
struct Ready<P: Platform> {
    client: Client<P>,
    down: Mailbox,
    up: Mailbox,
    objects: Vec<Object>,
    new: Option<Object>,
}

fn receive<P: Platform>(client: &mut Client<P>, down: Mailbox) -> Vec<Object> {
    let root = client.receive(down, Timeout::Poll).expect("a receiver").expect("a root");
    let mut objects = vec![root];
    while let reference @ 1.. = field(objects[objects.len() - 1], 0) {
        objects.push(client.object(reference).expect("an object"));
    }
    objects
}

fn prepare<P: Platform>(path: &Path, deed: Deed) -> Ready<P> {
    let (mut client, down, up) = open::<P>(path);
    let own = ClientId::new(client.id());
    let objects = match deed {
        Deed::Receive => {
            // The second message is received; the first one makes the client the receiver.
            let first = client.receive(down, Timeout::Poll).expect("a receiver");
            client.free(first.expect("a message")).expect("its own");
            Vec::new()
        }
        Deed::Release | Deed::UnlinkShared | Deed::Collect => receive(&mut client, down),
        _ => list(&mut client),
    };
    if matches!(deed, Deed::UnlinkShared | Deed::Collect) {
        client.transfer_writer(objects[0], own).expect("the role");
    }
    if deed == Deed::Collect {
        client.unlink(objects[0], objects[0], 0).expect("unlinked");
    }
    let new = matches!(deed, Deed::Link | Deed::Change).then(|| node(&mut client, 5));
    Ready { client, down, up, objects, new }
}

fn act<P: Platform>(ready: Ready<P>, deed: Deed) {
    let Ready { mut client, down, up, objects, new } = ready;
    let root = objects.first().copied();
    let done = match (deed, root) {
        (Deed::Allocate, _) => client.allocate_linkable(24, 2).map(drop),
        (Deed::Link, Some(root)) => client.link(root, objects[3], 0, new.expect("one")),
        (Deed::Change, Some(root)) => client.change(root, root, 0, new),
        (Deed::Unlink | Deed::UnlinkShared, Some(root)) => client.unlink(root, root, 0),
        (Deed::Free, Some(root)) => client.free(root),
        (Deed::Share, Some(root)) => client.send_root(up, root, Timeout::Poll).map(drop),
        (Deed::Receive, _) => client.receive(down, Timeout::Poll).map(drop),
        (Deed::Release, Some(root)) => client.release(root),
        (Deed::Collect, Some(root)) => client.collect(root).map(drop),
        _ => unreachable!("recovered without a client"),
    };
    done.expect("no error");
    std::mem::forget(client);
}

impl Place {
    /// What the child needs from the peer. Returns the root that the peer goes on holding.
    fn provide(&mut self, deed: Deed) -> Result<Option<Object>, String> {
        if !matches!(deed, Deed::Receive | Deed::Release | Deed::UnlinkShared | Deed::Collect) {
            return Ok(None);
        }
        let peer = &mut self.peer;
        if deed == Deed::Receive {
            let first = node(peer, 0);
            demand(peer.send(self.down, first, Timeout::Poll).map_err(words)?, || "full".into())?;
        }
        let root = list(peer)[0];
        let is_sent = peer.send_root(self.down, root, Timeout::Poll).map_err(words)?;
        demand(is_sent, || "full".to_owned())?;
        peer.transfer_writer(root, None).map_err(words)?;
        if matches!(deed, Deed::Release | Deed::Collect) {
            peer.release(root).map_err(words)?;
            return Ok(None);
        }
        Ok(Some(root))
    }

    fn kill<P: Platform + 'static>(&mut self, deed: Deed, kill: Kill) -> Result<End, String> {
        let path = self.path.clone();
        match (deed, kill) {
            (Deed::Recover { .. }, Kill::Store(stores) | Kill::Instruction(stores)) => {
                child::end(child::start(|| {
                    let region = Region::<P>::open(&path).expect("a region");
                    arm(stores);
                    assert_eq!(region.recover().expect("a recovery"), 1);
                }))
            }
            (_, Kill::Instruction(steps)) => {
                run_stepped(steps, || prepare::<P>(&path, deed), |ready| act(ready, deed))
            }
            (_, Kill::Store(stores)) => child::end(child::start(|| {
                let ready = prepare::<P>(&path, deed);
                arm(stores);
                act(ready, deed);
            })),
        }
    }

    /// The living peer works before and after the dead one is recovered; then everything must be accounted for.
    fn run<P: Platform + 'static>(&mut self, deed: Deed, kill: Kill) -> Result<End, String> {
        let did = if let Deed::Recover { dead, .. } = deed { *dead } else { deed };
        let held = self.provide(did)?;
        if let Deed::Recover { dead, stores } = deed {
            let path = self.path.clone();
            child::end(child::start(|| {
                let ready = prepare::<Counting>(&path, *dead);
                arm(stores);
                act(ready, *dead);
            }))?;
        }
        let end = self.kill::<P>(deed, kill)?;
        self.take_all()?;
        if let Some(root) = held {
            let found = walk(&self.peer, root)?;
            let is_right = found == [1, 2, 3, 4] || did == Deed::UnlinkShared && found == [1];
            demand(is_right, || format!("the shared list is {found:?}"))?;
        }
        self.fill()?;
        self.peer.region().recover().map_err(words)?;
        self.take_all()?;
        let mut fresh = open::<farfork::Node>(&self.path);
        take_all(&mut fresh.0, fresh.1)?;
        drop(fresh);
        if let Some(root) = held {
            let id = ClientId::new(self.peer.id());
            self.peer.transfer_writer(root, id).map_err(words)?;
            self.peer.change(root, root, 0, None).map_err(words)?;
            self.peer.release(root).map_err(words)?;
        }
        let check = self.peer.region().check().map_err(words)?;
        demand(check.is_clean() && check.bytes_free == check.bytes, || format!("{check:?}"))?;
        // All free memory can be allocated.
        let whole = self.peer.allocate(check.bytes as usize).map_err(words)?;
        self.peer.free(whole).map_err(words)?;
        Ok(end)
    }

    /// The peer takes all memory that it can get, for which it recovers the dead one at last, and keeps what is its own.
    fn fill(&mut self) -> Result<(), String> {
        let mut own = Vec::new();
        while let Ok(object) = self.peer.allocate_linkable(24, 2) {
            own.push(object);
            set_node_number(object, own.len() as u64);
        }
        let is_kept = |(number, object): (u64, &Object)| node_number(*object) == number;
        let kept = (1..).zip(&own).filter(|pair| is_kept(*pair)).count();
        demand(kept == own.len() && kept > 1000, || {
            format!("{kept} of {} objects are the peer's alone", own.len())
        })?;
        own.into_iter().try_for_each(|object| self.peer.free(object)).map_err(words)
    }

    fn take_all(&mut self) -> Result<(), String> {
        take_all(&mut self.peer, self.up)
    }
}

/// Receives everything; lists must be whole.
fn take_all(client: &mut Client, from: Mailbox) -> Result<(), String> {
    for _ in 0..200 {
        let Some(root) = client.receive(from, Timeout::Poll).map_err(words)? else { continue };
        let found = walk(client, root)?;
        demand(found == [0] || found == [1, 2, 3, 4], || format!("received {found:?}"))?;
        match client.release(root) {
            Ok(()) => {}
            Err(_) => client.free(root).map_err(words)?,
        }
    }
    Ok(())
}

/// Kills at every `stride`-th instruction or store until the deed is done; returns how many kills there were.
pub fn kill_everywhere<P: Platform + 'static>(
    deed: Deed,
    stride: usize,
    kill: fn(u64) -> Kill,
) -> Result<u64, String> {
    let mut place = Place::new();
    for (kills, at) in (0..).zip((0..).step_by(stride)) {
        let said = |what: String| format!("{deed:?}, {:?}: {what}", kill(at));
        if place.run::<P>(deed, kill(at)).map_err(said)? == End::Finished {
            return Ok(kills);
        }
    }
    unreachable!("a deed has an end")
}
