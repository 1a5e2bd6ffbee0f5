//! A child that goes on with its parent's handle.
#![allow(unsafe_code)] // reason: two threads use a handle, and a child has one of them

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use farfork::{Client, Code, Region, Timeout};

use crate::child::{self, End};
use crate::objects::{number, set_number};
use crate::stage::{demand, words};

/// Parent and child pass an object to and fro by the handle of both.
pub fn becomes_a_client() -> Result<(), String> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 1 << 20).map_err(words)?;
    let mut client = Client::open(&path).map_err(words)?;
    let (down, up) = (client.mailbox("down", 4), client.mailbox("up", 4));
    let (down, up) = (down.map_err(words)?, up.map_err(words)?);
    let code: Code = Arc::new(|guard, _| i32::from(guard.lock(1).is_err()));
    let operation = client.region().guard_register("lock", 1, code).map_err(words)?;
    let kept = client.allocate(64).map_err(words)?;
    set_number(kept, 5);
    client.after_fork().map_err(words)?;
    demand(client.id() == 1, || "the parent became another client".to_owned())?;
    let child = child::start(|| {
        client.after_fork().expect("a client");
        client.after_fork().expect("the same client");
        assert_eq!(client.id(), 2, "an id of its own");
        assert!(client.free(kept).is_err(), "it is the parent's");
        assert_eq!(number(kept), 5, "it lies at the same address");
        let object = client.receive(down, Timeout::Never).expect("a receiver");
        let object = object.expect("a message");
        set_number(object, number(object) + 1);
        assert!(client.send(up, object, Timeout::Never).expect("a sender"));
        assert_eq!(client.guard_call(&operation, &[]).expect("called"), 0);
    });
    let object = client.allocate(64).map_err(words)?;
    set_number(object, 41);
    demand(client.send(down, object, Timeout::Never).map_err(words)?, || "no room".to_owned())?;
    let back = client.receive(up, Timeout::Never).map_err(words)?.ok_or("no message")?;
    demand(back == object && number(back) == 42, || format!("{} came back", number(back)))?;
    demand(child::end(child)? == End::Finished, || "the child was killed".to_owned())?;
    let check = client.region().check().map_err(words)?;
    let is_right = check.is_clean() && (check.owned, check.clients_recovered) == (2, 1);
    demand(is_right, || format!("{check:?}"))
}

/// How long the code of an operation takes to go. The child has less time.
const MOMENT: Duration = Duration::from_secs(3);

/// Takes a moment to be dropped, and says when that begins.
struct Slow(Sender<()>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.send(());
        thread::sleep(MOMENT);
    }
}

/// Another thread of the parent replaces the code of an operation at the fork. The child does not have that thread, and
/// waits for nothing that it holds.
pub fn waits_for_no_thread() -> Result<(), String> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 1 << 20).map_err(words)?;
    let client = Box::into_raw(Box::new(Client::open(&path).map_err(words)?)).addr();
    let at = move || std::ptr::with_exposed_provenance_mut::<Client>(client);
    let (sender, replaced) = channel();
    let other = thread::spawn(move || {
        let slow = Slow(sender.clone());
        let code: Code = Arc::new(move |_, _| i32::from(slow.0.send(()).is_err()));
        // SAFETY: nothing changes the client in this process meanwhile.
        let region = unsafe { (*at()).region() };
        drop(region.guard_register("work", 1, code));
        drop(region.guard_register("work", 1, Arc::new(|_, _| 0)));
        let _ = sender.send(());
    });
    replaced.recv().map_err(|error| error.to_string())?;
    let child = child::start(|| {
        // SAFETY: ends this process if it waits.
        unsafe { libc::alarm(2) };
        // SAFETY: this process has one thread.
        let client = unsafe { &mut *at() };
        client.after_fork().expect("a client");
        let operation = client.region().guard_register("work", 1, Arc::new(|_, _| 7));
        assert_eq!(client.guard_call(&operation.expect("registered"), &[]).expect("called"), 7);
    });
    let ended = child::end(child);
    other.join().map_err(|_| "the thread failed".to_owned())?;
    // SAFETY: made above; the thread has ended.
    drop(unsafe { Box::from_raw(at()) });
    demand(ended? == End::Finished, || "the child was killed".to_owned())
}

/// Children of forks beside a thread that takes locks of the region and releases them again.
pub fn keeps_no_lock() -> Result<(), String> {
    const CHILDREN: usize = 300;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 1 << 20).map_err(words)?;
    let client = Client::open(&path).map_err(words)?;
    let (turns, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                drop(client.region().guard_register("work", 1, Arc::new(|_, _| 0)));
                turns.fetch_add(1, Ordering::AcqRel);
            }
        });
        let pause = || loop {
            nix::unistd::pause();
        };
        let children: Vec<_> = (0..CHILDREN).map(|_| child::start(pause)).collect();
        let before = turns.load(Ordering::Acquire);
        // A lock that a child keeps is free only when the child has ended.
        let goes_on = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            turns.load(Ordering::Acquire) > before + 1
        });
        is_over.store(true, Ordering::Release);
        for child in children {
            nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL)
                .map_err(|errno| errno.to_string())?;
            child::end(child)?;
        }
        demand(goes_on, || "a child keeps a lock of its parent".to_owned())
    })
}
