//! Structures: objects that refer to each other, shared by their roots.
#![allow(unsafe_code)] // reason: reads and writes objects

use std::path::PathBuf;
use std::ptr::NonNull;

use farfork::{Check, Client, ClientId, Mailbox, ObjectsError, Region, Timeout};
use tempfile::TempDir;

type Object = NonNull<u8>;

fn region() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 2 << 20).expect("a region");
    (directory, path)
}

/// An object with two references, and a number after them.
fn object(client: &mut Client, number: u64) -> Object {
    let object = client.allocate_linkable(24, 2).expect("an object");
    // SAFETY: an object of 24 bytes.
    unsafe { object.cast::<u64>().add(2).write(number) };
    object
}

fn number(object: Object) -> u64 {
    // SAFETY: as above.
    unsafe { object.cast::<u64>().add(2).read() }
}

fn field(client: &Client, object: Object, field: usize) -> Option<Object> {
    // SAFETY: as above.
    let reference = unsafe { object.cast::<u64>().add(field).read() };
    (reference != 0).then(|| client.object(reference).expect("an object of this region"))
}

/// A list of these numbers by references 0.
fn list(client: &mut Client, numbers: &[u64]) -> (Object, Vec<Object>) {
    let objects: Vec<_> = numbers.iter().map(|number| object(client, *number)).collect();
    for pair in objects.windows(2).rev() {
        client.link(pair[0], pair[0], 0, pair[1]).expect("a link of the own part");
    }
    (objects[0], objects)
}

fn walk(client: &Client, root: Object) -> Vec<u64> {
    std::iter::successors(Some(root), |at| field(client, *at, 0)).map(number).collect()
}

fn check(client: &Client) -> Check {
    let check = client.region().check().expect("a check");
    assert!(check.is_clean(), "{check:?}");
    check
}

fn pass(from: &mut Client, to: &mut Client, root: Object) -> Mailbox {
    let out = from.mailbox("m", 4).expect("a mailbox");
    let into = to.mailbox("m", 4).expect("a mailbox");
    assert!(from.send_root(out, root, Timeout::Poll).expect("a sender"));
    assert_eq!(to.receive(into, Timeout::Poll).expect("a receiver"), Some(root));
    out
}

#[test]
fn unlinked_objects_are_freed_with_what_only_they_refer_to() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let (root, objects) = list(&mut client, &[1, 2, 3, 4]);
    assert_eq!((walk(&client, root), check(&client).linked), (vec![1, 2, 3, 4], 3));
    // A second reference keeps the last one.
    client.link(root, root, 1, objects[3]).expect("linked");
    client.unlink(root, objects[0], 0).expect("unlinked");
    assert_eq!((walk(&client, root), check(&client).linked), (vec![1], 1));
    let other = object(&mut client, 9);
    client.change(root, root, 1, Some(other)).expect("changed");
    assert_eq!((field(&client, root, 1), check(&client).linked), (Some(other), 1));
    client.free(root).expect("its own");
    let check = check(&client);
    assert_eq!((check.linked, check.owned, check.bytes_free), (0, 0, check.bytes));
}

#[test]
fn a_long_list_is_freed_without_recursion() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let (root, _) = list(&mut client, &(0..20_000).collect::<Vec<_>>());
    assert_eq!(walk(&client, root).len(), 20_000);
    drop(client);
    let client = Client::open(&path).expect("a client");
    let check = check(&client);
    assert_eq!(check.bytes_free, check.bytes, "closing frees structures");
}

#[test]
fn a_structure_is_sent_whole() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let (root, _) = list(&mut one, &[1, 2, 3]);
    let out = one.mailbox("m", 4).expect("a mailbox");
    assert!(one.send(out, root, Timeout::Poll).expect("a sender"));
    assert!(one.unlink(root, root, 0).is_err(), "no longer its own");
    drop(one);
    let into = other.mailbox("m", 4).expect("a mailbox");
    let received = other.receive(into, Timeout::Poll).expect("a receiver").expect("a root");
    assert_eq!(walk(&other, received), [1, 2, 3]);
    other.unlink(received, received, 0).expect("its own now");
    assert_eq!(check(&other).linked, 0);
}

#[test]
fn a_shared_structure_lives_as_long_as_it_is_held() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let (root, objects) = list(&mut one, &[1, 2, 3]);
    let out = pass(&mut one, &mut other, root);
    // What a reader may read stays, although nothing refers to it.
    one.unlink(root, objects[0], 0).expect("the writer");
    assert_eq!((walk(&other, root), number(objects[2])), (vec![1], 3));
    assert!(!one.collect(root).expect("the writer"), "the other one reads");
    assert_eq!(check(&one).linked, 4, "root, record, two unlinked");
    let again = one.link(root, root, 0, objects[1]).expect_err("unlinked before");
    assert!(again.to_string().contains("was unlinked"), "{again}");
    // A message holds it, too.
    assert!(one.send_root(out, root, Timeout::Poll).expect("a sender"));
    other.release(root).expect("a holder");
    assert!(!one.collect(root).expect("the writer"), "the message holds it");
    one.release(root).expect("a holder");
    assert!(one.release(root).is_err() && other.release(root).is_err());
    assert_eq!(check(&one).linked, 4);
    let into = other.mailbox("m", 4).expect("a mailbox");
    assert_eq!(other.receive(into, Timeout::Poll).expect("a receiver"), Some(root));
    other.release(root).expect("a holder");
    let check = check(&one);
    assert_eq!((check.linked, check.bytes_free), (0, check.bytes));
}

