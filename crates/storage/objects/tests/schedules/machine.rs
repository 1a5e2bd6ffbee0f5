//! A simulated machine: memory, a store buffer for each processor, and clients that die.
//!
//! Each task of a schedule has a processor of its own. A store waits in its processor's buffer until the machine lets
//! the oldest one out, at moments that are part of the schedule: x86-64 (TSO) allows that, and no more. A load sees what its
//! own processor has stored. Swaps and system calls empty the buffer first. Before each access another task may go on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farfork::liveness::Liveness;
use farfork::seeded::Fault;
use farfork::words::{Mapped, Words};
use farfork::{ClientId, Platform};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::AtomicBool;
use shuttle::thread::yield_now;

/// Stores that a processor holds back at most.
const BUFFERED: usize = 56;
/// The rarest that one leaves a buffer: once in 2 to the power of this many accesses.
const LAZIEST: u32 = 10;

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::default();
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Store {
    at: usize,
    value: [u8; 8],
    bytes: usize,
}

#[derive(Default)]
struct Processor {
    buffer: VecDeque<Store>,
    /// Stores until its client dies.
    life: Option<u64>,
    is_asleep_at: Option<usize>,
    is_late: bool,
    has_ended: bool,
}

/// The machine of the current execution.
#[derive(Default)]
struct Machine {
    memory: Vec<u8>,
    processors: HashMap<usize, Processor>,
    claims: BTreeSet<u8>,
    /// Stores in all buffers.
    buffered: usize,
    laziness: u32,
    /// Loaded before each access, so that another task may go on. `None` while only one task is to run.
    pulse: Option<Arc<AtomicBool>>,
    /// What went wrong first.
    failure: Option<String>,
}

/// What a client that dies unwinds with.
pub struct Killed;

fn me() -> usize {
    shuttle::current::me().into()
}

fn with<T>(act: impl FnOnce(&mut Machine) -> T) -> T {
    MACHINE.with_borrow_mut(act)
}

/// A machine with so much memory, all zeros, on which one task runs for now.
pub fn begin(bytes: u64) {
    let laziness = thread_rng().gen_range(0..=LAZIEST);
    let memory = vec![0; bytes as usize];
    MACHINE.set(Machine { memory, laziness, ..Machine::default() });
}

/// From now on tasks take turns. This one waits for the others.
pub fn explore() {
    set_ended();
    with(|machine| machine.pulse = Some(Arc::new(AtomicBool::new(false))));
}

/// From now on one task runs. All stores are visible. Returns what went wrong.
pub fn end() -> Result<(), String> {
    with(|machine| {
        machine.drain_all();
        machine.pulse = None;
        machine.failure.take().map_or(Ok(()), Err)
    })
}

/// Says what went wrong.
pub fn fail(message: String) {
    with(|machine| machine.failure.get_or_insert(message).truncate(2000));
}

/// Sets the fault of the executions that follow.
pub fn set_fault(fault: Option<Fault>) {
    FAULT.set(fault);
}

/// The client of this task dies before the store after so many.
pub fn set_life(life: Option<u64>) {
    with(|machine| machine.processor().life = life);
}

/// This task has ended. Its last stores may become visible later.
pub fn set_ended() {
    with(|machine| machine.processor().has_ended = true);
}

/// Drops a dead client, which changes nothing, and ends its claim.
pub fn bury<T>(dead: T, id: u8) {
    let other =
        Machine { memory: vec![0; with(|machine| machine.memory.len())], ..Machine::default() };
    let machine = MACHINE.replace(other);
    drop(dead);
    MACHINE.set(machine);
    with(|machine| {
        machine.drain(me());
        machine.claims.remove(&id);
    });
}

impl Machine {
    fn processor(&mut self) -> &mut Processor {
        self.processors.entry(me()).or_default()
    }

    fn apply(&mut self, store: Store) {
        self.memory[store.at..store.at + store.bytes].copy_from_slice(&store.value[..store.bytes]);
    }

