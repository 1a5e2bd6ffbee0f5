//! Metadata is lost, and the region that it is rebuilt from is damaged.
#![allow(unsafe_code)] // reason: writes to objects

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use farfork::layout::{Layout, SPAN_BYTES};
use farfork::{Client, Metadata, Node, Region, Timeout};
use proptest::prelude::*;
use proptest::test_runner::Config;

const BYTES: u64 = 2 << 20;
const SPANS_AT: u64 = 315_392;
const MAILBOXES: [&str; 3] = ["objects", "lists", "shared"];

/// A list of objects with two references each, all of which mean the next one.
fn list(client: &mut Client, length: usize) -> NonNull<u8> {
    let objects: Vec<_> =
        (0..length).map(|_| client.allocate_linkable(64, 2).expect("an object")).collect();
    for pair in objects.windows(2).rev() {
        for field in 0..2 {
            client.link(pair[0], pair[0], field, pair[1]).expect("linked");
        }
    }
    objects[0]
}

/// Fills mailboxes, and ends all clients. Returns where the metadata lies.
fn fill(path: &Path) -> std::path::PathBuf {
    let mut client = Client::open(path).expect("a client");
    let [objects, lists, shared] =
        MAILBOXES.map(|name| client.mailbox(name, 4).expect("a mailbox"));
    for bytes in [64, 1300, 70_000] {
        let object = client.allocate(bytes).expect("an object");
        assert!(client.send(objects, object, Timeout::Poll).expect("a sender"));
    }
    for length in [1, 30] {
        let root = list(&mut client, length);
        assert!(client.send(lists, root, Timeout::Poll).expect("a sender"));
    }
    let root = list(&mut client, 20);
    for _ in 0..2 {
        assert!(client.send_root(shared, root, Timeout::Poll).expect("a sender"));
    }
    let info = client.region().info().expect("facts");
    info.metadata.expect("metadata").path
}

/// Where damage may be: in mailboxes and spans, or at the beginning of the spans with the objects.
fn places() -> impl Strategy<Value = u64> {
    let spans = Layout::node_local(BYTES).expect("a layout").spans();
    let objects = u64::from(spans.start) * SPAN_BYTES;
    let span = (0..u64::from(spans.end - spans.start), 0u64..4096)
        .prop_map(move |(span, at)| objects + span * SPAN_BYTES + at);
    prop_oneof![36_864u64..36_864 + 3 * 8448, SPANS_AT..SPANS_AT + 8 * 32, span]
}

proptest! {
    #![proptest_config(Config { cases: 200, failure_persistence: None, ..Config::default() })]

    /// What is rebuilt has no contradictions, however damaged the region is, and can be used.
    #[test]
    fn a_damaged_region_is_rebuilt(
        damage in prop::collection::vec((places(), any::<u64>(), 0u32..64), 0..12),
        is_checked: bool,
    ) {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("region");
        let metadata = Metadata::Node(directory.path().to_owned());
        Region::create_with(&path, BYTES, is_checked, &metadata).expect("a region");
        fs::remove_file(fill(&path)).expect("metadata");
        let file = File::options().read(true).write(true).open(&path).expect("the region");
        for (at, value, bits) in &damage {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, at & !7).expect("a word");
            // A bit, or all of it.
            let found = u64::from_le_bytes(word);
            let new = if value % 2 == 0 { found ^ 1 << bits } else { *value >> bits };
            file.write_all_at(&new.to_le_bytes(), at & !7).expect("damage");
        }
        let check = Region::<Node>::open(&path).expect("rebuilt").check().expect("a check");
        prop_assert!(check.is_clean() && check.owned == 0, "{check:?}");
        if damage.is_empty() {
            prop_assert_eq!((check.in_mailboxes, check.linked), (5, 29 + 20 + 1));
        }
        let mut client = Client::open(&path).expect("a client");
        for name in MAILBOXES {
            let Ok(mailbox) = client.mailbox(name, 4) else { continue };
            for _ in 0..70 {
                if let Ok(Some(object)) = client.receive(mailbox, Timeout::Poll) {
                    let _ = client.release(object).or_else(|_| client.free(object));
                }
            }
        }
        let mut objects = Vec::new();
        while let Ok(object) = client.allocate(64) {
            // SAFETY: an object of the client.
            unsafe { object.cast::<u64>().write(objects.len() as u64) };
            objects.push(object);
        }
        for (number, object) in (0u64..).zip(&objects) {
            // SAFETY: as above.
            prop_assert_eq!(unsafe { object.cast::<u64>().read() }, number);
        }
        drop(client);
        let check = Region::<Node>::open(&path).expect("a region").check().expect("a check");
        prop_assert!(check.is_clean() && check.owned == 0, "{check:?}");
    }
}

/// The spans of a large object in a mailbox say something else: it is lost, and no other object lies over it.
#[test]
fn an_object_of_damaged_spans_is_not_given_twice() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    let metadata = Metadata::Node(directory.path().to_owned());
    Region::create_with(&path, BYTES, false, &metadata).expect("a region");
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("objects", 4).expect("a mailbox");
    let object = client.allocate(70_000).expect("an object");
    let begin = client.region().header().address;
    assert!(client.send(mailbox, object, Timeout::Poll).expect("a sender"));
    let lies_at = client.region().info().expect("facts").metadata.expect("metadata").path;
    drop(client);
    fs::remove_file(lies_at).expect("metadata");
    let second = (object.addr().get() as u64 - begin) / SPAN_BYTES + 1;
    let file = File::options().write(true).open(&path).expect("the region");
    file.write_all_at(&[0; 8], SPANS_AT + 8 * second).expect("damage");
    let mut client = Client::open(&path).expect("a client");
    let mut objects = Vec::new();
    while let Ok(object) = client.allocate(64) {
        objects.push(object);
    }
    let mailbox = client.mailbox("objects", 4).expect("a mailbox");
    if let Some(object) = client.receive(mailbox, Timeout::Poll).expect("a receiver") {
        let bytes = client.usable_size(object).expect("its own");
        let end = object.addr().get() + bytes;
        let is_inside =
            |other: &NonNull<u8>| (object.addr().get()..end).contains(&other.addr().get());
        assert!(!objects.iter().any(is_inside), "memory was given twice");
    }
}
