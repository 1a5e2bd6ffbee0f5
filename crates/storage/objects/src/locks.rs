//! Locks of guarded operations. A lock is free or names the client that holds it, so that a dead holder is known, and
//! the process that completes its operation holds the lock by the same word.

use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

use crate::layout::{ClientId, LOCKS};
use crate::region::{Platform, Region};
use crate::words::Words;

/// As often as this, a sleeping client looks whether the holder is alive.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// Takes a lock; returns whether the client holds it.
pub(crate) fn take<P: Platform>(region: &Region<P>, id: ClientId, lock: usize) -> bool {
    let (at, own) = (region.layout.lock(lock), u64::from(id.number()));
    region.words.claim_word(at, 0, own) || region.words.word(at) == own
}

/// Sleeps until the lock may be free, for a moment at most.
pub(crate) fn sleep<P: Platform>(region: &Region<P>, lock: usize, holder: ClientId) {
    let (at, number) = (region.layout.lock(lock), u64::from(holder.number()));
    region.words.set_word(region.layout.lock_sleepers(lock), 1);
    // The holder looks at that word after it has released the lock, without a fence.
    region.words.order_with_others();
    if region.words.word(at) == number {
        region.words.sleep(at, number as u32, LONGEST_SLEEP);
    }
}

/// Releases all locks of a client.
pub(crate) fn release_all<P: Platform>(region: &Region<P>, id: ClientId) {
    let Region { words, layout, .. } = region;
    let is_own = |lock: &usize| words.word(layout.lock(*lock)) == u64::from(id.number());
    // The last one first: what waits for another one, with a lower number, holds none of these.
    for lock in (0..LOCKS).rev().filter(is_own) {
        words.set_word(layout.lock(lock), 0);
        compiler_fence(Ordering::SeqCst);
        if words.word(layout.lock_sleepers(lock)) != 0 {
            words.set_word(layout.lock_sleepers(lock), 0);
            words.wake(layout.lock(lock));
        }
    }
}