    fn drain_one(&mut self, task: usize) -> bool {
        let processor = self.processors.get_mut(&task);
        let Some(store) = processor.and_then(|processor| processor.buffer.pop_front()) else {
            return false;
        };
        self.buffered -= 1;
        self.apply(store);
        true
    }

    fn drain(&mut self, task: usize) {
        while self.drain_one(task) {}
    }

    fn tasks(&self) -> Vec<usize> {
        let is_full = |(_, processor): &(&usize, &Processor)| !processor.buffer.is_empty();
        let mut tasks: Vec<usize> =
            self.processors.iter().filter(is_full).map(|(task, _)| *task).collect();
        // The same in each run of a schedule.
        tasks.sort_unstable();
        tasks
    }

    fn drain_all(&mut self) {
        self.tasks().into_iter().for_each(|task| self.drain(task));
    }

    /// The time of all that sleep is over.
    fn end_sleeps(&mut self) {
        for processor in self.processors.values_mut() {
            processor.is_late = processor.is_asleep_at.take().is_some();
        }
    }

    fn load(&mut self, at: usize, bytes: usize) -> u64 {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&self.memory[at..at + bytes]);
        for store in &self.processor().buffer {
            for (place, byte) in (store.at..).zip(&store.value[..store.bytes]) {
                if (at..at + bytes).contains(&place) {
                    value[place - at] = *byte;
                }
            }
        }
        u64::from_le_bytes(value)
    }

    fn store(&mut self, at: usize, value: u64, bytes: usize) {
        let store = Store { at, value: value.to_le_bytes(), bytes };
        assert!(at + bytes <= self.memory.len(), "a store outside of the region");
        if self.pulse.is_none() || self.laziness == 0 {
            return self.apply(store);
        }
        self.buffered += 1;
        let buffer = &mut self.processor().buffer;
        buffer.push_back(store);
        if buffer.len() > BUFFERED {
            self.drain_one(me());
        }
    }
}

/// Another task may go on, and stores may become visible.
fn step() {
    let Some(pulse) = with(|machine| machine.pulse.clone()) else { return };
    pulse.load(Ordering::SeqCst);
    if with(|machine| machine.buffered) == 0 {
        return;
    }
    let (tasks, laziness) = with(|machine| (machine.tasks(), machine.laziness));
    for task in tasks {
        while thread_rng().gen_range(0..1u32 << laziness) == 0 {
            if !with(|machine| machine.drain_one(task)) {
                break;
            }
        }
    }
}

/// Before a store: the client of this task may die here.
fn live() {
    let is_over = with(|machine| match &mut machine.processor().life {
        Some(0) => true,
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    });
    if is_over {
        set_life(None);
        resume_unwind(Box::new(Killed));
    }
}

/// Memory of the machine from a place on. What the region's file has is not used, but for its header.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    begin: usize,
}

/// All of it.
pub fn memory() -> Memory {
    Memory { begin: 0 }
}

impl From<Mapped> for Memory {
    fn from(_: Mapped) -> Memory {
        memory()
    }
}

impl Memory {
    fn load(self, at: usize, bytes: usize) -> u64 {
        step();
        with(|machine| machine.load(self.begin + at, bytes))
    }

    fn store(self, at: usize, value: u64, bytes: usize) {
        step();
        live();
        with(|machine| machine.store(self.begin + at, value, bytes));
    }

    fn swap(self, at: usize, from: u64, to: u64, bytes: usize) -> bool {
        step();
        live();
        let at = self.begin + at;
        with(|machine| {
            machine.drain(me());
            let is_from = machine.load(at, bytes) == from;
            if is_from {
                machine.store(at, to, bytes);
                machine.drain(me());
            }
            is_from
        })
    }
}

impl Words for Memory {
    type Plain = Memory;

    const POLLS: u32 = 1;

    fn plain(&self) -> Option<&Memory> {
        Some(self)
    }

    fn tail(&self, at: usize) -> Memory {
        Memory { begin: self.begin + at }
    }

