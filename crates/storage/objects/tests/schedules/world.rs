//! Clients of a simulated region, and what must be true of them in every schedule.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::PathBuf;
use std::ptr::NonNull;

use farfork::seeded::Fault;
use farfork::{Mailbox, Region, Timeout};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::{JoinHandle, spawn, yield_now};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tempfile::TempDir;

use crate::machine::{self, Killed, Simulated};

pub type Client = farfork::Client<Simulated>;
/// An object by its address. Its bytes are not in the memory of this process.
pub type Object = usize;

const REGION_BYTES: u64 = 1 << 20;
/// Holes are looked for once in 64 polls.
const POLLS: u32 = 70;
/// A schedule with more steps goes round in circles.
const MOST_STEPS: usize = 200_000;
/// Priority changes in a schedule (PCT).
const DEPTH: usize = 4;

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

/// Which client has which object, and what the users of objects wrote there.
#[derive(Default)]
struct Ledger {
    owners: HashMap<Object, u8>,
    contents: HashMap<Object, u64>,
}

/// A region's file, of which only the header matters.
pub struct World {
    _directory: TempDir,
    path: PathBuf,
}

impl World {
    pub fn new() -> World {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("region");
        Region::create(&path, REGION_BYTES).expect("a region");
        World { _directory: directory, path }
    }

    /// Executes a scenario in so many schedules, half of them random and half by priorities. Stops at the first that
    /// goes wrong, and says how.
    pub fn explore(
        &self,
        fault: Option<Fault>,
        seed: u64,
        schedules: usize,
        scenario: fn(&Stage) -> Result<(), String>,
    ) -> Result<(), String> {
        machine::set_fault(fault);
        let mut config = Config::new();
        config.stack_size = 1 << 18;
        config.failure_persistence = FailurePersistence::None;
        config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
        let path = self.path.clone();
        let execution = move || {
            LEDGER.take();
            machine::begin(REGION_BYTES);
            if let Err(failure) = scenario(&Stage { path: path.clone() }) {
                panic_any(failure);
            }
        };
        let random = RandomScheduler::new_from_seed(seed, schedules / 2);
        let prioritized = PctScheduler::new_from_seed(seed, DEPTH, schedules / 2);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            Runner::new(random, config.clone()).run(execution.clone());
            Runner::new(prioritized, config).run(execution);
        }));
        machine::set_fault(None);
        ended.map_err(|payload| words(payload.as_ref()))
    }
}

fn words(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "something".to_owned())
}

/// One execution.
pub struct Stage {
    path: PathBuf,
}

impl Stage {
    pub fn client(&self) -> Client {
        Client::open_on(&self.path).expect("a client")
    }

    /// A task that recovers dead clients, and may die before it has recovered them.
    pub fn rescuer(&self, life: Option<u64>) -> JoinHandle<()> {
        let path = self.path.clone();
        spawn(move || {
            machine::set_life(life);
            let recover = || Region::<Simulated>::open(&path).and_then(|region| region.recover());
            match catch_unwind(AssertUnwindSafe(recover)) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => machine::fail(format!("a recovery: {error}")),
                Err(payload) => judge(payload.as_ref()),
            }
            machine::set_ended();
        })
    }

    /// Once all tasks have ended: what dead clients left is recovered, and everything that is left accounted for. `drain`
    /// gets what is in mailboxes.
    pub fn verify(
        &self,
        drain: impl FnOnce(&mut Client) -> Result<(), String>,
    ) -> Result<(), String> {
        machine::end()?;
        let mut client = self.client();
        let before = client.region().recover().map_err(|error| error.to_string())?;
        drain(&mut client)?;
        drop(client);
        machine::end()?;
        let region = Region::<Simulated>::open(&self.path).map_err(|error| error.to_string())?;
        let check = region.check().map_err(|error| error.to_string())?;
        let is_empty = check.bytes_free == check.bytes;
        match check.is_clean() && is_empty {
            true => Ok(()),
            false => Err(format!("{check:?}, after {before} recoveries")),
        }
    }
}