#[test]
fn what_is_unlinked_is_freed_when_the_readers_are_gone() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let (root, objects) = list(&mut one, &[1, 2, 3]);
    pass(&mut one, &mut other, root);
    one.unlink(root, objects[0], 0).expect("the writer");
    drop(other);
    assert!(one.collect(root).expect("the writer"));
    assert_eq!(check(&one).linked, 2, "root and record");
    // Without being asked, after some changes.
    for number in 0..200 {
        let next = object(&mut one, number);
        one.change(root, root, 0, Some(next)).expect("the writer");
    }
    assert!(check(&one).linked < 100);
    one.release(root).expect("a holder");
    assert_eq!(check(&one).linked, 0);
}

#[test]
fn one_client_at_a_time_is_the_writer() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let mut third = Client::open(&path).expect("a client");
    let [id, other_id, third_id] =
        [&one, &other, &third].map(|client| ClientId::new(client.id()).expect("an id"));
    let (root, _) = list(&mut one, &[1, 2]);
    pass(&mut one, &mut other, root);
    let back = other.mailbox("third", 4).expect("a mailbox");
    let into = third.mailbox("third", 4).expect("a mailbox");
    assert!(other.send_root(back, root, Timeout::Poll).expect("a holder"));
    assert_eq!(third.receive(into, Timeout::Poll).expect("a receiver"), Some(root));
    let error = other.unlink(root, root, 0).expect_err("a reader");
    assert!(matches!(error, ObjectsError::NotWriter { writer: 1 }), "{error}");
    assert!(other.transfer_writer(root, Some(other_id)).is_err(), "not passed on");
    one.transfer_writer(root, Some(other_id)).expect("the writer");
    assert!(one.unlink(root, root, 0).is_err(), "it has passed the role on");
    assert!(third.transfer_writer(root, Some(third_id)).is_err(), "it was passed to another one");
    other.transfer_writer(root, Some(other_id)).expect("it is its turn");
    other.unlink(root, root, 0).expect("the writer");
    other.transfer_writer(root, None).expect("the writer");
    one.transfer_writer(root, Some(id)).expect("any may take it");
    // What was passed to a client that is gone may be taken.
    one.transfer_writer(root, Some(other_id)).expect("the writer");
    drop(other);
    third.transfer_writer(root, Some(third_id)).expect("the other one is gone");
    // And the role of one that is gone.
    drop(third);
    one.transfer_writer(root, Some(id)).expect("the writer is gone");
    one.release(root).expect("a holder");
    assert_eq!(check(&one).linked, 0);
}

#[test]
fn what_cannot_be_linked_is_refused() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let (root, objects) = list(&mut one, &[1, 2]);
    let plain = one.allocate(64).expect("an object");
    let foreign = object(&mut other, 3);
    for wrong in [plain, foreign, root, NonNull::dangling()] {
        assert!(one.link(root, root, 1, wrong).is_err(), "{wrong:?}");
    }
    assert!(one.link(root, objects[1], 0, objects[1]).is_err(), "to itself");
    assert!(one.link(root, root, 2, objects[1]).is_err(), "no such reference");
    let taken = one.link(root, root, 0, objects[1]).expect_err("taken");
    assert!(taken.to_string().contains("means an object already"), "{taken}");
    assert!(one.link(plain, plain, 0, objects[1]).is_err());
    assert!(other.unlink(root, root, 0).is_err() && other.release(root).is_err());
    let mailbox = one.mailbox("m", 4).expect("a mailbox");
    assert!(one.send_root(mailbox, plain, Timeout::Poll).is_err());
    assert!(one.send(mailbox, objects[1], Timeout::Poll).is_err(), "a part of a structure");
    assert!(one.free(objects[1]).is_err(), "a part of a structure");
    let error = one.allocate_linkable(40_000, 1).expect_err("too large");
    assert!(error.to_string().contains("32752 at most"), "{error}");
    assert_eq!(check(&one).linked, 1);
}

/// Objects that refer to each other, and that nothing holds, leak. A check counts them, and what hangs on them.
#[test]
fn circles_that_nothing_holds_are_counted() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let (root, objects) = list(&mut client, &[1, 2, 3, 4]);
    client.link(root, objects[2], 1, objects[1]).expect("a circle");
    assert_eq!(check(&client).unreachable, 0, "the root holds the circle");
    client.unlink(root, root, 0).expect("unlinked");
    let found = check(&client);
    assert_eq!((found.unreachable, found.owned, found.linked), (3, 1, 3), "{found:?}");
    client.free(root).expect("its own");
    drop(client);
    let found = Region::<farfork::Node>::open(&path).and_then(|it| it.check()).expect("a check");
    assert_eq!((found.unreachable, found.linked), (3, 3), "{found:?}");
}
