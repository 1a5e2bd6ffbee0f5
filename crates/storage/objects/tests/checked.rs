//! Misuse of a checked region. Each kind is found by a client, and not by one with the fault that leaves out its check.
#![allow(unsafe_code)] // reason: does to objects what a program must not do

use std::cell::Cell;
use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Mutex;

use farfork::liveness::KernelLocks;
use farfork::seeded::Fault;
use farfork::words::Mapped;
use farfork::{Client, ObjectsError, Platform, Region, Timeout};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tempfile::TempDir;

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// A machine, with a fault that each test chooses.
struct Faulty;

impl Platform for Faulty {
    type Words = Mapped;
    type Liveness = KernelLocks;
    fn fault() -> Option<Fault> {
        FAULT.get()
    }
}

type Checked = Client<Faulty>;

fn region() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create_checked(&path, 4 << 20).expect("a region");
    (directory, path)
}

fn open(path: &Path) -> Checked {
    Client::open_on(path).expect("a client")
}

fn write(object: NonNull<u8>, at: usize, value: u8) {
    // SAFETY: in the region, which is mapped. That it is outside of the object is what is tested.
    unsafe { object.add(at).write(value) };
}

fn at(object: NonNull<u8>, offset: isize) -> NonNull<u8> {
    NonNull::new(object.as_ptr().wrapping_offset(offset)).expect("an address")
}

