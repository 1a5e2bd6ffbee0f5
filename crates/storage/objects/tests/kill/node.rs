//! A node is lost: all its clients die at once, and what was in its memory is gone. What mailboxes name must be there
//! afterwards, and all else must be free.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use farfork::{Client, ClientId, Mailbox, Node, ObjectsError, Platform, Region, Timeout};

use crate::child::{self, End};
use crate::guards::{self, MONEY, pay_once};
use crate::objects::set_number;
use crate::platforms::{Counting, arm};
use crate::stage::{RUN_BYTES, SLOTS, create, demand, place, receive_all, words};
use crate::structures::{list, node, walk};

type Object = NonNull<u8>;

/// What a client does when the node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Allocate,
    Free,
    Send,
    /// An object of whole spans.
    SendRun,
    Receive,
    FreeRun,
    /// Allocations that need new spans.
    Many,
    Close,
    /// A list of its own as a shared structure.
    Share,
    /// A fifth object, at the end of a shared list that a mailbox holds, too.
    Link,
    /// All after the first object of that list.
    Unlink,
    /// A fifth object instead of all after the first one.
    Change,
    Release,
    /// A guarded operation, which is abandoned.
    Pay,
    /// The metadata is rebuilt, and the node is lost once more.
    Rebuild,
    /// The same, while a process has the lost metadata mapped, and tries to recover clients by it.
    RebuildBesideMapped,
    /// The same, and the lost metadata is where it was again.
    RebuildBesideFile,
}

impl Deed {
    /// Whether the process that rebuilds metadata is killed, not a client.
    fn is_rebuild(self) -> bool {
        matches!(self, Deed::Rebuild | Deed::RebuildBesideMapped | Deed::RebuildBesideFile)
    }
}

pub const ALL: [Deed; 17] = [
    Deed::Allocate,
    Deed::Free,
    Deed::Send,
    Deed::SendRun,
    Deed::Receive,
    Deed::FreeRun,
    Deed::Many,
    Deed::Close,
    Deed::Share,
    Deed::Link,
    Deed::Unlink,
    Deed::Change,
    Deed::Release,
    Deed::Pay,
    Deed::Rebuild,
    Deed::RebuildBesideMapped,
    Deed::RebuildBesideFile,
];

/// Messages to the client. Every other one takes two spans.
const MESSAGES: [u64; 4] = [1000, 1001, 1002, 1003];
/// Of the record of a shared structure.
const RECORD_BYTES: usize = 1216;
/// Stores of a change after which the client dies whose metadata is rebuilt.
const STORES_OF_CHANGE: u64 = 12;

/// A region without clients.
pub struct Ruin {
    _directory: tempfile::TempDir,
    path: PathBuf,
    /// Metadata of the first generation.
    oldest: PathBuf,
}

/// Handles of a client of the region.
struct Own<P: Platform> {
    client: Client<P>,
    /// To the client that dies, from it, lists, shared lists for it, shared lists of it.
    mailboxes: [Mailbox; 5],
}

const NAMES: [&str; 5] = ["to-child", "from-child", "lists", "down", "up"];

fn open<P: Platform>(path: &Path) -> Own<P> {
    let mut client = Client::<P>::open_on(path).expect("a client");
    let mailboxes = NAMES.map(|name| client.mailbox(name, SLOTS).expect("a mailbox"));
    Own { client, mailboxes }
}

impl<P: Platform> Own<P> {
    fn send(&mut self, mailbox: usize, bytes: usize, content: u64) {
        let object = self.client.allocate(bytes).expect("an object");
        set_number(object, content);
        self.send_object(mailbox, object);
    }

    fn send_object(&mut self, mailbox: usize, object: Object) {
        let sent = self.client.send(self.mailboxes[mailbox], object, Timeout::Poll);
        assert!(sent.expect("a sender"), "no room");
    }

    fn send_root(&mut self, mailbox: usize, root: Object) {
        let sent = self.client.send_root(self.mailboxes[mailbox], root, Timeout::Poll);
        assert!(sent.expect("a sender"), "no room");
    }

    fn receive(&mut self, mailbox: usize) -> Object {
        let received = self.client.receive(self.mailboxes[mailbox], Timeout::Poll);
        received.expect("a receiver").expect("a message")
    }
}

/// What the client that dies has.
struct Ready<P: Platform> {
    own: Own<P>,
    object: Object,
    run: Object,
    list: Object,
    shared: Vec<Object>,
    new: Object,
}

