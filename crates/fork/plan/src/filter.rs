//! How farfork's own seccomp filter is recognised. Every clone is under it, and all that a clone forks or
//! executes.

/// Stands in the `SECCOMP_RET_DATA` of the verdict that hands a call to the init, where the kernel ignores
/// it. A program's own filters do not have it.
pub const MARK: u32 = 0xfaf0;
