//! A region with a living client, in which other clients die, and what must be true afterwards.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork::{Client, Mailbox, Metadata, Platform, Region, Timeout};

use crate::objects::{number, set_number};

pub const SLOTS: u64 = 4;
const REGION_BYTES: u64 = 2 << 20;
/// Every other message to the child takes two spans.
pub const RUN_BYTES: usize = 100_000;
const HELD: u64 = 100;
/// Holes are looked for once in 64 polls.
const POLLS: u32 = 70;

type Object = NonNull<u8>;

/// Whether regions have their metadata in node-local memory.
static IS_NODE_LOCAL: AtomicBool = AtomicBool::new(false);

/// Has regions that are created from now on keep their metadata there, or not.
pub fn place(is_node_local: bool) {
    IS_NODE_LOCAL.store(is_node_local, Ordering::SeqCst);
}

/// A region in a directory.
pub fn create(directory: &Path, bytes: u64) -> PathBuf {
    let path = directory.join("region");
    let metadata = match IS_NODE_LOCAL.load(Ordering::SeqCst) {
        true => Metadata::Node(directory.to_owned()),
        false => Metadata::Region,
    };
    Region::create_with(&path, bytes, false, &metadata).expect("a region");
    path
}

/// The region and its living client.
pub struct Stage {
    _directory: tempfile::TempDir,
    pub path: PathBuf,
    pub peer: Client,
    held: Vec<Object>,
    pub to_child: Mailbox,
    pub from_child: Mailbox,
    /// Number of the next message to the child.
    next: u64,
    /// Numbers of messages to the child that may not have been received.
    pub sent: Vec<u64>,
}

/// A client that is about to do something.
pub struct Actor<P: Platform> {
    pub client: Client<P>,
    pub to_child: Mailbox,
    pub from_child: Mailbox,
}

impl<P: Platform> Actor<P> {
    pub fn new(path: &std::path::Path) -> Actor<P> {
        let mut client = Client::<P>::open_on(path).expect("a client");
        let to_child = client.mailbox("to-child", SLOTS).expect("a mailbox");
        let from_child = client.mailbox("from-child", SLOTS).expect("a mailbox");
        Actor { client, to_child, from_child }
    }

    pub fn object(&mut self, content: u64) -> Object {
        let object = self.client.allocate(64).expect("an object");
        set_number(object, content);
        object
    }

    pub fn send(&mut self, object: Object) {
        let sent = self.client.send(self.from_child, object, Timeout::Poll).expect("a sender");
        assert!(sent, "no room");
    }
}

impl Stage {
    pub fn new() -> Stage {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = create(directory.path(), REGION_BYTES);
        let Actor { client: mut peer, to_child, from_child } = Actor::new(&path);
        let held = (0..HELD).map(|content| {
            let object = peer.allocate(64).expect("an object");
            set_number(object, content);
            object
        });
        let held = held.collect();
        let sent = Vec::new();
        Stage { _directory: directory, path, peer, held, to_child, from_child, next: 1000, sent }
    }

    /// Sends messages to the child until `count` are on their way or the mailbox is full.
    pub fn fill(&mut self, count: usize) -> Result<(), String> {
        while self.sent.len() < count {
            let bytes = if self.next.is_multiple_of(2) { RUN_BYTES } else { 64 };
            let object = self.peer.allocate(bytes).map_err(words)?;
            set_number(object, self.next);
            if !self.peer.send(self.to_child, object, Timeout::Poll).map_err(words)? {
                self.peer.free(object).map_err(words)?;
                break;
            }
            self.sent.push(self.next);
            self.next += 1;
        }
        Ok(())
    }

    /// What the living client does while a dead one has not been recovered.
    pub fn work(&mut self) -> Result<Vec<u64>, String> {
        let mut objects = Vec::new();
        for _ in 0..2000 {
            objects.push(self.peer.allocate(64).map_err(words)?);
        }
        for object in objects {
            set_number(object, u64::MAX);
            self.peer.free(object).map_err(words)?;
        }
        self.fill(usize::MAX)?;
        let received = self.receive_all()?;
        self.check_held()?;
        Ok(received)
    }

