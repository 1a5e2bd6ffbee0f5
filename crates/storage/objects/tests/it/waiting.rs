//! Clients that sleep until a message or room for one comes.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use farfork::seeded::Fault;
use farfork::words::Mapped;
use farfork::{Client, Node, Platform, Region, Timeout};
use tempfile::TempDir;

const PATIENCE: Timeout = Timeout::After(Duration::from_secs(60));

fn region() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 2 << 20).expect("a region");
    (directory, path)
}

/// How often the calling thread has gone to sleep so far.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}

#[test]
fn a_waiting_receiver_sleeps_and_is_woken() {
    let (_directory, path) = region();
    let mut receiver = Client::open(&path).expect("a client");
    let from = receiver.mailbox("m", 4).expect("a mailbox");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            let mut sender = Client::open(&path).expect("a client");
            let to = sender.mailbox("m", 4).expect("a mailbox");
            let object = sender.allocate(64).expect("an object");
            assert!(sender.send(to, object, Timeout::Poll).expect("a sender"));
        });
        let before = sleeps();
        assert!(receiver.receive(from, Timeout::Never).expect("a receiver").is_some());
        // Some for its timer. A client that polls sleeps 500 times in this time.
        assert!(sleeps() - before < 100, "{} sleeps", sleeps() - before);
    });
}

/// Sends messages of which the receiver has to wait for each, and the sender for room. Returns how many of them were
/// found late.
fn late<P: Platform + 'static>(path: &Path, count: u64) -> u64 {
    thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let mut client = Client::<Node>::open_on(path).expect("a client");
            let from = client.mailbox("m", 1).expect("a mailbox");
            for number in 0..count {
                let object = client.receive(from, PATIENCE).expect("a receiver").expect("one");
                client.free(object).expect("its own");
                if number % 64 == 63 {
                    // Now the sender waits.
                    thread::sleep(Duration::from_millis(2));
                }
            }
            client.late_wakes(from)
        });
        let mut client = Client::<P>::open_on(path).expect("a client");
        let to = client.mailbox("m", 1).expect("a mailbox");
        for number in 0..count {
            let object = client.allocate(64).expect("an object");
            assert!(client.send(to, object, PATIENCE).expect("a sender"), "no room for {number}");
            if number % 8 == 7 {
                // Now the receiver waits.
                thread::sleep(Duration::from_micros(300));
            }
        }
        consumer.join().expect("a consumer") + client.late_wakes(to)
    })
}

#[test]
fn no_wake_is_lost() {
    let (_directory, path) = region();
    // One may come at the moment at which a sleep ends by itself.
    assert!(late::<Node>(&path, 4000) <= 2);
    let check = Region::<Node>::open(&path).expect("a region").check().expect("a check");
    assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
}

struct WakesBeforeCommit;

impl Platform for WakesBeforeCommit {
    type Words = Mapped;
    type Liveness = <Node as Platform>::Liveness;

    fn fault() -> Option<Fault> {
        Some(Fault::WakesBeforeCommit)
    }
}

#[test]
fn a_wake_before_the_commit_is_found() {
    let (_directory, path) = region();
    // Each lost wake takes a moment: few messages.
    assert!(late::<WakesBeforeCommit>(&path, 60) > 2, "it was not found");
}

#[test]
fn a_receiver_outlives_the_death_of_its_sender() {
    let (_directory, path) = region();
    let mut receiver = Client::open(&path).expect("a client");
    let from = receiver.mailbox("m", 4).expect("a mailbox");
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..3 {
                let mut sender = Client::open(&path).expect("a client");
                let to = sender.mailbox("m", 4).expect("a mailbox");
                thread::sleep(Duration::from_millis(20));
                if number == 2 {
                    let object = sender.allocate(64).expect("an object");
                    assert!(sender.send(to, object, PATIENCE).expect("a sender"));
                }
                // Closed without a message: the receiver is woken, and sleeps again.
            }
        });
        assert!(receiver.receive(from, PATIENCE).expect("a receiver").is_some());
    });
}
