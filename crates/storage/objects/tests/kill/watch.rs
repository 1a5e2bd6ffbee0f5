//! Watchers, which are killed like any other process.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork::{Client, Node, Region};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child;
use crate::stage::{demand, words};

/// How long a loaded machine may take.
const PATIENCE: Duration = Duration::from_secs(60);
const OBJECTS: u64 = 5000;

fn watch(path: &Path) -> Pid {
    child::start(|| {
        let region = Region::<Node>::open(path).expect("a region");
        region.watch(&AtomicBool::new(false)).expect("it watches");
    })
}

/// A client with objects, which does nothing more.
fn victim(path: &Path) -> Pid {
    child::start(|| {
        let mut client = Client::open(path).expect("a client");
        for _ in 0..OBJECTS {
            client.allocate(64).expect("an object");
        }
        loop {
            sleep(PATIENCE);
        }
    })
}

fn until(what: &str, region: &Region, is: impl Fn(u64, u64) -> bool) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let info = region.info().map_err(words)?;
        if is(info.objects, info.clients.len() as u64 + info.clients_dead) {
            return Ok(());
        }
        sleep(Duration::from_millis(2));
    }
    Err(format!("{what}: {:?}", region.info()))
}

fn end(process: Pid) -> Result<(), String> {
    kill(process, Signal::SIGKILL).map_err(|errno| errno.to_string())?;
    child::end(process).map(drop)
}

/// Clients die one after the other, and so do watchers, at any moment of a recovery. Nothing else recovers here.
pub fn recovers() -> Result<(), String> {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    Region::create(&path, 4 << 20).map_err(words)?;
    let region = Region::<Node>::open(&path).map_err(words)?;
    let mut watcher = watch(&path);
    for round in 0..20 {
        let client = victim(&path);
        until("no objects", &region, |objects, _| objects == OBJECTS)?;
        end(client)?;
        // Later with each round, and perhaps after it is done.
        sleep(Duration::from_micros(40 * round));
        end(watcher)?;
        watcher = watch(&path);
        until("not recovered", &region, |objects, clients| (objects, clients) == (0, 0))?;
    }
    end(watcher)?;
    let check = region.check().map_err(words)?;
    let is_right = check.is_clean() && check.bytes_free == check.bytes;
    demand(is_right && check.clients_recovered == 0, || format!("{check:?}"))
}
