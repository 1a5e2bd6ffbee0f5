//! Clients of one process against a model that knows who owns what.
#![allow(unsafe_code)] // reason: writes to objects

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::ptr::NonNull;

use farfork::{Client, ObjectsError, Region, Timeout};
use proptest::prelude::*;
use proptest::test_runner::Config;

const CLIENTS: usize = 3;
const SLOTS: u64 = 4;

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize, u16),
    Free(usize, usize),
    /// From a client to the next one.
    Send(usize, usize),
    Receive(usize),
    /// Closes a client and opens another one in its place.
    Reopen(usize),
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    let client = 0..CLIENTS;
    prop_oneof![
        4 => (client.clone(), 1u16..2000).prop_map(|(client, count)| Step::Allocate(client, count)),
        4 => (client.clone(), 0usize..4000).prop_map(|(client, at)| Step::Free(client, at)),
        6 => (client.clone(), 0usize..4000).prop_map(|(client, at)| Step::Send(client, at)),
        6 => client.clone().prop_map(Step::Receive),
        1 => client.prop_map(Step::Reopen),
        1 => Just(Step::Check),
    ]
}

struct World {
    path: PathBuf,
    /// Freed objects are held back, and count as owned.
    is_checked: bool,
    clients: Vec<Client>,
    /// What the model says: content of each object of each client, and of the messages to each.
    owned: Vec<Vec<(NonNull<u8>, u64)>>,
    messages: Vec<VecDeque<(NonNull<u8>, u64)>>,
    next: u64,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Allocate(client, count) => {
                (0..count).for_each(|_| self.allocate(client));
            }
            Step::Free(client, at) => {
                let Some((object, content)) = self.pick(client, at) else { return };
                assert_eq!(read(object), content);
                self.clients[client].free(object).expect("its own");
                let again = self.clients[client].free(object);
                let is_refused = match again {
                    Err(ObjectsError::NotOwned { .. }) => !self.is_checked,
                    Err(ObjectsError::Misused { .. }) => self.is_checked,
                    _ => false,
                };
                assert!(is_refused, "freed twice");
            }
            Step::Send(client, at) => self.send(client, at),
            Step::Receive(client) => self.receive(client),
            Step::Reopen(client) => {
                self.owned[client].clear();
                // The old one first: its end of the mailbox is wanted.
                let parked = Client::open(&self.path).expect("a client");
                drop(std::mem::replace(&mut self.clients[client], parked));
            }
            Step::Check => self.check(),
        }
    }

    fn allocate(&mut self, client: usize) {
        // One in 16 has another size; a few take whole spans.
        let bytes = match self.next % 64 {
            0..60 => 64,
            60 => 8,
            61 => 1000,
            62 => 20_000,
            _ => 70_000,
        };
        match self.clients[client].allocate(bytes) {
            Ok(object) => {
                self.next += 1;
                write(object, self.next);
                self.owned[client].push((object, self.next));
            }
            Err(ObjectsError::Full | ObjectsError::NoRun { .. }) => self.next += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn pick(&mut self, client: usize, at: usize) -> Option<(NonNull<u8>, u64)> {
        let owned = &mut self.owned[client];
        (!owned.is_empty()).then(|| owned.swap_remove(at % owned.len()))
    }

    fn send(&mut self, client: usize, at: usize) {
        let to = (client + 1) % CLIENTS;
        let Some((object, content)) = self.pick(client, at) else { return };
        let sender = &mut self.clients[client];
        let mailbox = sender.mailbox(&format!("to-{to}"), SLOTS).expect("a mailbox");
        let has_room = sender.send(mailbox, object, Timeout::Poll).expect("a sender");
        assert_eq!(has_room, (self.messages[to].len() as u64) < SLOTS);
        if has_room {
            self.messages[to].push_back((object, content));
        } else {
            self.owned[client].push((object, content));
        }
    }

    fn receive(&mut self, client: usize) {
        let receiver = &mut self.clients[client];
        let mailbox = receiver.mailbox(&format!("to-{client}"), SLOTS).expect("a mailbox");
        let received = receiver.receive(mailbox, Timeout::Poll).expect("a receiver");
        let expected = self.messages[client].pop_front();
        assert_eq!(received, expected.map(|(object, _)| object));
        if let Some((object, content)) = expected {
            assert_eq!(read(object), content);
            self.owned[client].push((object, content));
        }
    }

    fn check(&self) {
        let check = self.clients[0].region().check().expect("a check");
        let owned: usize = self.owned.iter().map(Vec::len).sum();
        let sent: usize = self.messages.iter().map(VecDeque::len).sum();
        assert!(check.is_clean(), "{check:?}");
        assert!(check.owned == owned as u64 || self.is_checked && check.owned > owned as u64);
        assert_eq!(check.in_mailboxes, sent as u64);
        assert!(self.clients.iter().all(|client| client.findings().is_empty()));
        let bytes = check.bytes_free + check.bytes_owned + check.bytes_in_mailboxes;
        assert_eq!(bytes, check.bytes);
        let mut contents = HashMap::new();
        let all = self.owned.iter().flatten().chain(self.messages.iter().flatten());
        for (object, content) in all {
            assert_eq!(read(*object), *content, "an object changed");
            assert!(contents.insert(*object, *content).is_none(), "an object has two owners");
        }
    }
}

fn read(object: NonNull<u8>) -> u64 {
    // SAFETY: an object of a region that is mapped as long as the clients live.
    unsafe { object.cast().read() }
}

fn write(object: NonNull<u8>, content: u64) {
    // SAFETY: as above.
    unsafe { object.cast().write(content) }
}

proptest! {
    #![proptest_config(Config { cases: 40, failure_persistence: None, ..Config::default() })]

    #[test]
    fn clients_own_what_the_model_says(steps in prop::collection::vec(step(), 1..200)) {
        run(&steps, false);
    }
}

proptest! {
    #![proptest_config(Config { cases: 10, failure_persistence: None, ..Config::default() })]

    #[test]
    fn clients_of_checked_regions_do_so_too(steps in prop::collection::vec(step(), 1..100)) {
        run(&steps, true);
    }
}

fn run(steps: &[Step], is_checked: bool) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("region");
    let create = if is_checked { Region::create_checked } else { Region::create };
    create(&path, 2 << 20).expect("a region");
    let clients = (0..CLIENTS).map(|_| Client::open(&path).expect("a client")).collect();
    let (owned, messages) = (vec![Vec::new(); CLIENTS], vec![VecDeque::new(); CLIENTS]);
    let mut world = World { path, is_checked, clients, owned, messages, next: 0 };
    for step in steps {
        world.apply(step);
    }
    world.check();
}
