//! Checkpoint against memcpy of the same bytes.

use std::hint::black_box;

use farfork_checkpoint::{CheckpointOptions, Target};

use crate::cases::{Bench, Lane};
use crate::error::BenchError;
use crate::exchange::{now_ns, us_since};

/// Largest copy at once. More bytes are copied in several parts.
const BUFFER: usize = 128 << 20;

pub fn measure(lane: &mut Lane, bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let (subject, parent) = (&lane.subject, &lane.warm.parent);
    subject.settle(parent)?;
    let made = farfork_checkpoint::checkpoint(
        bench.testbed.pool(),
        None,
        Target::Process(parent.pid()),
        CheckpointOptions::default(),
        &mut |_, _| {},
    )?;
    bench.testbed.pool().remove(made.cid)?;
    let case = subject.case("checkpoint");
    let rate = |us: f64| made.copied_bytes as f64 * 1e6 / us;
    let us = |duration: std::time::Duration| duration.as_secs_f64() * 1e6;
    let samples = &mut *bench.samples;
    samples.add(&case, "bytes copied", "bytes", made.copied_bytes as f64);
    samples.add(&case, "whole checkpoint", "bytes/s", rate(us(made.total)));
    samples.add(&case, "page copy alone", "bytes/s", rate(us(made.copying)));
    samples.add(&case, "time frozen", "us", us(made.frozen));
    let memcpy_us = memcpy(made.copied_bytes as usize);
    samples.add(&subject.case("memcpy"), "memcpy of the same bytes", "bytes/s", rate(memcpy_us));
    Ok(())
}

/// Microseconds to copy bytes between buffers that are present in memory.
fn memcpy(bytes: usize) -> f64 {
    let size = bytes.clamp(1, BUFFER);
    let (from, mut to) = (vec![1u8; size], vec![2u8; size]);
    let started = now_ns();
    let mut left = bytes;
    while left > 0 {
        let part = left.min(size);
        to[..part].copy_from_slice(black_box(&from[..part]));
        black_box(&mut to);
        left -= part;
    }
    us_since(started)
}
