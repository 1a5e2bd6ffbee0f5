//! Bad files, full regions and wrong pointers.
#![allow(unsafe_code)] // reason: maps something where a region belongs

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfork::{CLIENTS, Client, Code, MAILBOXES, Metadata, Node, ObjectsError, Region, Timeout};
use tempfile::TempDir;

const BYTES: u64 = 1 << 20;
/// Of regions with node-local metadata.
const NODE_BYTES: u64 = 2 << 20;

fn region() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, BYTES).expect("a region");
    (directory, path)
}

fn patch(path: &Path, at: u64, bytes: &[u8]) {
    let mut file = File::options().write(true).open(path).expect("the region");
    file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes)).expect("a patch");
}

fn refused(path: &Path, word: &str) -> ObjectsError {
    let error = Client::open(path).expect_err("it cannot be opened");
    assert!(error.to_string().contains(word), "no '{word}' in: {error}");
    assert!(Region::destroy(path).is_err(), "destroyed: {error}");
    error
}

#[test]
fn other_files_are_refused() {
    let (_directory, path) = region();
    patch(&path, 8, &[9]);
    let error = refused(&path, "it has format version 9, this farfork reads 3");
    assert_eq!(error.errno(), libc::EPROTONOSUPPORT);
    patch(&path, 8, &[3]);
    patch(&path, 3000, &[1]);
    assert_eq!(refused(&path, "its header is damaged").errno(), libc::EBADMSG);
    patch(&path, 3000, &[0]);
    patch(&path, 0, b"ELF");
    refused(&path, "is not a region");
    patch(&path, 0, b"FFR");
    drop(Client::open(&path).expect("it is as it was"));
    File::options().write(true).open(&path).and_then(|f| f.set_len(BYTES / 2)).expect("a cut");
    refused(&path, "the file has 524288 bytes, the region 1048576");
    fs::write(&path, "FFREGION").expect("a short file");
    refused(&path, "is not a region");
    fs::remove_file(&path).expect("no file");
    refused(&path, "No such file");
}

#[test]
fn impossible_regions_are_not_created() {
    let (directory, path) = region();
    let new = directory.path().join("new");
    for bytes in [0, 4096, BYTES + 1] {
        let error = Region::create(&new, bytes).expect_err("an impossible size");
        assert!(matches!(error, ObjectsError::BadSize { .. }), "{error}");
        assert!(!new.exists());
    }
    let error = Region::create(&path, BYTES).expect_err("there is one");
    assert!(error.to_string().contains("File exists"), "{error}");
    drop(Client::open(&path).expect("the old one is intact"));
}

#[test]
fn a_region_whose_address_is_taken_is_refused() {
    let (_directory, path) = region();
    let address = Client::open(&path).expect("a client").region().info().expect("facts").address;
    // SAFETY: nothing is mapped there, and nothing is replaced.
    let taken = unsafe {
        nix::sys::mman::mmap_anonymous(
            std::num::NonZero::new(address as usize + 8192),
            std::num::NonZero::new(4096).expect("a length"),
            nix::sys::mman::ProtFlags::PROT_READ,
            nix::sys::mman::MapFlags::MAP_PRIVATE | nix::sys::mman::MapFlags::MAP_FIXED_NOREPLACE,
        )
    };
    let taken = taken.expect("a mapping in the way");
    let error = Client::open(&path).expect_err("its address is taken");
    assert!(error.to_string().contains("this process uses memory between"), "{error}");
    assert_eq!(error.errno(), libc::EADDRINUSE);
    // SAFETY: just mapped.
    unsafe { nix::sys::mman::munmap(taken, 4096) }.expect("unmapped");
    drop(Client::open(&path).expect("its address is free again"));
}

#[test]
fn ids_run_out_and_come_back() {
    let (_directory, path) = region();
    let mut clients: Vec<_> =
        (0..CLIENTS).map(|_| Client::open(&path).expect("a client")).collect();
    let error = refused(&path, "it has 126 living clients");
    assert_eq!(error.errno(), libc::EUSERS);
    let id = clients.swap_remove(17).id();
    assert_eq!(Client::open(&path).expect("a client").id(), id);
    let error = Region::destroy(&path).expect_err("it is in use");
    assert!(error.to_string().contains("125 clients use it"), "{error}");
    clients.clear();
    Region::destroy(&path).expect("nothing uses it");
    assert!(!path.exists());
}