fn prepare<P: Platform>(path: &Path) -> (Own<P>, Ready<P>) {
    let mut peer = open::<P>(path);
    for content in MESSAGES {
        peer.send(0, if content % 2 == 1 { RUN_BYTES } else { 64 }, content);
    }
    let root = list(&mut peer.client)[0];
    peer.send_object(2, root);
    let root = list(&mut peer.client)[0];
    peer.send_root(2, root);
    peer.send_root(3, root);
    peer.client.transfer_writer(root, None).expect("the role");
    let mut own = open::<P>(path);
    let first = own.receive(0);
    own.client.free(first).expect("its own");
    own.send(1, 64, 1);
    own.send(1, 64, 2);
    let root = own.receive(3);
    let id = ClientId::new(own.client.id());
    own.client.transfer_writer(root, id).expect("the role");
    let mut shared = vec![root];
    while let reference @ 1.. = crate::objects::field(shared[shared.len() - 1], 0) {
        shared.push(own.client.object(reference).expect("an object"));
    }
    let object = own.client.allocate(64).expect("an object");
    let run = own.client.allocate(RUN_BYTES).expect("a run");
    [object, run].iter().for_each(|object| set_number(*object, 3));
    let list = list(&mut own.client)[0];
    let new = node(&mut own.client, 5);
    (peer, Ready { own, object, run, list, shared, new })
}

fn act<P: Platform + 'static>(ready: Ready<P>, deed: Deed) {
    let Ready { mut own, object, run, list, shared, new } = ready;
    let root = shared[0];
    match deed {
        Deed::Allocate => drop(own.client.allocate(64)),
        Deed::Free => own.client.free(object).expect("its own"),
        Deed::Send => own.send_object(1, object),
        Deed::SendRun => own.send_object(1, run),
        Deed::Receive => drop(own.receive(0)),
        Deed::FreeRun => own.client.free(run).expect("its own"),
        Deed::Many => (0..1500).for_each(|_| drop(own.client.allocate(64))),
        Deed::Close => return drop(own),
        Deed::Share => own.send_root(4, list),
        Deed::Link => own.client.link(root, shared[3], 0, new).expect("linked"),
        Deed::Unlink => own.client.unlink(root, root, 0).expect("unlinked"),
        Deed::Change | Deed::Rebuild | Deed::RebuildBesideMapped | Deed::RebuildBesideFile => {
            own.client.change(root, root, 0, Some(new)).expect("changed");
        }
        Deed::Release => own.client.release(root).expect("released"),
        Deed::Pay => pay_once(&mut own.client, [object, run]),
    }
    std::mem::forget(own);
}

impl Ruin {
    pub fn new() -> Ruin {
        place(true);
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = create(directory.path(), 2 << 20);
        let oldest = directory.path().join("oldest");
        let ruin = Ruin { _directory: directory, path, oldest };
        fs::hard_link(ruin.metadata(), &ruin.oldest).expect("a link");
        ruin
    }

    /// Where the metadata lies. Not while it is lost.
    fn metadata(&self) -> PathBuf {
        let info = Region::<Node>::open(&self.path).expect("a region").info().expect("facts");
        info.metadata.expect("node-local metadata").path
    }

    /// The file is missing, shorter, damaged, or that of an earlier generation.
    fn lose(&self, how: u64) -> io::Result<()> {
        let metadata = self.metadata();
        let file = || File::options().read(true).write(true).open(&metadata);
        match how % 4 {
            0 => fs::remove_file(&metadata),
            1 => file()?.set_len(1 << 20),
            2 => file()?.write_all_at(&[0xff], 33),
            _ => {
                fs::remove_file(&metadata)?;
                fs::hard_link(&self.oldest, &metadata)
            }
        }
    }

