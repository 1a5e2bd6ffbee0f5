//! Clients that die in a guarded operation: a payment between two accounts, with a receipt.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use farfork::{Client, Code, Guard, Mailbox, ObjectsError, Operation, Platform, Region, Timeout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child::{self, End, run_stepped};
use crate::objects::{number, set_number, set_words};
use crate::operations::Kill;
use crate::platforms::{Counting, arm};
use crate::stage::{create, demand, words};

type Object = NonNull<u8>;

pub const MONEY: u64 = 1000;
const AMOUNT: u64 = 7;
pub const SLOTS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client does when it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// The operation.
    Pay,
    /// The same, and another client pays before the dead one is recovered.
    Meet,
    /// Completing it for a client that died after so many stores.
    Complete(u64),
}

pub const ALL: [Deed; 6] = [
    Deed::Pay,
    Deed::Meet,
    Deed::Complete(15),
    Deed::Complete(24),
    Deed::Complete(34),
    Deed::Complete(43),
];

/// Words of the arguments: two accounts, and an object that the client gives up.
fn arguments(words: [u64; 3]) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The operation. What it reads, it reads under locks; what it changes is what it read.
fn pay<P: Platform>(guard: &mut Guard<'_, P>, arguments: &[u8]) -> Result<(), ObjectsError> {
    let word = |index: usize| {
        let bytes = arguments[8 * index..][..8].try_into().expect("8 bytes");
        NonNull::new(u64::from_le_bytes(bytes) as *mut u64).expect("an argument")
    };
    let (from, to, token) = (word(0), word(1), word(2));
    guard.lock(3)?;
    guard.lock(60)?;
    let balance = guard.load(from)?;
    let receipt = guard.allocate(64)?;
    for index in 0..8 {
        let word = receipt.cast::<u64>().as_ptr().wrapping_add(index);
        guard.store(NonNull::new(word).expect("a word"), balance)?;
    }
    guard.store(from, balance - AMOUNT)?;
    let is_sent = guard.send("receipts", SLOTS, receipt)?;
    assert!(is_sent, "the mailbox has room");
    let other = guard.load(to)?;
    guard.store(to, other + AMOUNT)?;
    guard.free(token.cast())
}

fn code<P: Platform>() -> Code<P> {
    Arc::new(|guard, arguments| i32::from(pay(guard, arguments).is_err()))
}

/// A region with a peer that lives and has the accounts.
pub struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
    peer: Client,
    receipts: Mailbox,
    accounts: [Object; 2],
}

impl Place {
    pub fn new() -> Place {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = create(directory.path(), 2 << 20);
        let mut peer = Client::open(&path).expect("a client");
        let receipts = peer.mailbox("receipts", SLOTS).expect("a mailbox");
        let accounts = [MONEY, 0].map(|money| {
            let account = peer.allocate(64).expect("an account");
            set_number(account, money);
            account
        });
        Place { _directory: directory, path, peer, receipts, accounts }
    }

    /// Balances, the first word of each account.
    fn balances(&self) -> [u64; 2] {
        self.accounts.map(crate::objects::first)
    }

    /// Receives all receipts: the balances before each payment.
    fn receipts(&mut self) -> Result<Vec<u64>, String> {
        let (mut receipts, mut polls) = (Vec::new(), 0);
        while polls < 70 {
            polls += 1;
            if let Some(object) = self.peer.receive(self.receipts, Timeout::Poll).map_err(words)? {
                receipts.push(number(object));
                self.peer.free(object).map_err(words)?;
                polls = 0;
            }
        }
        Ok(receipts)
    }

    /// Everything is there once; returns how many payments there were.
    fn verify(&mut self) -> Result<usize, String> {
        let balances = self.balances();
        let receipts = self.receipts()?;
        let check = self.peer.region().check().map_err(words)?;
        demand(check.is_clean() && check.owned == 2, || format!("{check:?}"))?;
        let befores: Vec<u64> = (0..receipts.len() as u64).map(|at| MONEY - AMOUNT * at).collect();
        let paid = AMOUNT * receipts.len() as u64;
        let is_right = receipts == befores && balances == [MONEY - paid, paid];
        demand(is_right, || format!("balances {balances:?}, receipts {receipts:?}"))?;
        // The locks are free, and another client can send receipts.
        self.pay_by_another()?;
        let next = self.receipts()?;
        let is_next = next == [MONEY - paid] && self.balances()[1] == paid + AMOUNT;
        demand(is_next, || format!("then {next:?}, {:?}", self.balances()))?;
        [MONEY, 0].into_iter().zip(self.accounts).for_each(|(money, at)| set_number(at, money));
        Ok(receipts.len())
    }