#[test]
fn a_full_region_stays_usable() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    let mut objects = Vec::new();
    let error = loop {
        match client.allocate(64) {
            Ok(object) => objects.push(object),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ObjectsError::Full) && error.errno() == libc::ENOMEM, "{error}");
    let info = client.region().info().expect("facts");
    assert_eq!((objects.len() as u64, info.objects), (info.data_bytes / 64, info.objects));
    assert_eq!((info.free_bytes, info.spans_free), (0, 0));
    let mut other = Client::open(&path).expect("a client without memory");
    for bytes in [1, 64, 4000] {
        assert!(matches!(other.allocate(bytes), Err(ObjectsError::Full)), "{bytes}");
    }
    let error = other.allocate(70_000).expect_err("no spans");
    assert!(matches!(error, ObjectsError::NoRun { bytes: 70_000 }), "{error}");
    assert!(matches!(other.allocate(usize::MAX), Err(ObjectsError::NoRun { .. })));
    for is_sent in [true, true, false] {
        let object = objects.pop().expect("an object");
        let sent = client.send(mailbox, object, Timeout::After(Duration::from_millis(5)));
        assert_eq!(sent.expect("a sender"), is_sent);
    }
    drop(client);
    assert!(other.allocate(64).is_ok(), "a closed client leaves its memory");
    let check = other.region().check().expect("a check");
    assert!(check.is_clean() && check.in_mailboxes == 2, "{check:?}");
}

#[test]
fn what_a_client_does_not_own_is_refused() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let mailbox = one.mailbox("m", 4).expect("a mailbox");
    let object = one.allocate(64).expect("an object");
    let inside = object.map_addr(|address| address.saturating_add(8));
    let beyond = object.map_addr(|address| address.saturating_add(1 << 40));
    let local = NonNull::from(&mut [0u8; 64]).cast();
    for wrong in [inside, beyond, local] {
        for error in [
            one.free(wrong).expect_err("not an object"),
            one.send(mailbox, wrong, Timeout::Poll).map(|_| ()).expect_err("not an object"),
            one.reference(wrong).map(|_| ()).expect_err("not an object"),
            one.usable_size(wrong).map(|_| ()).expect_err("not an object"),
        ] {
            assert!(error.to_string().contains("not an object that this client owns"), "{error}");
        }
    }
    assert!(other.free(object).is_err(), "another client's");
    let reference = one.reference(object).expect("a reference");
    assert_eq!(other.object(reference).expect("the object"), object);
    for wrong in
        [0, reference + 1, reference + 16, reference ^ 1 << 60, reference ^ 1 << 40, u64::MAX]
    {
        assert!(other.object(wrong).is_err(), "{wrong:#x}");
    }
    assert!(one.send(mailbox, object, Timeout::Poll).expect("a sender"));
    assert!(one.free(object).is_err() && one.send(mailbox, object, Timeout::Poll).is_err());
}

#[test]
fn mailboxes_have_names_slots_and_two_ends() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    for name in ["", "a\nb", &"n".repeat(49)] {
        assert!(matches!(one.mailbox(name, 4), Err(ObjectsError::BadName { .. })), "{name}");
    }
    for slots in [0, 3, 2048] {
        assert!(matches!(one.mailbox("m", slots), Err(ObjectsError::BadSlots { .. })), "{slots}");
    }
    let mailbox = one.mailbox("m", 4).expect("a mailbox");
    let error = other.mailbox("m", 8).expect_err("it has other slots");
    assert!(error.to_string().contains("with 8 slots: it has 4"), "{error}");
    let at_other = other.mailbox("m", 4).expect("the mailbox");
    let object = one.allocate(64).expect("an object");
    assert!(one.send(mailbox, object, Timeout::Poll).expect("a sender"));
    let own = other.allocate(64).expect("an object");
    let error = other.send(at_other, own, Timeout::Poll).expect_err("it has a sender");
    assert!(error.to_string().contains("client 1 does so"), "{error}");
    drop(one);
    assert!(other.send(at_other, own, Timeout::Poll).expect("the sender is gone"));
    for expected in [object, own] {
        let received = other.receive(at_other, Timeout::Never).expect("a receiver");
        assert_eq!(received, Some(expected), "messages outlive their sender");
    }
    let begun = Instant::now();
    let wait = Timeout::After(Duration::from_millis(20));
    assert_eq!(other.receive(at_other, wait).expect("a receiver"), None);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    for number in 1..MAILBOXES {
        other.mailbox(&format!("{number}"), 1).expect("a mailbox");
    }
    let error = other.mailbox("one more", 1).expect_err("all are taken");
    assert!(matches!(error, ObjectsError::MailboxesFull { .. }), "{error}");
}

