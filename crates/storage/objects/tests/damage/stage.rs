//! A region in which everything is in use: objects of all kinds, structures, messages, a guarded operation.
#![allow(unsafe_code)] // reason: forks

use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farfork::{Client, Code, Guard, Mailbox, ObjectsError, Operation, Platform, Region, Timeout};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tempfile::TempDir;

pub type Object = NonNull<u8>;

pub const BYTES: u64 = 2 << 20;
pub const SLOTS: u64 = 8;

/// A directory in memory with the path of a region in it.
pub fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    (directory, path)
}

pub fn create(path: &Path, is_checked: bool) {
    let create = if is_checked { Region::create_checked } else { Region::create };
    create(path, BYTES).expect("a region");
}

/// Creates a region at an address that suits. Addresses are drawn by lot.
pub fn create_at(path: &Path, is_checked: bool, suits: impl Fn(u64) -> bool) {
    create(path, is_checked);
    // One whose address is taken in this process does not suit.
    let is_right =
        || Region::<farfork::Node>::open(path).is_ok_and(|it| suits(it.header().address));
    while !is_right() {
        fs::remove_file(path).expect("the region");
        create(path, is_checked);
    }
}

/// Two clients, and what they have.
pub struct Clients<P: Platform> {
    pub clients: [Client<P>; 2],
    pub objects: Vec<Object>,
}

/// Mailboxes and the operation, as each client opens them.
pub struct Known<P: Platform> {
    pub there: Result<Mailbox, ObjectsError>,
    pub back: Result<Mailbox, ObjectsError>,
    pub operation: Result<Operation<P>, ObjectsError>,
}

pub fn known<P: Platform + 'static>(client: &mut Client<P>) -> Known<P> {
    Known {
        there: client.mailbox("there", SLOTS),
        back: client.mailbox("back", SLOTS),
        operation: client.region().guard_register("work", 1, code()),
    }
}

/// Whether the operation kills its process.
static DIES: AtomicBool = AtomicBool::new(false);

fn code<P: Platform>() -> Code<P> {
    Arc::new(|guard, arguments| i32::from(work(guard, arguments).is_err()))
}

fn work<P: Platform>(guard: &mut Guard<'_, P>, arguments: &[u8]) -> Result<(), ObjectsError> {
    guard.lock(3)?;
    let object = guard.allocate(64)?;
    let first = guard.load(object.cast())?;
    guard.store(object.cast(), first ^ arguments.len() as u64)?;
    let other = guard.allocate(500)?;
    guard.free(other)?;
    if DIES.load(Ordering::SeqCst) {
        let _ = raise(Signal::SIGKILL);
    }
    guard.lock(5)?;
    guard.send("receipts", SLOTS, object).map(drop)
}

/// Sets the region up.
pub fn set_up<P: Platform + 'static>(path: &Path) -> Clients<P> {
    let [mut one, mut other] = [(); 2].map(|()| Client::open_on(path).expect("a client"));
    let (own, others) = (known(&mut one), known(&mut other));
    let (there, back) = (own.there.expect("a mailbox"), own.back.expect("a mailbox"));
    let others = (others.there.expect("a mailbox"), others.back.expect("a mailbox"));
    let mut objects: Vec<Object> =
        [64, 500, 3000, 70_000].map(|bytes| one.allocate(bytes).expect("an object")).into();
    objects.push(other.allocate(140_000).expect("an object"));
    // A structure that both hold, one that the first client has alone.
    let nodes = [(); 7].map(|()| one.allocate_linkable(40, 2).expect("an object"));
    for (from, field, to) in [(0, 0, 1), (1, 0, 2), (0, 1, 3), (2, 0, 6)] {
        one.link(nodes[0], nodes[from], field, nodes[to]).expect("linked");
    }
    one.link(nodes[4], nodes[4], 0, nodes[5]).expect("linked");
    let send = |client: &mut Client<P>, mailbox| {
        let sent = client.allocate(64).expect("an object");
        assert!(client.send(mailbox, sent, Timeout::Poll).expect("a sender"));
    };
    send(&mut one, there);
    assert!(one.send_root(there, nodes[0], Timeout::Poll).expect("a sender"));
    for _ in 0..2 {
        objects.extend(other.receive(others.0, Timeout::Poll).expect("a receiver"));
    }
    send(&mut one, there);
    assert!(one.send_root(there, nodes[0], Timeout::Poll).expect("a sender"));
    send(&mut one, there);
    send(&mut other, others.1);
    send(&mut other, others.1);
    objects.extend(one.receive(back, Timeout::Poll).expect("a receiver"));
    // The last change that was written down. What is unlinked stays for the other holder.
    one.unlink(nodes[0], nodes[0], 1).expect("unlinked");
    objects.extend(nodes);
    Clients { clients: [one, other], objects }
}

/// The bytes of a region whose clients have died, and where they had objects.
pub struct Image {
    pub bytes: Vec<u8>,
    pub objects: Vec<Object>,
}

/// Lets two clients die, the first one in a guarded operation.
pub fn dead(is_checked: bool) -> Image {
    let (directory, path) = place();
    create(&path, is_checked);
    let listed = directory.path().join("objects");
    // SAFETY: this process has one thread.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).expect("its end");
            assert!(matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _)), "{ended:?}");
        }
        ForkResult::Child => {
            let Clients { clients: [mut one, other], objects } = set_up::<farfork::Node>(&path);
            let addresses: Vec<u8> =
                objects.iter().flat_map(|object| object.addr().get().to_le_bytes()).collect();
            fs::write(&listed, addresses).expect("a file");
            DIES.store(true, Ordering::SeqCst);
            let operation = known(&mut one).operation.expect("registered");
            let _ = one.guard_call(&operation, &[7; 20]);
            drop(other);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(1) }
        }
    }
    let mut bytes = fs::read(&path).expect("the region");
    // The last change was not completed: 4 stores are to be done again.
    bytes[4096 + 64] = 4;
    let words = fs::read(&listed).expect("a file");
    let objects = words.chunks(8).map(|word| {
        let address = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
        NonNull::new(pointer).expect("an address")
    });
    Image { bytes, objects: objects.collect() }
}