fn judge(payload: &(dyn std::any::Any + Send)) {
    if !payload.is::<Killed>() {
        machine::fail(format!("a panic: {}", words(payload)));
    }
}

/// A number of stores after which a client dies, or none.
pub fn life(most: u64) -> Option<u64> {
    Some(thread_rng().gen_range(0..=2 * most)).filter(|life| *life <= most)
}

/// A task that uses a client, and may die before it has closed it.
pub fn act(
    client: Client,
    life: Option<u64>,
    act: impl FnOnce(&mut Client) + Send + 'static,
) -> JoinHandle<()> {
    spawn(move || {
        machine::set_life(life);
        let id = client.id();
        let mut client = Some(client);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            if let Some(client) = &mut client {
                act(client);
            }
            LEDGER.with_borrow_mut(|ledger| ledger.owners.retain(|_, owner| *owner != id));
            drop(client.take());
        }));
        if let Err(payload) = ended {
            judge(payload.as_ref());
            LEDGER.with_borrow_mut(|ledger| ledger.owners.retain(|_, owner| *owner != id));
            machine::bury(client, id);
        }
        machine::set_ended();
    })
}

/// The client has an object from now on.
fn take(client: &Client, object: Object) {
    let before = LEDGER.with_borrow_mut(|ledger| ledger.owners.insert(object, client.id()));
    if let Some(other) = before {
        let id = client.id();
        machine::fail(format!("client {id} got an object of client {other} at {object:#x}"));
    }
}

fn leave(object: Object) {
    LEDGER.with_borrow_mut(|ledger| ledger.owners.remove(&object));
}

pub fn pointer(object: Object) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(object)).unwrap_or(NonNull::dangling())
}

/// Allocates, and tries again while there is no memory.
pub fn allocate(client: &mut Client, bytes: usize, content: u64) -> Option<Object> {
    for _ in 0..4 {
        if let Ok(object) = client.allocate(bytes) {
            let object = object.addr().get();
            take(client, object);
            LEDGER.with_borrow_mut(|ledger| ledger.contents.insert(object, content));
            return Some(object);
        }
        yield_now();
    }
    None
}

pub fn free(client: &mut Client, object: Object) {
    leave(object);
    if let Err(error) = client.free(pointer(object)) {
        machine::fail(format!("a free: {error}"));
    }
}

/// Sends, and tries again while there is no room; returns whether it was sent.
pub fn send(
    client: &mut Client,
    to: Mailbox,
    object: Object,
    tries: u32,
    timeout: Timeout,
) -> bool {
    leave(object);
    for _ in 0..tries {
        match client.send(to, pointer(object), timeout) {
            Ok(true) => return true,
            Ok(false) => yield_now(),
            Err(error) => machine::fail(format!("a send: {error}")),
        }
    }
    false
}

/// Receives once; returns the object and what its sender wrote there.
pub fn receive(client: &mut Client, from: Mailbox, timeout: Timeout) -> Option<(Object, u64)> {
    match client.receive(from, timeout) {
        Ok(received) => received.map(|object| {
            let object = object.addr().get();
            take(client, object);
            let content = LEDGER.with_borrow(|ledger| ledger.contents.get(&object).copied());
            (object, content.unwrap_or(u64::MAX))
        }),
        Err(error) => {
            machine::fail(format!("a receive: {error}"));
            None
        }
    }
}

/// Receives all that is there, and frees it.
pub fn drain(client: &mut Client, from: Mailbox) -> Vec<u64> {
    let (mut received, mut polls) = (Vec::new(), 0);
    while polls < POLLS {
        polls += 1;
        if let Some((object, content)) = receive(client, from, Timeout::Poll) {
            received.push(content);
            free(client, object);
            polls = 0;
        }
    }
    received
}
