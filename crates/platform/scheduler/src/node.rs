//! A node: whether it answers, what was measured of it, and the sums over what is on it.

use std::collections::BTreeSet;

use farfork_policy::Memory;
use farfork_policy::placement::NodeFacts;

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub answers: bool,
    /// Bytes that the kernel has charged to it, as last measured.
    pub measured_bytes: Option<u64>,
    /// How fast it reads from the pool.
    pub reading: Option<Reading>,
    /// Its instances.
    pub instances: BTreeSet<u64>,
    /// The sums over its instances.
    pub sums: Share,
    /// Bytes set aside for ghosts that are being made.
    pub set_aside_bytes: u64,
    /// Until when no ghosts are made on it.
    pub no_ghosts_until_us: u64,
    /// Empty ghosts that wait.
    pub empty_ghosts: u64,
    /// Ghosts that wait with an image.
    pub attached_ghosts: u64,
}

impl Node {
    /// A node that answers and has nothing on it.
    pub fn new(name: String) -> Node {
        Node {
            name,
            answers: true,
            measured_bytes: None,
            reading: None,
            instances: BTreeSet::new(),
            sums: Share::default(),
            set_aside_bytes: 0,
            no_ghosts_until_us: 0,
            empty_ghosts: 0,
            attached_ghosts: 0,
        }
    }

    /// Bytes that are taken or about to be, without promises to busy instances.
    pub fn taken_bytes(&self) -> u64 {
        let held = self.measured_bytes.unwrap_or(self.sums.held_bytes);
        held + self.sums.begun_bytes + self.set_aside_bytes
    }
}

/// How much a node has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Its memory, including what is promised to busy instances.
    pub memory: Memory,
    /// Share of the pool's bandwidth in use as seen from it, in thousandths, if measured.
    pub pool_busy_permille: Option<u64>,
}

impl From<&NodeFacts> for NodeLoad {
    fn from(facts: &NodeFacts) -> NodeLoad {
        NodeLoad { memory: facts.memory, pool_busy_permille: facts.pool_busy_permille }
    }
}

/// What one instance adds to the sums of its node, or the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Bytes held, for nodes that the kernel does not measure.
    pub held_bytes: u64,
    /// Of these, bytes of idle instances.
    pub idle_bytes: u64,
    /// Bytes about to be taken.
    pub begun_bytes: u64,
    /// Bytes that busy instances may take beyond what they hold.
    pub headroom_bytes: u64,
    /// Instances that are starting.
    pub starting: u64,
    /// Instances that are paused.
    pub paused: u64,
}

impl Share {
    /// Adds one.
    pub fn add(&mut self, one: Share) {
        self.held_bytes += one.held_bytes;
        self.idle_bytes += one.idle_bytes;
        self.begun_bytes += one.begun_bytes;
        self.headroom_bytes += one.headroom_bytes;
        self.starting += one.starting;
        self.paused += one.paused;
    }

    /// Takes one away that was added.
    pub fn remove(&mut self, one: Share) {
        self.held_bytes -= one.held_bytes;
        self.idle_bytes -= one.idle_bytes;
        self.begun_bytes -= one.begun_bytes;
        self.headroom_bytes -= one.headroom_bytes;
        self.starting -= one.starting;
        self.paused -= one.paused;
    }
}

/// How fast a node reads from the pool, in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// The last rate.
    pub last: u64,
    /// The fastest rate so far, when the pool was presumably idle.
    pub best: u64,
}

impl Reading {
    /// Share of the pool's bandwidth in use, in thousandths. If requests wait in one queue that is
    /// busy a share `r` of the time, each takes `1 / (1 - r)` times as long as alone (M/M/1).
    pub fn busy_permille(self) -> u64 {
        1000 - self.last * 1000 / self.best.max(1)
    }
}
