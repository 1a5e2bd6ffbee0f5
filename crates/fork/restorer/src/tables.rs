//! The mapped plan and its tables.

use farfork_plan::{PlanHeader, Table, window};

/// The plan of this clone.
///
/// # Safety
/// The init has mapped it.
pub unsafe fn plan() -> &'static PlanHeader {
    // SAFETY: the caller knows that it is mapped; it stays, read-only, as long as this address space.
    unsafe { &*(window::PLAN as *const PlanHeader) }
}

/// The elements of a table of the plan.
///
/// # Safety
/// The table must lie in the mapped plan and hold elements of type `T`.
pub unsafe fn elements<T>(table: Table) -> &'static [T] {
    if table.count == 0 {
        return &[];
    }
    // SAFETY: the plan stays mapped, read-only, as long as this address space.
    unsafe { core::slice::from_raw_parts(table.address as *const T, table.count as usize) }
}
