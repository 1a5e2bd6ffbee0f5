//! The clocks that count from a boot, as a process saw them.

use serde::{Deserialize, Serialize};

/// Clocks of a process at the moment of its checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// `/proc/sys/kernel/random/boot_id`: which boot they count from.
    pub boot: String,
    /// What the process read.
    pub read: Readings,
    /// How far its time namespace is ahead of the boot.
    pub ahead: Offsets,
}

/// What the clocks say, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// `CLOCK_MONOTONIC`.
    pub monotonic_ns: i64,
    /// `CLOCK_MONOTONIC_RAW`, which is never slewed.
    pub raw_ns: i64,
    /// `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}

/// Offsets of a time namespace from the clocks of the boot, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    /// Of `CLOCK_MONOTONIC` and `CLOCK_MONOTONIC_RAW`.
    pub monotonic_ns: i64,
    /// Of `CLOCK_BOOTTIME`.
    pub boottime_ns: i64,
}