/// Bits that a client flips where it must not are found, and do no harm outside of the region.
#[test]
fn damaged_slots_and_owners_are_found() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 4).expect("a mailbox");
    let slots_at = 36_864 + 256;
    for word in [u64::MAX, 7, 0xffff_ffff] {
        patch(&path, slots_at, &word.to_le_bytes());
        let error = match client.receive(mailbox, Timeout::Poll) {
            Err(error) => error.to_string(),
            received => format!("{received:?}"),
        };
        assert!(error.contains("is damaged: mailbox m has a slot") || word == 7, "{error}");
    }
    assert_eq!(client.region().check().expect("a check").foreign, 1, "the slot names no object");
    patch(&path, slots_at, &[0; 8]);
    patch(&path, 36_864 + 64, &[200]);
    let object = client.allocate(64).expect("an object");
    let error = client.send(mailbox, object, Timeout::Poll).expect_err("a sender that cannot be");
    assert!(error.to_string().contains("mailbox m belongs to client 200"), "{error}");
    patch(&path, 36_864 + 64, &[0]);
    // Owner bytes of the fourth and fifth object of the client's span, and where none can begin.
    let owners_at = BYTES - BYTES / 16 + 5 * 4096;
    patch(&path, owners_at + 12, &[77, 0, 0, 0, 255, 0, 1]);
    let check = client.region().check().expect("a check");
    assert_eq!((check.foreign, check.lost, check.double), (2, 1, 0));
    // Words of the last two spans.
    patch(&path, 315_392 + 8 * 13, &[9, 9, 9, 9, 9, 9, 9, 9, 1, 2, 0, 0, 5, 0, 0, 0]);
    let check = client.region().check().expect("a check");
    assert_eq!((check.foreign, check.lost, check.double), (3, 1, 0));
    patch(&path, 315_392 + 8 * 14, &[77, 2, 0, 0, 5, 0, 0, 0]);
    assert_eq!(client.region().check().expect("a check").lost, 2);
}

/// Each size has memory, and its bytes belong to no other object.
#[test]
fn any_size_gets_memory() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 16 << 20).expect("a region");
    let mut client = Client::open(&path).expect("a client");
    let mut ends = Vec::new();
    for bytes in (0..2000).chain([4097, 30_000, 32_768, 32_769, 65_537, 1 << 20, 5 << 20]) {
        let object = client.allocate(bytes).expect("an object");
        let usable = client.usable_size(object).expect("its own");
        let address = object.addr().get();
        assert!(usable >= bytes && address.is_multiple_of(16), "{bytes}");
        assert!(bytes > 32_768 || usable <= bytes.max(13) * 5 / 4 + 16, "{bytes}: {usable}");
        ends.push((address, address + usable, object));
    }
    ends.sort();
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "objects overlap");
    for (_, _, object) in ends {
        client.free(object).expect("its own");
        assert!(client.free(object).is_err(), "freed twice");
    }
    let check = client.region().check().expect("a check");
    assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
    // All of it, side by side again.
    let all = client.allocate(check.bytes as usize).expect("the whole region");
    assert!(matches!(client.allocate(1), Err(ObjectsError::Full)));
    client.free(all).expect("its own");
    client.allocate(1).expect("memory");
}

/// What a client leaves in the spans of others, and others in its spans, can be allocated again, for any class.
#[test]
fn spans_of_closed_clients_are_adopted() {
    let (_directory, path) = region();
    let mut one = Client::open(&path).expect("a client");
    let mut other = Client::open(&path).expect("a client");
    let mailbox = one.mailbox("m", 4).expect("a mailbox");
    let at_other = other.mailbox("m", 4).expect("a mailbox");
    let kept: Vec<_> =
        [64, 3000, 70_000].map(|bytes| one.allocate(bytes).expect("an object")).into();
    for object in &kept {
        assert!(one.send(mailbox, *object, Timeout::Poll).expect("a sender"));
        assert_eq!(other.receive(at_other, Timeout::Poll).expect("a receiver"), Some(*object));
    }
    drop(one);
    let info = other.region().info().expect("facts");
    assert_eq!((info.objects, info.spans_free), (3, 6), "four spans are left with objects");
    let more: Vec<_> = std::iter::from_fn(|| other.allocate(64).ok()).collect();
    // Seven spans, one slot of them taken, and the other slots of 3072 bytes.
    assert_eq!(more.len(), 7 * 1024 - 1 + 20);
    for object in kept.into_iter().chain(more) {
        other.free(object).expect("its own");
    }
    let whole = other.region().check().expect("a check").bytes;
    other.allocate(whole as usize).expect("all of it is free");
}

