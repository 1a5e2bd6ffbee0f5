//! Figures 7 and 8: the same function, with every kind of start.

use farfork_node::client::Client;
use farfork_types::Tiering;
use farfork_types::wire::{GhostCall, GhostImage, GhostState};

use super::Function;
use crate::cases::clone::{CloneOptions, Memory, measure_as};
use crate::cases::warm::{self, IDLE};
use crate::cases::{Bench, Lane, cold, criu, local, pause};
use crate::error::BenchError;
use crate::exchange::now_ns;
use crate::testbed::Testbed;
use crate::usage;

/// Names of cases that several files use.
pub mod start {
    /// A clone from scratch.
    pub const CLONE: &str = "clone";
    pub const COPIED: &str = "clone-copy";
    pub const ON_ACCESS: &str = "clone-moa";
    pub const HYBRID: &str = "clone-hybrid";
    pub const EMPTY: &str = "ghost-empty";
    pub const EMPTY_COPIED: &str = "ghost-empty-copy";
    pub const ATTACHED: &str = "ghost-attached";
    pub const WAKE_UP: &str = "bare-wake-up";
    /// A process that was woken just before, as a waiting clone is, for its descriptors.
    pub const WAKE_UP_AGAIN: &str = "bare-wake-up-again";
}

/// Metrics that several files use.
pub mod metric {
    pub const WAKE_UP: &str = "message to first instruction";
    pub const GHOST_LOCAL: &str = "local memory while it waits";
    pub const GHOST_KERNEL: &str = "kernel memory while it waits";
}

/// Measures every kind of start once.
pub fn one_round(function: &mut Function, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cid = function.lane.warm.cid;
    let from_scratch = [
        (start::COPIED, CloneOptions::new(cid, Tiering::Copy)),
        (start::ON_ACCESS, CloneOptions::new(cid, Tiering::Moa)),
        (start::HYBRID, CloneOptions::new(cid, Tiering::Hybrid)),
        (start::CLONE, CloneOptions::new(cid, Tiering::Mow)),
    ];
    let lane = &mut function.lane;
    lane.next_round();
    for case in [cold::measure, criu::measure, local::measure] {
        pause();
        case(lane, bench)?;
    }
    for (name, way) in from_scratch {
        pause();
        measure_as(lane, bench, &way, name, Memory::Here)?;
    }
    in_ghost(lane, bench, start::EMPTY_COPIED, Tiering::Copy, false)?;
    in_ghost(lane, bench, start::EMPTY, Tiering::Mow, false)?;
    in_ghost(lane, bench, start::ATTACHED, Tiering::Mow, true)?;
    for case in [warm::busy, warm::idle, warm::idle_unconnected] {
        pause();
        case(lane, bench)?;
    }
    let both = function.sleeper.wake();
    let both = both.map_err(|error| lane.subject.wrong(start::WAKE_UP, &error))?;
    for (start, us) in [start::WAKE_UP, start::WAKE_UP_AGAIN].into_iter().zip(both) {
        bench.samples.add(&lane.subject.case(start), metric::WAKE_UP, "us", us);
    }
    Ok(())
}

/// A clone in a ghost that has waited as long as the warm process is idle.
fn in_ghost(
    lane: &mut Lane,
    bench: &mut Bench<'_>,
    name: &'static str,
    tiering: Tiering,
    has_image: bool,
) -> Result<(), BenchError> {
    let cid = lane.warm.cid;
    let image = has_image.then(|| ghost_image(lane, bench.testbed, tiering));
    let ghost = ghost(bench.testbed, image)?;
    let case = lane.subject.case(name);
    bench.samples.add(&case, metric::GHOST_LOCAL, "bytes", ghost.local_bytes as f64);
    if let Some(bytes) = ghost.kernel_bytes {
        bench.samples.add(&case, metric::GHOST_KERNEL, "bytes", bytes as f64);
    }
    let faults_before = ghost.pid.map_or(0, |pid| usage::of(pid).faults);
    std::thread::sleep(IDLE);
    let way =
        CloneOptions { ghost: Some(ghost.id), faults_before, ..CloneOptions::new(cid, tiering) };
    measure_as(lane, bench, &way, name, Memory::Here)
}

/// The image of a lane, for an attached ghost.
pub fn ghost_image(lane: &Lane, testbed: &Testbed, tiering: Tiering) -> GhostImage {
    GhostImage {
        pool: testbed.pool().path().to_owned(),
        cid: lane.warm.cid.to_string(),
        name: lane.subject.name.clone(),
        tiering,
    }
}

/// Creates a ghost.
pub fn ghost(testbed: &Testbed, image: Option<GhostImage>) -> Result<GhostState, BenchError> {
    let call = GhostCall { image, requested_ns: now_ns(), ..GhostCall::default() };
    Ok(Client::connect(&testbed.node)?.start_ghost(call)?)
}
