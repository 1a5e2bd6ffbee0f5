//! How the seccomp filter is recognised under which every clone is, and what the clone executes or forks.

/// Stands beside the verdict by which the filter hands a call to the init (`SECCOMP_RET_DATA`, at which the
/// kernel does not look then). No filter of a program's own has it.
pub const MARK: u32 = 0xfaf0;