/// A guarded operation that cannot begin has not happened, and its calls say what is wrong with them.
#[test]
fn guarded_operations_refuse_what_they_cannot_do() {
    let (_directory, path) = region();
    let mut client = Client::open(&path).expect("a client");
    let code: Code = Arc::new(|guard, arguments| {
        let first = guard.allocate(64).expect("an object").cast::<u64>();
        guard.lock(5).expect("a lock");
        guard.lock(5).expect("the same lock");
        let errors = [guard.lock(4).err(), guard.lock(64).err(), guard.load(inside(first)).err()];
        assert!(errors.iter().all(|error| matches!(error, Some(ObjectsError::Guard { .. }))));
        let outside = NonNull::from(&0u64);
        assert!(guard.store(outside, 1).is_err(), "it is not in the region");
        let other = NonNull::<u8>::dangling();
        assert!(matches!(guard.free(other), Err(ObjectsError::NotOwned { .. })));
        assert!(matches!(guard.send("m", 4, other), Err(ObjectsError::NotOwned { .. })));
        let mut steps = 0;
        while arguments.is_empty() && guard.record(1).is_ok() {
            steps += 1;
        }
        // An allocation takes one step, a send that fails one.
        assert!(steps == 0 || steps == 374, "{steps}");
        guard.free(first.cast()).expect("its own");
        i32::from(arguments.len() as u16)
    });
    let region = client.region();
    for name in ["", "\n", &"n".repeat(49)] {
        let error = region.guard_register(name, 1, code.clone()).err().expect("refused");
        assert!(matches!(error, ObjectsError::BadOperation { .. }), "{error}");
    }
    let operation = region.guard_register("work", 1, code.clone()).expect("registered");
    for version in 2..=16 {
        region.guard_register("work", version, code.clone()).expect("registered");
    }
    let error = region.guard_register("work", 17, code.clone()).err().expect("refused");
    assert!(error.to_string().contains("16 operations"), "{error}");
    region.guard_register("work", 16, code.clone()).expect("it is known");
    assert_eq!(client.guard_call(&operation, &[]).expect("called"), 0);
    assert_eq!(client.guard_call(&operation, &[1; 512]).expect("called"), 512);
    let error = client.guard_call(&operation, &[1; 513]).expect_err("refused");
    assert!(error.to_string().contains("512 bytes"), "{error}");
    let (_other_directory, other) = self::region();
    let mut other = Client::open(&other).expect("a client");
    let error = other.guard_call(&operation, &[]).expect_err("refused");
    assert!(error.to_string().contains("another region"), "{error}");
    let check = client.region().check().expect("a check");
    assert!(check.is_clean() && check.owned == 0, "{check:?}");
    while client.allocate(64).is_ok() {}
    assert!(matches!(client.guard_call(&operation, &[]), Err(ObjectsError::Full)));
}

/// A word in the middle of another one.
fn inside(word: NonNull<u64>) -> NonNull<u64> {
    NonNull::new(word.as_ptr().wrapping_byte_add(4)).expect("an address")
}

/// A region with its metadata in a file beside it.
fn node_local() -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    let metadata = Metadata::Node(directory.path().to_owned());
    Region::create_with(&path, NODE_BYTES, false, &metadata).expect("a region");
    let info = Region::<Node>::open(&path).expect("a region").info().expect("facts");
    (directory, path, info.metadata.expect("metadata").path)
}

#[test]
fn lost_metadata_is_refused_while_clients_live_and_rebuilt_afterwards() {
    let (_directory, path, metadata) = node_local();
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    let object = client.allocate(64).expect("an object");
    assert!(client.send(mailbox, object, Timeout::Poll).expect("a sender"));
    fs::remove_file(&metadata).expect("metadata");
    let error = Client::open(&path).expect_err("its metadata is lost");
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("and 1 clients use it"), "{error}");
    // The living client goes on.
    let own = client.allocate(64).expect("an object");
    client.free(own).expect("its own");
    drop(client);
    let mut client = Client::open(&path).expect("rebuilt");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    assert_eq!(client.receive(mailbox, Timeout::Poll).expect("a receiver"), Some(object));
    let info = client.region().info().expect("facts").metadata.expect("metadata");
    assert_eq!(info.generation, 2);
    assert!(info.path != metadata && info.path.exists(), "another file, whose name was not known");
    drop(client);
    Region::destroy(&path).expect("nothing uses it");
    assert!(!path.exists() && !info.path.exists(), "both files are gone");
}

/// Opens a region; returns where its metadata of this generation lies.
fn metadata_of(path: &Path, generation: u64) -> PathBuf {
    drop(Client::open(path).expect("a client"));
    let info = Region::<Node>::open(path).expect("a region").info().expect("facts");
    let metadata = info.metadata.expect("metadata");
    assert_eq!(metadata.generation, generation);
    metadata.path
}