/// The words of a misuse, if it was found.
fn found<T>(result: Result<T, ObjectsError>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// A misuse is found with these words, and not with the fault.
fn is_found(words: &[&str], fault: Fault, misuse: impl Fn() -> Option<String>) {
    FAULT.set(None);
    let text = misuse().expect("the misuse is found");
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
    FAULT.set(Some(fault));
    let text = misuse();
    FAULT.set(None);
    assert_eq!(text, None, "found although the check is left out");
}

#[test]
fn an_object_that_is_freed_twice() {
    let words =
        ["cannot free 0x", "an object of 61 bytes that this client freed (its free number 2"];
    is_found(&words, Fault::CheckForgetsFrees, || {
        let (_directory, path) = region();
        let mut client = open(&path);
        let first = client.allocate(500).expect("an object");
        client.free(first).expect("its own");
        let object = client.allocate(61).expect("an object");
        client.free(object).expect("its own");
        // A program that goes on with the old pointer meets no other object.
        assert!((0..100).all(|_| client.allocate(61).expect("an object") != object));
        found(client.free(object))
    });
}

#[test]
fn a_write_beyond_an_object() {
    for (bytes, beyond) in [(61, 61), (61, 63), (16, 16), (1, 8), (100_000, 100_001)] {
        let words =
            [format!("the object of {bytes} bytes was written beyond its end, at byte {beyond}")];
        let trailer = "its trailer was overwritten".to_owned();
        let words = if bytes == 16 { [trailer] } else { words };
        is_found(&words.each_ref().map(String::as_str), Fault::CheckIgnoresPadding, || {
            let (_directory, path) = region();
            let mut client = open(&path);
            let mailbox = client.mailbox("m", 4).expect("a mailbox");
            let object = client.allocate(bytes).expect("an object");
            assert_eq!(client.usable_size(object).expect("its own"), bytes);
            write(object, beyond, 7);
            let sent = found(client.send(mailbox, object, Timeout::Poll));
            found(client.free(object)).filter(|_| sent.is_some())
        });
    }
}

#[test]
fn a_write_to_a_freed_object() {
    let words =
        ["the object of 300 bytes was written after it had been freed, at byte 299", "number 1"];
    is_found(&words, Fault::CheckIgnoresFill, || {
        let (_directory, path) = region();
        let mut client = open(&path);
        let object = client.allocate(300).expect("an object");
        client.free(object).expect("its own");
        write(object, 299, 7);
        for _ in 0..1024 {
            let object = client.allocate(16).expect("an object");
            client.free(object).expect("its own");
        }
        assert!(client.findings().len() < 2);
        client.findings().first().cloned()
    });
}

#[test]
fn a_reference_to_an_object_whose_place_another_one_has() {
    let words =
        ["stale reference 0x", "another has its place: it is an object of 100 bytes of client 1"];
    is_found(&words, Fault::CheckIgnoresGeneration, || {
        let (_directory, path) = region();
        let (mut client, other) = (open(&path), open(&path));
        let object = client.allocate(100).expect("an object");
        let reference = client.reference(object).expect("a reference");
        assert_eq!(other.object(reference).expect("it is there"), object);
        client.free(object).expect("its own");
        let error = found(other.object(reference)).expect("it was freed");
        assert!(error.contains("an object of 100 bytes that client 1 freed"), "{error}");
        let mut tries = 0..100_000;
        assert!(tries.any(|_| {
            let next = client.allocate(100).expect("an object");
            next == object || client.free(next).is_err()
        }));
        found(other.object(reference))
    });
}

/// A process that starts another program has the locks of all clients of this one until it executes it.
static SPAWNING: Mutex<()> = Mutex::new(());

/// A program that closes all descriptors loses the lock of its client.
#[test]
fn an_id_that_another_client_has() {
    let words = ["cannot go on as client 1", "has it now", "do not close descriptors"];
    let _alone = SPAWNING.lock().expect("no test panicked");
    is_found(&words, Fault::CheckIgnoresIncarnation, || {
        let (_directory, path) = region();
        let mut client = open(&path);
        let object = client.allocate(64).expect("an object");
        let null = fs::File::open("/dev/null").expect("a file");
        for descriptor in descriptors_of(&path) {
            // SAFETY: the descriptor stays one, so that closing it does no harm.
            assert!(unsafe { libc::dup2(null.as_raw_fd(), descriptor) } >= 0);
        }
        let mut other = open(&path);
        assert_eq!(other.id(), 1, "the first one seems dead");
        let kept = other.allocate(64).expect("an object");
        let result = found(client.allocate(64)).filter(|_| found(client.free(object)).is_some());
        if result.is_some() {
            drop(client);
            other.free(kept).expect("closing the first one takes nothing");
        } else {
            // It would give back what the other one has.
            std::mem::forget(client);
        }
        result
    });
}

fn descriptors_of(path: &Path) -> Vec<RawFd> {
    let all = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let of_path = all.filter(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == path));
    of_path.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[test]
fn pointers_that_are_not_objects_of_the_client() {
    let (_directory, path) = region();
    let (mut client, mut other) = (open(&path), open(&path));
    let mailbox = client.mailbox("m", 4).expect("a mailbox");
    let object = client.allocate(100).expect("an object");
    let large = client.allocate(100_000).expect("an object");
    let sent = client.allocate(30).expect("an object");
    assert!(client.send(mailbox, sent, Timeout::Poll).expect("a sender"));
    let begin = client.region().info().expect("facts");
    assert!(begin.checked && begin.version == 4);
    let table = NonNull::new(std::ptr::with_exposed_provenance_mut(begin.address as usize + 4096));
    let node = other.allocate_linkable(24, 2).expect("an object");
    let local = NonNull::from(&mut [0u8; 64]).cast();
    let wrong = [
        (local, "it lies outside of the region, which is from 0x2"),
        (table.expect("an address"), "it lies in a table of the region"),
        (
            at(object, 32),
            "it lies 32 bytes after the beginning of an object of 100 bytes of client 1",
        ),
        (at(large, 70_000), "it lies 70000 bytes after the beginning of an object of 100000 bytes"),
        (sent, "it is an object of 30 bytes that was sent and is in a mailbox"),
        (node, "it is an object of 24 bytes of client 2"),
        (at(node, -16), "it lies in the header of an object of 24 bytes of client 2"),
        (at(object, 1 << 20), "it lies in free memory"),
    ];
    for (pointer, words) in wrong {
        for error in [
            found(client.free(pointer)),
            found(client.send(mailbox, pointer, Timeout::Poll)),
            found(client.reference(pointer)),
            found(client.usable_size(pointer)),
        ] {
            let error = error.expect("it is refused");
            assert!(error.contains(words), "{error}");
        }
    }
    client.free(object).expect("nothing was harmed");
}

#[test]
fn a_forked_child_with_its_parents_handle() {
    let (_directory, path) = region();
    let mut client = open(&path);
    let object = client.allocate(64).expect("an object");
    let reference = client.reference(object).expect("a reference");
    // SAFETY: the child uses the client and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let errors = [
                found(client.allocate(64)),
                found(client.free(object)),
                found(client.object(reference)),
            ];
            let is_right = |error: &Option<String>| {
                error.as_ref().is_some_and(|error| error.contains("call ff_after_fork first"))
            };
            let is_right = errors.iter().all(is_right);
            let is_client = client.after_fork().is_ok() && client.allocate(64).is_ok();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!(is_right && is_client))) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).expect("an end"), WaitStatus::Exited(child, 0));
        }
    }
    client.free(object).expect("its own");
}