    /// All clients die after so many stores of a deed, and metadata is lost. Returns how the client ended.
    fn run<P: Platform + 'static>(&self, deed: Deed, stores: u64) -> Result<End, String> {
        let at = if deed.is_rebuild() { STORES_OF_CHANGE } else { stores };
        let mut end = child::end(child::start(|| {
            let (_peer, ready) = prepare::<Counting>(&self.path);
            arm(at);
            act(ready, deed);
            std::mem::forget(_peer);
        }))?;
        end = match deed {
            Deed::RebuildBesideMapped => self.rebuild_beside_mapped::<P>(stores)?,
            Deed::RebuildBesideFile => self.rebuild_beside_file::<P>(stores)?,
            _ => {
                self.lose(stores).map_err(failed)?;
                if deed == Deed::Rebuild { self.rebuild::<P>(stores)? } else { end }
            }
        };
        // Without kills, in a process of its own.
        demand(self.rebuild::<P>(u64::MAX)? == End::Finished, || "killed".to_owned())?;
        self.verify(deed)?;
        Ok(end)
    }

    fn rebuild_beside_mapped<P: Platform + 'static>(&self, stores: u64) -> Result<End, String> {
        let stale = Region::<Node>::open(&self.path).map_err(words)?;
        self.lose(0).map_err(failed)?;
        let end = self.rebuild::<P>(stores)?;
        // Refused, unless there was no store yet.
        let _ = stale.recover();
        Ok(end)
    }

    fn rebuild_beside_file<P: Platform + 'static>(&self, stores: u64) -> Result<End, String> {
        let (metadata, aside) = (self.metadata(), self.path.with_extension("aside"));
        fs::rename(&metadata, &aside).map_err(failed)?;
        let end = self.rebuild::<P>(stores)?;
        fs::rename(&aside, &metadata).map_err(failed)?;
        Ok(end)
    }

    fn rebuild<P: Platform + 'static>(&self, stores: u64) -> Result<End, String> {
        child::end(child::start(|| {
            arm(stores);
            drop(Region::<P>::open(&self.path).expect("a region"));
        }))
    }

    fn verify(&self, deed: Deed) -> Result<(), String> {
        let check = Region::<Node>::open(&self.path).and_then(|it| it.check()).map_err(words)?;
        demand(check.is_clean() && check.owned == 0, || format!("{check:?}"))?;
        let mut fresh = open::<Node>(&self.path);
        let [to, from, lists, down, up] = fresh.mailboxes;
        let found = receive_all(&mut fresh.client, to)?;
        let is_right = found == MESSAGES[1..] || deed == Deed::Receive && found == MESSAGES[2..];
        demand(is_right, || format!("messages to the client: {found:?}"))?;
        let found = receive_all(&mut fresh.client, from)?;
        let is_send = matches!(deed, Deed::Send | Deed::SendRun);
        let is_right = found == [1, 2] || is_send && found == [1, 2, 3];
        demand(is_right, || format!("messages of the client: {found:?}"))?;
        let whole = vec![1, 2, 3, 4];
        let found = take_lists(&mut fresh.client, lists)?;
        let changed = match deed {
            Deed::Link => vec![1, 2, 3, 4, 5],
            Deed::Unlink => vec![1],
            Deed::Change | Deed::Rebuild => vec![1, 5],
            _ => whole.clone(),
        };
        let is_right = found == [whole.clone(), whole.clone()] || found == [whole.clone(), changed];
        demand(is_right, || format!("lists: {found:?}"))?;
        let found = take_lists(&mut fresh.client, up)?;
        let is_right = found.is_empty() || deed == Deed::Share && found == [whole];
        demand(is_right, || format!("lists of the client: {found:?}"))?;
        demand(take_lists(&mut fresh.client, down)?.is_empty(), || "received twice".to_owned())?;
        let receipts = receipts(&mut fresh.client)?;
        let is_right = receipts.is_empty() || deed == Deed::Pay && receipts == [MONEY];
        demand(is_right, || format!("receipts: {receipts:?}"))?;
        if deed == Deed::Pay {
            pay_again(&mut fresh.client)?;
        }
        drop(fresh);
        self.exchange()
    }

    /// An object and a list, and perhaps what the dead client shared.
    fn receive_leavings(&self, object: Object) -> Result<(), String> {
        let mut fresh = open::<Node>(&self.path);
        let received = fresh.receive(1);
        demand(received == object, || "another object was received".to_owned())?;
        fresh.client.free(object).map_err(words)?;
        let [_, _, lists, _, up] = fresh.mailboxes;
        let found = take_lists(&mut fresh.client, lists)?;
        demand(found == [[1, 2, 3, 4]], || format!("lists: {found:?}"))?;
        take_lists(&mut fresh.client, up)?;
        drop(fresh);
        let check = Region::<Node>::open(&self.path).and_then(|it| it.check()).map_err(words)?;
        let is_free = check.is_clean() && check.bytes_free == check.bytes;
        demand(is_free, || format!("{check:?}"))
    }

    /// All mailboxes work, and all memory is free.
    fn exchange(&self) -> Result<(), String> {
        let (mut one, mut other) = (open::<Node>(&self.path), open::<Node>(&self.path));
        for (mailbox, name) in NAMES.into_iter().enumerate() {
            for round in 0..3 {
                let contents: Vec<u64> = (0..SLOTS).map(|slot| round * SLOTS + slot).collect();
                contents.iter().for_each(|content| one.send(mailbox, 64, *content));
                let at = other.mailboxes[mailbox];
                let received = receive_all(&mut other.client, at)?;
                demand(received == contents, || {
                    format!("{name}: {received:?} instead of {contents:?}")
                })?;
            }
        }
        drop(other);
        let check = one.client.region().check().map_err(words)?;
        let is_free = check.bytes_owned + check.bytes_in_mailboxes + check.bytes_linked == 0;
        demand(check.is_clean() && is_free, || format!("{check:?}"))?;
        let Own { mut client, .. } = one;
        client.allocate(check.bytes as usize).map_err(words)?;
        client.region().check().map(drop).map_err(words)
    }
}