    fn byte(&self, at: usize) -> u8 {
        self.load(at, 1) as u8
    }

    fn byte_within(&self, at: usize) -> Option<u8> {
        let is_within = self.begin + at < with(|machine| machine.memory.len());
        is_within.then(|| self.byte(at))
    }

    fn set_byte(&self, at: usize, value: u8) {
        self.store(at, u64::from(value), 1);
    }

    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        let is_from = self.byte_within(at) == Some(from);
        if is_from {
            self.set_byte(at, to);
        }
        is_from
    }

    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.swap(at, u64::from(from), u64::from(to), 1)
    }

    fn word(&self, at: usize) -> u64 {
        self.load(at, 8)
    }

    fn set_word(&self, at: usize, value: u64) {
        self.store(at, value, 8);
    }

    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool {
        self.swap(at, from, to, 8)
    }

    /// The time is over when no other task can go on.
    fn sleep(&self, at: usize, seen: u32, _time: Duration) -> bool {
        step();
        let at = self.begin + at;
        let is_asleep = with(|machine| {
            machine.drain(me());
            let is_asleep = machine.load(at, 8) as u32 == seen;
            machine.processor().is_asleep_at = is_asleep.then_some(at);
            is_asleep
        });
        while is_asleep && with(|machine| machine.processor().is_asleep_at.is_some()) {
            let can_go_on =
                |processor: &Processor| !processor.has_ended && processor.is_asleep_at.is_none();
            if with(|machine| machine.processors.values().any(can_go_on)) {
                yield_now();
            } else {
                with(Machine::end_sleeps);
            }
        }
        with(|machine| std::mem::take(&mut machine.processor().is_late))
    }

    fn wake(&self, at: usize) {
        step();
        let at = self.begin + at;
        with(|machine| {
            machine.drain(me());
            for processor in machine.processors.values_mut() {
                processor.is_asleep_at = processor.is_asleep_at.filter(|place| *place != at);
            }
        });
    }

    fn order_with_others(&self) {
        step();
        with(Machine::drain_all);
    }

    fn relax(&self) {
        self.pause(Duration::ZERO);
    }

    fn pause(&self, _time: Duration) {
        if with(|machine| machine.pulse.is_some()) {
            yield_now();
        }
    }

    fn flush(&self, _at: usize, _bytes: usize) {}

    fn invalidate(&self, _at: usize, _bytes: usize) {}
}

/// The machine's kernel: locks of clients.
#[derive(Debug, Clone, Copy)]
pub struct Kernel;

/// A lock.
pub struct Lock(u8);

impl From<File> for Kernel {
    fn from(_: File) -> Kernel {
        Kernel
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // No step: a task that unwinds is not interrupted.
        with(|machine| {
            machine.drain(me());
            machine.claims.remove(&self.0);
        });
    }
}

impl Kernel {
    fn take(self, number: u8) -> Option<Lock> {
        step();
        with(|machine| {
            machine.drain(me());
            machine.claims.insert(number).then(|| Lock(number))
        })
    }
}

impl Liveness for Kernel {
    type Claim = Lock;

    fn claim(&self, id: ClientId) -> io::Result<Option<Lock>> {
        Ok(self.take(id.number()))
    }

    fn is_alive(&self, id: ClientId) -> io::Result<bool> {
        step();
        Ok(with(|machine| {
            machine.drain(me());
            machine.claims.contains(&id.number())
        }))
    }

    fn is_held_by(&self, _id: ClientId, _pid: u32) -> bool {
        false
    }

    fn turn(&self) -> io::Result<Lock> {
        loop {
            match self.take(0) {
                Some(turn) => return Ok(turn),
                None => yield_now(),
            }
        }
    }
}

/// The machine, with the fault that was set.
#[derive(Debug)]
pub struct Simulated;

impl Platform for Simulated {
    type Words = Memory;
    type Liveness = Kernel;

    fn fault() -> Option<Fault> {
        FAULT.get()
    }
}
