//! References of a structure against a model that knows what refers to what.
#![allow(unsafe_code)] // reason: reads and writes objects

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::ptr::NonNull;

use farfork::{Client, Mailbox, Metadata, ObjectsError, Region, Timeout};
use proptest::prelude::*;
use proptest::test_runner::Config;

const FIELDS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    /// An object of the client, that nothing refers to.
    Allocate,
    /// A reference of the structure means an object, any.
    Change {
        from: usize,
        field: usize,
        to: usize,
    },
    Unlink {
        from: usize,
        field: usize,
    },
    /// An object of the client, with what hangs on it.
    Free(usize),
    /// Another client receives the root, or lets it go.
    Share,
    Release,
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    let (any, field) = (0usize..1000, 0..FIELDS);
    prop_oneof![
        6 => Just(Step::Allocate),
        8 => (any.clone(), field.clone(), any.clone())
            .prop_map(|(from, field, to)| Step::Change { from, field, to }),
        4 => (any.clone(), field).prop_map(|(from, field)| Step::Unlink { from, field }),
        1 => any.prop_map(Step::Free),
        1 => Just(Step::Share),
        1 => Just(Step::Release),
        1 => Just(Step::Collect),
    ]
}

/// What the model knows of an object: the objects that it refers to, by their numbers.
#[derive(Debug, Clone)]
struct Known {
    object: NonNull<u8>,
    fields: [Option<u64>; FIELDS],
}

struct World {
    writer: Client,
    reader: Client,
    mailboxes: [Mailbox; 2],
    root: u64,
    known: BTreeMap<u64, Known>,
    /// Times that the reader holds the root.
    held: u32,
    next: u64,
    /// Freed objects that a checked client holds back. They count as owned.
    is_checked: bool,
    held_back: u64,
}

impl World {
    fn new(path: &Path, is_checked: bool) -> World {
        let [mut writer, mut reader] = [(); 2].map(|()| Client::open(path).expect("a client"));
        let mailboxes =
            [&mut writer, &mut reader].map(|client| client.mailbox("m", 4).expect("a mailbox"));
        let known = BTreeMap::new();
        let mut world = World {
            writer,
            reader,
            mailboxes,
            root: 0,
            known,
            held: 0,
            next: 0,
            is_checked,
            held_back: 0,
        };
        world.allocate();
        world
    }

