//! The layout of the XSAVE area on this processor.
#![allow(unsafe_code)] // reason: the CPUID instruction

use std::arch::x86_64::__cpuid_count;

/// Register sets of the AMX extension (XTILECFG, XTILEDATA).
pub const AMX: u64 = 1 << 17 | 1 << 18;

/// Offset of the bytes where the kernel notes the register sets it saves (XCR0).
pub const XCR0_OFFSET: usize = 464;
/// Offset of the word with the register sets that are not in their initial state.
pub const PRESENT_OFFSET: usize = 512;
/// Bytes of the legacy area and the header, which are always there.
pub const MINIMUM_BYTES: usize = 576;

/// Bytes of a standard-format XSAVE area that holds the register sets `features`.
pub fn bytes_for(features: u64) -> usize {
    (2..63)
        .filter(|set| features & (1 << set) != 0)
        .map(|set| {
            #[allow(unused_unsafe)] // reason: the intrinsic is safe in newer compilers
            // SAFETY: every x86-64 processor with XSAVE has leaf 0xd, and those without have no
            // bits here.
            let leaf = unsafe { __cpuid_count(0xd, set) };
            leaf.ebx as usize + leaf.eax as usize
        })
        .fold(MINIMUM_BYTES, usize::max)
}

/// Reads the eight bytes at `offset`.
pub fn word(area: &[u8], offset: usize) -> u64 {
    area.get(offset..offset + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// XCR0 of this machine: the register sets that programs may use.
pub fn enabled() -> u64 {
    // SAFETY: every processor that farfork runs on has XSAVE, which the kernel has enabled.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}
