//! What every mechanism of liveness must do.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use farfork::liveness::{KernelLocks, Liveness};
use farfork::{CLIENTS, ClientId};

/// A mechanism for tests: a table of this thread.
#[derive(Clone, Default)]
struct Table(Rc<RefCell<HashSet<u8>>>);

struct Row(Table, u8);

impl Drop for Row {
    fn drop(&mut self) {
        self.0.0.borrow_mut().remove(&self.1);
    }
}

impl Table {
    fn take(&self, number: u8) -> Option<Row> {
        self.0.borrow_mut().insert(number).then(|| Row(self.clone(), number))
    }
}

impl Liveness for Table {
    type Claim = Row;

    fn claim(&self, id: ClientId) -> io::Result<Option<Row>> {
        Ok(self.take(id.number()))
    }

    fn is_alive(&self, id: ClientId) -> io::Result<bool> {
        Ok(self.0.borrow().contains(&id.number()))
    }

    fn is_held_by(&self, id: ClientId, pid: u32) -> bool {
        pid == std::process::id() && self.0.borrow().contains(&id.number())
    }

    fn turn(&self) -> io::Result<Row> {
        self.take(0).ok_or_else(|| io::Error::other("the holder is this thread"))
    }
}

/// `one` and `other` are two views of the same clients.
fn conforms<L: Liveness>(one: &L, other: &L) {
    let id = |number| ClientId::new(number).expect("an id");
    let is_alive = |id| {
        let views = [one, other].map(|view| view.is_alive(id).expect("an answer"));
        assert_eq!(views[0], views[1], "both see the same");
        views[0]
    };
    for number in [1, 2, CLIENTS] {
        assert!(!is_alive(id(number)), "{number} was never claimed");
        let claim = one.claim(id(number)).expect("an answer").expect("a claim");
        assert!(is_alive(id(number)), "{number} is claimed");
        for view in [one, other] {
            assert!(view.claim(id(number)).expect("an answer").is_none(), "{number} twice");
        }
        assert!(is_alive(id(number)), "an attempt ended the claim of {number}");
        let (own, init) = (std::process::id(), 1);
        for view in [one, other] {
            assert!(view.is_held_by(id(number), own), "this process holds {number}");
            assert!(!view.is_held_by(id(number), init), "another process holds {number}");
        }
        let another = id(if number == 1 { 3 } else { number - 1 });
        assert!(!is_alive(another), "a claim is of one id only");
        assert!(!one.is_held_by(another, own), "a claim of {number} seems one of another id");
        drop(claim);
        assert!(!is_alive(id(number)), "the claim of {number} has ended");
        assert!(!one.is_held_by(id(number), own), "its holder is named still");
        drop(other.claim(id(number)).expect("an answer").expect("a new claim"));
    }
    let claim = other.claim(id(CLIENTS)).expect("an answer").expect("a claim");
    assert!(one.claim_all().expect("an answer").is_none(), "one is claimed");
    assert!(ClientId::all().all(|id| is_alive(id) == (id.number() == CLIENTS)), "none is kept");
    drop(claim);
    let claims = one.claim_all().expect("an answer").expect("all claims");
    for at in ClientId::all() {
        assert!(is_alive(at) && other.claim(at).expect("an answer").is_none(), "{at:?}");
    }
    let turn = other.turn().expect("the turn, which no claim of a client takes");
    drop((claims, turn));
    let turn = one.turn().expect("the turn");
    assert!(ClientId::all().all(|id| !is_alive(id)), "a turn is of no client");
    drop(turn);
    drop(other.turn().expect("the turn again"));
}

fn locks() -> (KernelLocks, KernelLocks) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let open = || File::options().read(true).write(true).open(file.path()).expect("the file");
    (KernelLocks::new(open()), KernelLocks::new(open()))
}

/// A child has the locks of its parent from the fork until it executes its program: none may be started while
/// another test looks at locks.
static NO_CHILDREN: Mutex<()> = Mutex::new(());

#[test]
fn kernel_locks_conform() {
    let _alone = NO_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, other) = locks();
    conforms(&one, &other);
}

#[test]
fn a_table_conforms() {
    let table = Table::default();
    conforms(&table, &table.clone());
}

/// The locks of a dead process must not seem alive because it has forked.
#[test]
fn a_child_that_outlives_its_parent_does_not_keep_it_alive() {
    let _alone = NO_CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, other) = locks();
    let id = ClientId::new(5).expect("an id");
    let claim = one.claim(id).expect("an answer").expect("a claim");
    let mut child = std::process::Command::new("sleep").arg("5").spawn().expect("a child");
    drop(claim);
    let is_alive = other.is_alive(id).expect("an answer");
    child.kill().and_then(|()| child.wait()).expect("the end of the child");
    assert!(!is_alive, "the child has the lock");
}