/// `FARFORK_CHECKED=abort` ends the process where it goes wrong, for a debugger or a core file.
#[test]
fn misuse_aborts_if_it_is_to() {
    let _alone = SPAWNING.lock().expect("no test panicked");
    let (_directory, path) = region();
    let own = std::env::current_exe().expect("an own path");
    let misuse = |setting| {
        let mut program = std::process::Command::new(&own);
        program.args(["--exact", "misuse_of_a_program", "--nocapture"]);
        program.env("REGION", &path).env("FARFORK_CHECKED", setting);
        program.output().expect("it starts")
    };
    let output = misuse("trace");
    assert!(output.status.success(), "{output:?}");
    let output = misuse("abort,trace");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    let text = String::from_utf8_lossy(&output.stderr);
    let words = ["farfork: cannot free 0x", "that this client freed", "misuse_of_a_program"];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
}

/// The program of the test above, which names a region.
#[test]
fn misuse_of_a_program() {
    let Some(path) = std::env::var_os("REGION") else { return };
    let mut client = open(Path::new(&path));
    let object = client.allocate(64).expect("an object");
    client.free(object).expect("its own");
    assert!(client.free(object).is_err());
}

/// What is held back is given to an allocation that needs it.
#[test]
fn freed_memory_is_not_lost() {
    let (_directory, path) = region();
    let mut client = open(&path);
    for bytes in [64, 4000, 100_000] {
        for _ in 0..3 {
            let all: Vec<_> = std::iter::from_fn(|| client.allocate(bytes).ok()).collect();
            let least = 3 * (4 << 20) / (5 * bytes.next_multiple_of(65_536).min(2 * bytes + 32));
            assert!(all.len() > least / 2, "{bytes}: {}", all.len());
            all.into_iter().for_each(|object| client.free(object).expect("its own"));
        }
    }
    let info = client.region().info().expect("facts");
    assert!(info.clients[0].objects <= 1024, "{info:?}");
    assert!(client.findings().is_empty(), "{:?}", client.findings());
    drop(client);
    let check = open(&path).region().check().expect("a check");
    assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
}

/// References in objects are the same numbers as those of [`Client::reference`].
#[test]
fn structures_and_guarded_operations_work() {
    let (_directory, path) = region();
    let (mut client, mut other) = (open(&path), open(&path));
    let (root, leaf) = (client.allocate_linkable(24, 2), client.allocate_linkable(32_000, 0));
    let (root, leaf) = (root.expect("an object"), leaf.expect("an object"));
    client.link(root, root, 0, leaf).expect("linked");
    // SAFETY: a reference of the object.
    let reference = unsafe { root.cast::<u64>().read() };
    assert_eq!(client.reference(leaf).expect("a reference"), reference);
    assert_eq!(other.object(reference).expect("the object"), leaf);
    let mailboxes = [&mut client, &mut other].map(|at| at.mailbox("m", 4).expect("a mailbox"));
    assert!(client.send_root(mailboxes[0], root, Timeout::Poll).expect("a sender"));
    assert_eq!(other.receive(mailboxes[1], Timeout::Poll).expect("a receiver"), Some(root));
    other.release(root).expect("held");
    let freed = client.allocate_linkable(24, 1).expect("an object");
    client.free(freed).expect("its own");
    assert!(client.link(root, root, 1, freed).is_err(), "a freed object is linked");
    client.unlink(root, root, 0).expect("the writer");
    client.collect(root).expect("the writer");
    assert!(found(other.object(reference)).is_some(), "it was freed");
    client.release(root).expect("held");
    let code = std::sync::Arc::new(|guard: &mut farfork::Guard<'_, Faulty>, _: &[u8]| {
        let object = guard.allocate(64).expect("an object");
        guard.free(object).map_or(1, |()| 0)
    });
    let operation = client.region().guard_register("work", 1, code).expect("registered");
    assert_eq!(client.guard_call(&operation, &[]).expect("called"), 0);
    let error = client.allocate_linkable(32_752, 0).expect_err("too large with a trailer");
    assert!(error.to_string().contains("32736 at most"), "{error}");
    drop(client);
    let check = other.region().check().expect("a check");
    assert!(check.is_clean() && check.owned == 0 && check.linked == 0, "{check:?}");
}