fn receipts(client: &mut Client) -> Result<Vec<u64>, String> {
    let mailbox = client.mailbox("receipts", guards::SLOTS).map_err(words)?;
    receive_all(client, mailbox)
}

/// The locks of an operation that was abandoned are free.
fn pay_again(client: &mut Client) -> Result<(), String> {
    let accounts = [(); 2].map(|()| client.allocate(64).expect("an object"));
    pay_once(client, accounts);
    let receipts = receipts(client)?;
    demand(receipts == [MONEY], || format!("then {receipts:?}"))
}

fn failed(error: io::Error) -> String {
    error.to_string()
}

/// Receives lists, and gives them back.
fn take_lists(client: &mut Client, from: Mailbox) -> Result<Vec<Vec<u64>>, String> {
    let mut lists = Vec::new();
    for _ in 0..200 {
        let Some(root) = client.receive(from, Timeout::Poll).map_err(words)? else { continue };
        lists.push(walk(client, root)?);
        match client.release(root) {
            Ok(()) => {}
            Err(_) => client.free(root).map_err(words)?,
        }
    }
    Ok(lists)
}

/// Loses the node at every `stride`-th store until the deed is done; returns how many losses there were.
pub fn lose_everywhere<P: Platform + 'static>(deed: Deed, stride: usize) -> Result<u64, String> {
    let ruin = Ruin::new();
    for (losses, at) in (0..).zip((0..).step_by(stride)) {
        let said = |what: String| format!("{deed:?}, after {at} stores: {what}");
        if ruin.run::<P>(deed, at).map_err(said)? == End::Finished {
            return Ok(losses);
        }
    }
    unreachable!("a deed has an end")
}

/// A client dies while it shares a structure, at each store. Another one gets the memory in which the record was to be, sends it
/// as it is, and the node is lost: the message is an object, not a structure. Returns the kills, and in how many of them the
/// memory had begun to look like a record.
pub fn sends_leavings<P: Platform + 'static>() -> Result<(u64, u64), String> {
    let ruin = Ruin::new();
    let (mut kills, mut likely) = (0, 0);
    loop {
        let end = child::end(child::start(|| {
            let mut own = open::<P>(&ruin.path);
            let root = list(&mut own.client)[0];
            arm(kills);
            own.send_root(4, root);
            std::mem::forget(own);
        }))?;
        if end == End::Finished {
            return Ok((kills, likely));
        }
        kills += 1;
        // It takes the same places, in the same order.
        let mut heir = open::<Node>(&ruin.path);
        let root = list(&mut heir.client)[0];
        let object = heir.client.allocate(RECORD_BYTES).map_err(words)?;
        likely += u64::from(crate::objects::first(object) >> 63 == 1);
        heir.send_object(1, object);
        heir.send_object(2, root);
        drop(heir);
        ruin.lose(kills).map_err(failed)?;
        demand(ruin.rebuild::<P>(u64::MAX)? == End::Finished, || "killed".to_owned())?;
        let said = |what: String| format!("after {} stores: {what}", kills - 1);
        ruin.receive_leavings(object).map_err(said)?;
    }
}

/// A process that mapped metadata which was lost and rebuilt does nothing with it.
pub fn forgets_the_lost<P: Platform + 'static>() -> Result<(), String> {
    let ruin = Ruin::new();
    let stale = Region::<Node>::open(&ruin.path).map_err(words)?;
    let begin_and_die = || {
        child::end(child::start(|| {
            let mut own = open::<P>(&ruin.path);
            own.send(1, 64, 7);
            std::mem::forget(own);
        }))
    };
    begin_and_die()?;
    ruin.lose(0).map_err(failed)?;
    begin_and_die()?;
    let is_refused = |error: Option<ObjectsError>| {
        let is_it = matches!(error, Some(ObjectsError::MetadataReplaced { .. }));
        demand(is_it, || format!("{error:?}"))
    };
    is_refused(stale.recover().err())?;
    is_refused(stale.check().err())?;
    is_refused(stale.info().err())?;
    is_refused(Region::<Node>::open(&ruin.path).err())?;
    drop(stale);
    let region = Region::<Node>::open(&ruin.path).map_err(words)?;
    let check = region.check().map_err(words)?;
    let is_right = check.is_clean() && check.clients_recovered == 1 && check.in_mailboxes == 2;
    demand(is_right, || format!("{check:?}"))
}