    /// Receives what the child has sent.
    pub fn receive_all(&mut self) -> Result<Vec<u64>, String> {
        receive_all(&mut self.peer, self.from_child)
    }

    fn check_held(&self) -> Result<(), String> {
        let is_kept = |(content, object): (u64, &Object)| number(*object) == content;
        let kept = (0..).zip(&self.held).filter(|held| is_kept(*held)).count();
        demand(kept as u64 == HELD, || {
            format!("{} objects of the peer changed", HELD - kept as u64)
        })
    }

    /// Everything is accounted for, both mailboxes work, and all free memory can be allocated once. The messages
    /// to the child are one of `expected`; returns which.
    pub fn verify(&mut self, expected: &[Vec<u64>]) -> Result<usize, String> {
        let check = self.peer.region().check().map_err(words)?;
        demand(check.is_clean() && check.owned == HELD, || format!("{check:?}"))?;
        let mut fresh: Actor<farfork::Node> = Actor::new(&self.path);
        let drained = receive_all(&mut fresh.client, self.to_child)?;
        self.sent.clear();
        let found = expected.iter().position(|expected| *expected == drained);
        let found = found.ok_or_else(|| format!("messages {drained:?}, not {expected:?}"))?;
        self.exchange(&mut fresh)?;
        self.take_everything(fresh)?;
        self.check_held()?;
        Ok(found)
    }

    /// Sends messages both ways, for more than a round of the slots.
    fn exchange(&mut self, fresh: &mut Actor<farfork::Node>) -> Result<(), String> {
        for round in 0..3 {
            let contents: Vec<u64> = (0..SLOTS).map(|slot| round * SLOTS + slot).collect();
            for content in &contents {
                let object = fresh.object(*content);
                let sent = fresh.client.send(fresh.from_child, object, Timeout::Poll);
                demand(sent.map_err(words)?, || "the mailbox of the peer is full".to_owned())?;
            }
            let received = self.receive_all()?;
            demand(received == contents, || format!("{received:?} instead of {contents:?}"))?;
            self.fill(SLOTS as usize)?;
            let received = receive_all(&mut fresh.client, fresh.to_child)?;
            let sent = std::mem::take(&mut self.sent);
            demand(received == sent, || format!("{received:?} instead of {sent:?}"))?;
        }
        Ok(())
    }

    fn take_everything(&mut self, mut fresh: Actor<farfork::Node>) -> Result<(), String> {
        let objects = fresh.client.region().check().map_err(words)?.bytes / 64;
        let mut all: HashSet<Object> = self.held.iter().copied().collect();
        let mut count = HELD;
        // The peer keeps spans of its own.
        let mut of_peer = Vec::new();
        while let Ok(object) = fresh.client.allocate(64) {
            set_number(object, u64::MAX);
            all.insert(object);
            count += 1;
        }
        while let Ok(object) = self.peer.allocate(64) {
            of_peer.push(object);
            all.insert(object);
            count += 1;
        }
        for object in of_peer {
            self.peer.free(object).map_err(words)?;
        }
        demand(count == objects && all.len() as u64 == count, || {
            format!("{count} objects at {} places, of {objects}", all.len())
        })
    }
}

pub fn receive_all<P: Platform>(client: &mut Client<P>, from: Mailbox) -> Result<Vec<u64>, String> {
    let (mut received, mut polls) = (Vec::new(), 0);
    while polls < POLLS {
        polls += 1;
        if let Some(object) = client.receive(from, Timeout::Poll).map_err(words)? {
            received.push(number(object));
            client.free(object).map_err(words)?;
            polls = 0;
        }
    }
    Ok(received)
}

pub fn words(error: farfork::ObjectsError) -> String {
    error.to_string()
}

pub fn demand(is_true: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if is_true { Ok(()) } else { Err(message()) }
}
