//! Memory that clients share, as bytes and words.
//!
//! One trait, so that the same code can run on simulated memory, and on memory between nodes that is not
//! coherent: there [`Words::flush`] makes one's stores visible, and [`Words::invalidate`] drops what loads
//! have cached. On coherent memory both do nothing.

mod mapped;
mod mapping;
mod plain;

use std::time::Duration;

pub use mapped::Mapped;
pub(crate) use mapping::{Parts, Protected, is_free};
pub use plain::Plain;

/// Shared memory. Offsets are in bytes; those of words are multiples of 8. An offset outside of the memory
/// panics.
///
/// Stores of one client become visible to all others in their order. A load sees every store that
/// was visible before it.
pub trait Words {
    /// The same memory, where each access is a load or a store and nothing more.
    type Plain: Words;

    /// Polls before a waiting client sleeps.
    const POLLS: u32 = 2000;

    /// This memory as such, if it is. For operations in which a call that an access may make would be felt, though it is
    /// never made.
    fn plain(&self) -> Option<&Self::Plain>;

    /// Loads a byte.
    fn byte(&self, at: usize) -> u8;
    /// Loads a byte, unless it is outside of the memory.
    fn byte_within(&self, at: usize) -> Option<u8>;
    /// Stores a byte.
    fn set_byte(&self, at: usize, value: u8);
    /// The same memory from a place on, with offsets from there. Panics unless it is inside, and a multiple of 8.
    fn tail(&self, at: usize) -> Self
    where
        Self: Sized;
    /// Stores a byte, unless it is outside of the memory; returns whether it is inside.
    fn set_byte_within(&self, at: usize, value: u8) -> bool {
        let is_inside = self.byte_within(at).is_some();
        if is_inside {
            self.set_byte(at, value);
        }
        is_inside
    }
    /// Stores a byte that this client alone writes, if it is `from`; returns whether it was. False outside of the
    /// memory.
    fn replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool;
    /// Does what [`Words::set_byte_within`] does, or nothing: false also where that takes more than a store.
    #[inline]
    fn try_set_byte(&self, at: usize, value: u8) -> bool {
        self.set_byte_within(at, value)
    }
    /// The same of [`Words::replace_own_byte`].
    #[inline]
    fn try_replace_own_byte(&self, at: usize, from: u8, to: u8) -> bool {
        self.replace_own_byte(at, from, to)
    }
    /// Stores a byte if it is `from`; returns whether it was. Not for fast paths: it locks the memory.
    fn claim_byte(&self, at: usize, from: u8, to: u8) -> bool;
    /// Loads a word.
    fn word(&self, at: usize) -> u64;
    /// Stores a word.
    fn set_word(&self, at: usize, value: u64);
    /// Stores a word if it is `from`; returns whether it was. Not for fast paths: it locks the memory.
    fn claim_word(&self, at: usize, from: u64, to: u64) -> bool;
    /// Sleeps until [`Words::wake`] is called for this word, or the time is over. Returns at once if the low half of the
    /// word is not `seen`. Returns whether the time was over.
    fn sleep(&self, at: usize, seen: u32, time: Duration) -> bool;
    /// Wakes clients that sleep at this word.
    fn wake(&self, at: usize);
    /// After it, stores that others did before are visible, and others see the stores done before it. Others need no
    /// fence for that.
    fn order_with_others(&self);
    /// Lets the processor do something else between two looks at memory that another client is about to change.
    #[inline]
    fn relax(&self) {
        std::hint::spin_loop();
    }
    /// Lets others go on for about this time.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
    /// Makes stores to these bytes visible to other nodes.
    fn flush(&self, at: usize, bytes: usize);
    /// Drops cached copies of these bytes, so that loads see the stores of other nodes.
    fn invalidate(&self, at: usize, bytes: usize);
}

#[cold]
#[inline(never)]
fn outside(what: &str) -> ! {
    panic!("{what} outside of the region")
}
