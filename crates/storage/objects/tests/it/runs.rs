//! Where objects of whole spans are taken.

use farfork::layout::SPAN_BYTES;
use farfork::{Client, ObjectsError, Region};

/// Two spans.
const BYTES: usize = 70_000;

#[test]
fn runs_are_taken_in_a_circle() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 4 << 20).expect("a region");
    let mut client = Client::open(&path).expect("a client");
    let take = |client: &mut Client| client.allocate(BYTES).expect("room");
    let first = [(); 3].map(|()| take(&mut client));
    client.free(first[0]).expect("its own");
    // Not where the first one was: what lies there need not be looked at.
    let next = take(&mut client);
    assert_eq!(next.addr().get() - first[2].addr().get(), 2 * SPAN_BYTES as usize);
    // But where the last one was.
    client.free(next).expect("its own");
    assert_eq!(take(&mut client), next);
    // To the end, and then from the beginning.
    let mut objects = vec![first[1], first[2], next];
    let spans = client.region().check().expect("a check").bytes / SPAN_BYTES;
    while objects.len() < (spans / 2) as usize {
        objects.push(take(&mut client));
    }
    assert_eq!(objects[objects.len() - 1], first[0], "the last free spans are the first ones");
    let full = client.allocate(BYTES);
    assert!(matches!(full, Err(ObjectsError::NoRun { bytes: BYTES })), "{full:?}");
    // Free spans that lie around the place from which the search begins.
    client.free(first[1]).expect("its own");
    assert_eq!(take(&mut client), first[1]);
    client.free(first[0]).expect("its own");
    client.free(first[1]).expect("its own");
    let large = client.allocate(2 * BYTES + 80_000).expect("four spans");
    assert_eq!(large, first[0]);
    objects.retain(|object| ![first[0], first[1]].contains(object));
    for object in objects {
        client.free(object).expect("its own");
    }
    client.free(large).expect("its own");
    let check = client.region().check().expect("a check");
    assert_eq!(check.bytes_free, check.bytes);
    let all = client.allocate(check.bytes as usize).expect("all memory");
    client.free(all).expect("its own");
}
