//! Platforms: of this machine, with a kill at any store, and with one of the known faults.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use farfork::seeded::{FAULTS, Fault};
use farfork::words::{Mapped, Words};
use farfork::{Node, Platform};
use nix::sys::signal::{Signal, raise};

/// Stores that are left. The process kills itself before the one that follows.
static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Lets the process do so many stores from now on.
pub fn arm(stores: u64) {
    LEFT.store(stores, Ordering::SeqCst);
}

fn step() {
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 0 {
        let _ = raise(Signal::SIGKILL);
    }
}

/// Memory of this machine whose stores are counted.
#[derive(Clone)]
pub struct Counted(Mapped);

impl From<Mapped> for Counted {
    fn from(mapped: Mapped) -> Counted {
        Counted(mapped)
    }
}

impl Words for Counted {
    type Plain = Counted;

    fn plain(&self) -> Option<&Counted> {
        Some(self)
    }

    fn tail(&self, at: usize) -> Counted {
        Counted(self.0.tail(at))
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.byte(at)
    }

    fn byte_within(&self, at: usize) -> Option<u8> {
        self.0.byte_within(at)
    }

    fn set_byte(&self, at: usize, value: u8) {
        step();
        self.0.set_byte(at, value);
    }

    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let is_from = self.0.byte_within(at) == Some(from);
        if is_from {
            self.set_byte(at, to);
        }
        is_from
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        step();
        self.0.claim_byte(at, from, to)
    }

    fn word(&self, at: usize) -> u64 {
        self.0.word(at)
    }

    fn set_word(&self, at: usize, value: u64) {
        step();
        self.0.set_word(at, value);
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        step();
        self.0.claim_word(at, from, to)
    }

    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool {
        self.0.sleep(at, seen, time)
    }

    fn wake(&self, at: usize) {
        self.0.wake(at);
    }

    fn order_with_others(&self) {
        self.0.order_with_others();
    }

    fn flush(&self, at: usize, bytes: usize) {
        self.0.flush(at, bytes);
    }

    fn invalidate(&self, at: usize, bytes: usize) {
        self.0.invalidate(at, bytes);
    }
}

/// The fault of [`Faulty`] and [`FaultyCounting`], 0 for none. One place instead of a type for each fault, which
/// would compile all operations for each of them.
static FAULT: AtomicUsize = AtomicUsize::new(0);

/// Has faulty platforms have a fault from now on.
pub fn seed(fault: Fault) {
    let place = FAULTS.iter().position(|known| *known == fault).expect("a known fault");
    FAULT.store(place + 1, Ordering::SeqCst);
}

fn seeded() -> Option<Fault> {
    FAULT.load(Ordering::Relaxed).checked_sub(1).map(|place| FAULTS[place])
}

/// A platform without a fault, whose code is a program's.
pub struct Plain;

impl Platform for Plain {
    type Words = Mapped;
    type Liveness = Locks;
}

/// One whose stores are counted.
pub struct Counting;

impl Platform for Counting {
    type Words = Counted;
    type Liveness = Locks;

    fn step() {
        step();
    }
}

/// A platform with the seeded fault.
pub struct Faulty;

impl Platform for Faulty {
    type Words = Mapped;
    type Liveness = Locks;

    fn fault() -> Option<Fault> {
        seeded()
    }
}

/// One whose stores are counted.
pub struct FaultyCounting;

impl Platform for FaultyCounting {
    type Words = Counted;
    type Liveness = Locks;

    fn step() {
        step();
    }

    fn fault() -> Option<Fault> {
        seeded()
    }
}

type Locks = <Node as Platform>::Liveness;
