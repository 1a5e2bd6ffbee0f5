//! Platforms: of this machine, with a kill at any store, and with each of the known faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farfork::seeded::Fault;
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

/// A platform whose stores are counted, with the fault `Of`.
pub struct Counting<Of>(Of);

/// A platform with the fault `Of`.
pub struct Plain<Of>(Of);

/// A fault as a type.
pub trait Known {
    /// It.
    const FAULT: Option<Fault>;
}

impl<Of: Known> Platform for Counting<Of> {
    type Words = Counted;
    type Liveness = Locks;
    const FAULT: Option<Fault> = Of::FAULT;
}

impl<Of: Known> Platform for Plain<Of> {
    type Words = Mapped;
    type Liveness = Locks;
    const FAULT: Option<Fault> = Of::FAULT;
}

type Locks = <Node as Platform>::Liveness;

macro_rules! known {
    ($($name:ident = $fault:expr;)*) => {$(
        #[doc = stringify!($fault)]
        pub struct $name;
        impl Known for $name {
            const FAULT: Option<Fault> = $fault;
        }
    )*};
}

known! {
    NoFault = None;
    SendCommitsBeforeSlot = Some(Fault::SendCommitsBeforeSlot);
    SendMovesTailLast = Some(Fault::SendMovesTailLast);
    ReceiveEmptiesSlotFirst = Some(Fault::ReceiveEmptiesSlotFirst);
    RecoveryFreesBeforeSlots = Some(Fault::RecoveryFreesBeforeSlots);
    RecoveryFreesIdFirst = Some(Fault::RecoveryFreesIdFirst);
    RecoveryClearsMarksFirst = Some(Fault::RecoveryClearsMarksFirst);
    ClaimMarksLast = Some(Fault::ClaimMarksLast);
    ReceiveMarksLast = Some(Fault::ReceiveMarksLast);
    RunCommitsFirst = Some(Fault::RunCommitsFirst);
    FreeTakesRunLast = Some(Fault::FreeTakesRunLast);
    StoresBeforeIntent = Some(Fault::StoresBeforeIntent);
    IntentCommitsFirst = Some(Fault::IntentCommitsFirst);
    RecoveryForgetsIntent = Some(Fault::RecoveryForgetsIntent);
    DyingIsFreedInList = Some(Fault::DyingIsFreedInList);
    GuardCommitsFirst = Some(Fault::GuardCommitsFirst);
    StepCountsFirst = Some(Fault::StepCountsFirst);
    GuardUnlocksFirst = Some(Fault::GuardUnlocksFirst);
    RecoveryForgetsGuard = Some(Fault::RecoveryForgetsGuard);
    LoadIsNotRecorded = Some(Fault::LoadIsNotRecorded);
    ReleaseFreesFirstSpanFirst = Some(Fault::ReleaseFreesFirstSpanFirst);
}
