//! A static that one thread writes before any other can see it.

use core::cell::UnsafeCell;

/// A value that belongs to the process.
pub struct ProcessCell<T>(UnsafeCell<T>);

// SAFETY: the accessors' contracts keep writes and other uses apart.
unsafe impl<T> Sync for ProcessCell<T> {}

impl<T> ProcessCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> ProcessCell<T> {
        ProcessCell(UnsafeCell::new(value))
    }

    /// The value.
    ///
    /// # Safety
    /// No reference from [`ProcessCell::get_mut`] to what is read may exist.
    pub unsafe fn get(&self) -> &T {
        // SAFETY: passed on to the caller.
        unsafe { &*self.0.get() }
    }

    /// The value, to be changed.
    ///
    /// # Safety
    /// No other reference may be used at the same time.
    #[allow(clippy::mut_from_ref)] // reason: that is what the contract is about
    pub unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: passed on to the caller.
        unsafe { &mut *self.0.get() }
    }
}