    fn allocate(&mut self) {
        let object = self.writer.allocate_linkable(8 * (FIELDS + 1), FIELDS as u16);
        let object = object.expect("an object");
        // SAFETY: its last word.
        unsafe { object.cast::<u64>().add(FIELDS).write(self.next) };
        self.known.insert(self.next, Known { object, fields: [None; FIELDS] });
        self.next += 1;
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Allocate => self.allocate(),
            Step::Change { from, field, to } => self.change(from, field, Some(to)),
            Step::Unlink { from, field } => self.change(from, field, None),
            Step::Free(at) => {
                let loose = self.loose();
                if let Some(number) = loose.get(at % loose.len().max(1)).copied() {
                    self.writer.free(self.known[&number].object).expect("its own");
                    let known = self.known.remove(&number).expect("an object");
                    let is_alone = known.fields == [None; FIELDS];
                    self.held_back += u64::from(self.is_checked && is_alone);
                    self.forget_unreachable(&loose, number);
                }
            }
            Step::Share => {
                let root = self.known[&self.root].object;
                let sent = self.writer.send_root(self.mailboxes[0], root, Timeout::Poll);
                assert!(sent.expect("a sender"));
                let got = self.reader.receive(self.mailboxes[1], Timeout::Poll);
                assert_eq!(got.expect("a receiver"), Some(root));
                self.held += 1;
            }
            Step::Release if self.held > 0 => {
                self.reader.release(self.known[&self.root].object).expect("held");
                self.held -= 1;
            }
            Step::Release => {}
            Step::Collect => {
                let is_done = self.writer.collect(self.known[&self.root].object);
                assert_eq!(is_done.expect("the writer"), self.held == 0);
                if self.held == 0 {
                    self.check();
                }
            }
        }
        self.walk();
    }

    fn change(&mut self, from: usize, field: usize, to: Option<usize>) {
        let inside: Vec<u64> = self.reachable([self.root]).into_iter().collect();
        let from = inside[from % inside.len()];
        let all: Vec<u64> = self.known.keys().copied().collect();
        let to = to.map(|to| all[to % all.len()]);
        let loose = self.loose();
        let objects = |number: u64| self.known[&number].object;
        // A circle would never be freed.
        if to.is_some_and(|to| to != from && self.reachable([to]).contains(&from)) {
            return;
        }
        let (root, object) = (objects(self.root), to.map(objects));
        let changed = self.writer.change(root, objects(from), field as u16, object);
        if to == Some(from) {
            assert!(matches!(changed, Err(ObjectsError::NotLinkable { .. })), "{changed:?}");
            return;
        }
        changed.expect("the writer");
        self.known.get_mut(&from).expect("an object").fields[field] = to;
        self.forget_unreachable(&loose, self.root);
    }

    /// Objects of the client that nothing refers to, beside the root.
    fn loose(&self) -> Vec<u64> {
        let targets: HashSet<u64> =
            self.known.values().flat_map(|known| known.fields).flatten().collect();
        let is_loose = |number: &u64| *number != self.root && !targets.contains(number);
        self.known.keys().copied().filter(is_loose).collect()
    }

    fn reachable(&self, from: impl IntoIterator<Item = u64>) -> std::collections::BTreeSet<u64> {
        let mut seen = std::collections::BTreeSet::new();
        let mut open: Vec<u64> = from.into_iter().collect();
        while let Some(number) = open.pop() {
            if seen.insert(number) {
                open.extend(self.known[&number].fields.into_iter().flatten());
            }
        }
        seen
    }

    /// What hangs neither on the root nor on an object that was loose is freed.
    fn forget_unreachable(&mut self, loose: &[u64], gone: u64) {
        let roots = loose.iter().copied().filter(|number| *number != gone).chain([self.root]);
        let kept = self.reachable(roots);
        self.known.retain(|number, _| kept.contains(number));
    }

    /// A mailbox has the structure, nothing else lives on, and the metadata is lost and rebuilt.
    fn lose_node(mut self, path: &Path, metadata: &Path) {
        let root = self.known[&self.root].object;
        let to = self.mailboxes[0];
        let is_shared = match self.writer.send(to, root, Timeout::Poll) {
            Ok(is_sent) => !is_sent,
            Err(_) => self.writer.send_root(to, root, Timeout::Poll).expect("a sender"),
        };
        fs::remove_file(metadata).expect("metadata");
        let reader = Client::open(path).expect_err("clients live");
        assert!(matches!(reader, ObjectsError::MetadataLost { clients: 2, .. }), "{reader}");
        drop(self.writer);
        drop(self.reader);
        [self.writer, self.reader] = [(); 2].map(|()| Client::open(path).expect("a client"));
        let check = self.writer.region().check().expect("a check");
        let inside = self.reachable([self.root]).len() as u64;
        let expected = if is_shared { (0, inside + 1) } else { (1, inside - 1) };
        assert!(check.is_clean() && check.owned == 0, "{check:?}");
        assert_eq!((check.in_mailboxes, check.linked), expected, "{check:?}");
        let mailbox = self.reader.mailbox("m", 4).expect("a mailbox");
        let received = self.reader.receive(mailbox, Timeout::Poll);
        assert_eq!(received.expect("a receiver"), Some(root));
        self.walk();
        match is_shared {
            true => self.reader.release(root).expect("held"),
            false => self.reader.free(root).expect("its own"),
        }
        drop(self.reader);
        let check = self.writer.region().check().expect("a check");
        assert!(check.is_clean() && check.bytes_free == check.bytes, "{check:?}");
    }

    /// Both clients see the structure of the model.
    fn walk(&self) {
        for number in self.reachable([self.root]) {
            let known = &self.known[&number];
            // SAFETY: the words of an object that the model knows.
            let words: [u64; FIELDS + 1] = unsafe { known.object.cast().read() };
            assert_eq!(words[FIELDS], number, "another object is there");
            for (word, field) in words.iter().zip(known.fields) {
                let expected = field.map(|number| self.known[&number].object);
                let found = (*word != 0).then(|| self.reader.object(*word).expect("an object"));
                assert_eq!(found, expected);
            }
        }
    }

    fn check(&self) {
        let check = self.writer.region().check().expect("a check");
        assert!(check.is_clean(), "{check:?}");
        let loose = self.loose().len() as u64;
        let inside = self.known.len() as u64 - loose;
        let owned = |root: u64| loose + self.held_back + root;
        // A shared root is linked, and has a record.
        let is_right = [(owned(1), inside - 1), (owned(0), inside + 1)];
        assert!(is_right.contains(&(check.owned, check.linked)), "{check:?}: {is_right:?}");
    }

    /// Everything that hangs on the root goes with it.
    fn end(mut self) {
        for _ in 0..self.held {
            self.reader.release(self.known[&self.root].object).expect("held");
        }
        let root = self.known[&self.root].object;
        let is_alone = self.known[&self.root].fields == [None; FIELDS];
        if self.writer.free(root).is_err() {
            self.writer.release(root).expect("held");
        } else if self.is_checked && is_alone {
            self.held_back += 1;
        }
        let check = self.writer.region().check().expect("a check");
        let loose = self.loose();
        let kept = self.reachable(loose.iter().copied()).len() as u64;
        let count = loose.len() as u64;
        assert!(check.is_clean(), "{check:?}");
        assert_eq!((check.owned, check.linked), (count + self.held_back, kept - count));
        drop(self.writer);
        let check = self.reader.region().check().expect("a check");
        assert_eq!((check.owned, check.linked), (0, 0), "closing frees structures");
    }
}

proptest! {
    #![proptest_config(Config { cases: 60, failure_persistence: None, ..Config::default() })]

    #[test]
    fn structures_are_what_the_model_says(
        steps in prop::collection::vec(step(), 1..250),
        is_checked: bool,
        is_node_local: bool,
    ) {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = directory.path().join("region");
        let metadata = match is_node_local {
            true => Metadata::Node(directory.path().to_owned()),
            false => Metadata::Region,
        };
        Region::create_with(&path, 2 << 20, is_checked, &metadata).expect("a region");
        let mut world = World::new(&path, is_checked);
        for step in &steps {
            world.apply(step);
        }
        match world.writer.region().info().expect("facts").metadata {
            Some(metadata) => world.lose_node(&path, &metadata.path),
            None => world.end(),
        }
    }
}