#[test]
fn what_is_not_metadata_of_the_owner_is_left_alone() {
    let (directory, path, first) = node_local();
    let aside = directory.path().join("aside");
    fs::rename(&first, &aside).expect("aside");
    std::os::unix::fs::symlink(&aside, &first).expect("a link");
    let second = metadata_of(&path, 2);
    fs::remove_file(&second).expect("metadata");
    fs::create_dir(&second).expect("a directory");
    let third = metadata_of(&path, 3);
    assert!(second.is_dir() && second != third && first != third, "each has a name of its own");
    if rustix::process::geteuid().is_root() {
        let copy = fs::read(&third).expect("a copy");
        fs::remove_file(&third).expect("metadata");
        fs::write(&third, copy).expect("a file");
        std::os::unix::fs::chown(&third, Some(12_345), None).expect("another owner");
        let fourth = metadata_of(&path, 4);
        // What root rebuilds stays the owner's, and only where the owner could have made it.
        fs::remove_file(fourth).expect("metadata");
        std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).expect("another owner");
        let error = Client::open(&path).expect_err("a directory of root");
        assert!(error.to_string().contains("neither a directory of user 12345"), "{error}");
        assert_eq!(error.errno(), libc::EACCES);
        std::os::unix::fs::chown(directory.path(), Some(12_345), None).expect("another owner");
        let found = fs::metadata(metadata_of(&path, 5)).expect("metadata");
        assert_eq!((found.uid(), found.mode() & 0o777), (12_345, 0o600));
    }
}

/// The owner restores a copy in the region's place, and the metadata knows of what came after it.
#[test]
fn an_older_copy_in_the_place_of_a_region_has_lost_its_metadata() {
    let (_directory, path, _) = node_local();
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    let object = client.allocate(64).expect("an object");
    assert!(client.send(mailbox, object, Timeout::Poll).expect("a sender"));
    drop(client);
    let copy = fs::read(&path).expect("a copy");
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    let received = client.receive(mailbox, Timeout::Poll).expect("a receiver");
    client.free(received.expect("a message")).expect("its own");
    drop(client);
    fs::write(&path, copy).expect("the copy");
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    assert_eq!(client.receive(mailbox, Timeout::Poll).expect("a receiver"), Some(object));
    let check = client.region().check().expect("a check");
    assert!(check.is_clean() && check.owned == 1, "{check:?}");
    drop(client);
    metadata_of(&path, 2);
}

/// It has the same uuid, and locks of its own: with the same metadata, its clients would take those of the other for dead.
#[test]
fn a_copy_of_a_region_has_metadata_of_its_own() {
    let (directory, path, metadata) = node_local();
    let mut client = Client::open(&path).expect("a client");
    let mailbox = client.mailbox("m", 2).expect("a mailbox");
    let object = client.allocate(64).expect("an object");
    assert!(client.send(mailbox, object, Timeout::Poll).expect("a sender"));
    drop(client);
    let copy = directory.path().join("copy");
    fs::copy(&path, &copy).expect("a copy");
    for one in [&copy, &path] {
        let mut client = Client::open(one).expect("a client");
        let mailbox = client.mailbox("m", 2).expect("a mailbox");
        assert_eq!(client.receive(mailbox, Timeout::Poll).expect("a receiver"), Some(object));
        let info = client.region().info().expect("facts").metadata.expect("metadata");
        assert_eq!(info.path == metadata, one == &path, "{}", info.path.display());
    }
    Region::destroy(&copy).expect("nothing uses it");
    assert!(metadata.exists(), "the other's metadata stays");
}

#[test]
fn impossible_places_of_metadata_are_refused() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    let create = |bytes, place: &str| {
        let metadata = Metadata::Node(directory.path().join(place));
        let error = Region::create_with(&path, bytes, false, &metadata);
        assert!(!path.exists());
        error.expect_err("it cannot be created").to_string()
    };
    let error = create(BYTES + 4096, "");
    assert!(error.contains("a multiple of 65536 bytes"), "{error}");
    let error = create(BYTES, "missing");
    assert!(error.contains("No such file"), "{error}");
    let error = create(BYTES, &"long".repeat(64));
    assert!(error.contains("of at most 256 bytes"), "{error}");
    let metadata = Metadata::Node("relative".into());
    let error = Region::create_with(&path, BYTES, false, &metadata).expect_err("a relative path");
    assert!(error.to_string().contains("give an absolute path"), "{error}");
}