    fn pay_by_another(&self) -> Result<(), String> {
        let mut fresh = Client::open(&self.path).map_err(words)?;
        // A fault may let it fail.
        let paid = catch_unwind(AssertUnwindSafe(|| call(&mut fresh, self.accounts)));
        paid.map_err(|_| "another client cannot pay".to_owned())
    }
}

fn call<P: Platform + 'static>(client: &mut Client<P>, accounts: [Object; 2]) {
    let (operation, token) = registered(client);
    pay_now(client, &operation, accounts, token);
    assert!(client.free(token).is_err(), "the operation has freed it");
}

/// Pays from one object to another one.
pub fn pay_once<P: Platform + 'static>(client: &mut Client<P>, accounts: [Object; 2]) {
    accounts.iter().for_each(|account| set_number(*account, MONEY));
    let (operation, token) = registered(client);
    pay_now(client, &operation, accounts, token);
}

fn registered<P: Platform + 'static>(client: &mut Client<P>) -> (Operation<P>, Object) {
    let token = client.allocate(64).expect("an object");
    (client.region().guard_register("pay", 1, code()).expect("registered"), token)
}

fn pay_now<P: Platform + 'static>(
    client: &mut Client<P>,
    operation: &Operation<P>,
    accounts: [Object; 2],
    token: Object,
) {
    let arguments = arguments([accounts[0], accounts[1], token].map(|at| at.addr().get() as u64));
    assert_eq!(client.guard_call(operation, &arguments).expect("called"), 0);
}

/// Becomes a client, whose next intent lies where the arguments of another payment are.
fn prepared<P: Platform>(path: &Path, accounts: [Object; 2]) -> Client<P> {
    let mut client = Client::<P>::open_on(path).expect("a client");
    let from = accounts[0].addr().get() as u64;
    let mut stale = [from; 512];
    stale[4] = 24;
    let objects: Vec<_> = (0..32).map(|_| client.allocate(4096).expect("an object")).collect();
    for object in objects {
        set_words(object, &stale);
        client.free(object).expect("its own");
    }
    client
}

fn dies<P: Platform + 'static>(
    path: &Path,
    accounts: [Object; 2],
    stores: u64,
) -> Result<End, String> {
    child::end(child::start(|| {
        let mut client = prepared::<P>(path, accounts);
        let (operation, token) = registered(&mut client);
        arm(stores);
        pay_now(&mut client, &operation, accounts, token);
        std::mem::forget(client);
    }))
}

fn run<P: Platform + 'static>(
    place: &mut Place,
    deed: Deed,
    kill: Kill,
) -> Result<(End, bool), String> {
    let (path, accounts) = (place.path.clone(), place.accounts);
    let end = match (deed, kill) {
        (Deed::Pay | Deed::Meet, Kill::Store(stores)) => dies::<P>(&path, accounts, stores)?,
        (Deed::Pay | Deed::Meet, Kill::Instruction(steps)) => run_stepped(
            steps,
            || {
                let mut client = prepared::<P>(&path, accounts);
                let (operation, token) = registered(&mut client);
                (client, operation, token)
            },
            |(mut client, operation, token)| {
                pay_now(&mut client, &operation, accounts, token);
                std::mem::forget(client);
            },
        )?,
        (Deed::Complete(dead), Kill::Store(stores) | Kill::Instruction(stores)) => {
            dies::<Counting>(&path, accounts, dead)?;
            child::end(child::start(|| {
                let region = Region::<P>::open(&path).expect("a region");
                region.guard_register("pay", 1, code()).expect("registered");
                arm(stores);
                region.recover().expect("a recovery");
            }))?
        }
    };
    // The peer works on, without the code.
    for _ in 0..100 {
        let object = place.peer.allocate(64).map_err(words)?;
        place.peer.free(object).map_err(words)?;
    }
    if deed == Deed::Meet {
        place.pay_by_another()?;
    }
    let region = Region::<P>::open(&path).map_err(words)?;
    region.guard_register("pay", 1, code()).map_err(words)?;
    region.recover().map_err(words)?;
    let others = usize::from(deed == Deed::Meet);
    Ok((end, place.verify()? > others))
}

/// Kills at every `stride`-th instruction or store, until the deed finishes; returns how many kills there were.
pub fn kill_everywhere<P: Platform + 'static>(
    deed: Deed,
    stride: u64,
    kill: fn(u64) -> Kill,
) -> Result<u64, String> {
    let mut place = Place::new();
    let (mut at, mut kills, mut had_happened) = (0, 0, false);
    loop {
        let said = |what: String| format!("{deed:?}, {:?}: {what}", kill(at));
        let (end, has_happened) = run::<P>(&mut place, deed, kill(at)).map_err(said)?;
        // How many instructions come before a store varies: the operation reads a clock.
        let may_vary = matches!(kill(at), Kill::Instruction(_));
        demand(may_vary || has_happened || !had_happened, || "it was undone".to_owned())
            .map_err(said)?;
        had_happened |= has_happened;
        if end == End::Finished {
            demand(has_happened, || "it never happened".to_owned()).map_err(said)?;
            return Ok(kills);
        }
        kills += 1;
        at += stride;
    }
}

fn until(what: &str, is: impl Fn() -> bool) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    while !is() {
        demand(Instant::now() < end, || what.to_owned())?;
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Ends with the test.
struct Process(Pid);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = child::end(self.0);
    }
}

/// Starts a process that completes operations, with a short grace period.
fn keeper(path: &Path, code: fn() -> Code) -> Process {
    Process(child::start(|| {
        let register = |region: &Region| {
            let operation = region.guard_register("work", 1, code())?;
            region.set_grace(&operation, Duration::from_millis(100));
            Ok(())
        };
        farfork::guard::<farfork::Node>(path, &register, &AtomicBool::new(false)).expect("guards");
    }))
}

/// Starts a client that calls the operation `work` for one account.
fn worker(path: &Path, code: fn() -> Code, account: Object) -> Pid {
    child::start(|| {
        let mut client = Client::open(path).expect("a client");
        let operation = client.region().guard_register("work", 1, code()).expect("registered");
        let argument = (account.addr().get() as u64).to_le_bytes();
        client.guard_call(&operation, &argument).expect("called");
    })
}

fn account(arguments: &[u8]) -> NonNull<u64> {
    let address = u64::from_le_bytes(arguments.try_into().expect("8 bytes"));
    NonNull::new(address as *mut u64).expect("an account")
}

/// Never ends.
fn endless() -> Code {
    Arc::new(|guard, arguments| {
        guard.lock(1).expect("a lock");
        guard.store(account(arguments), MONEY + 1).expect("an account");
        loop {
            sleep(PATIENCE);
        }
    })
}

/// Stops its process the first time, and adds one.
fn stopping() -> Code {
    Arc::new(|guard, arguments| {
        guard.lock(1).expect("a lock");
        let balance = guard.load(account(arguments)).expect("an account");
        if guard.done().is_none() {
            guard.record(1).expect("a step");
            nix::sys::signal::raise(Signal::SIGSTOP).expect("a stop");
        }
        guard.store(account(arguments), balance + 1).expect("an account");
        0
    })
}

/// Ends every process that runs it.
fn deadly() -> Code {
    Arc::new(|guard, arguments| {
        guard.store(account(arguments), MONEY + 1).expect("an account");
        nix::sys::signal::raise(Signal::SIGKILL).expect("a kill");
        0
    })
}

/// What takes longer than the grace period is ended, and completed or abandoned; locks become free.
pub fn ends_overdue() -> Result<(), String> {
    // The last: how often it is completed, and abandoned.
    for (code, expected) in
        [(endless as fn() -> Code, (0, 1)), (stopping, (1, 0)), (deadly, (0, 1))]
    {
        let place = Place::new();
        let keeper = keeper(&place.path, code);
        until("registered", || !place.peer.region().operations().is_empty())?;
        let worker = worker(&place.path, code, place.accounts[0]);
        let counts = || {
            let known = &place.peer.region().operations()[0];
            (known.completed, known.abandoned)
        };
        until("neither completed nor abandoned", || counts() == expected)?;
        demand(place.balances()[0] == MONEY + 1, || format!("{:?}", place.balances()))?;
        demand(child::end(worker)? == End::Killed, || "the client lives".to_owned())?;
        let clients = || {
            place
                .peer
                .region()
                .info()
                .map_or(0, |info| info.clients.len() as u64 + info.clients_dead)
        };
        until("the client is left", || clients() == 1)?;
        drop(keeper);
        let check = place.peer.region().check().map_err(words)?;
        demand(check.is_clean() && check.owned == 2, || format!("{check:?}"))?;
    }
    Ok(())
}
