//! Waits for locks.

use std::time::{Duration, Instant};

use crate::error::ObjectsError;
use crate::layout::ClientId;
use crate::locks;
use crate::recovery::{forget_unknown, recover_holder};
use crate::region::{Platform, Region};
use crate::words::Words;

/// How long a client without an operation may hold a lock.
const LONGEST_RELEASE: Duration = Duration::from_secs(1);

/// Since when this holder has been seen in no operation.
fn idle_since(idle: &mut Option<(ClientId, Instant)>, holder: ClientId) -> Instant {
    match idle {
        Some((seen, since)) if *seen == holder => *since,
        _ => idle.insert((holder, Instant::now())).1,
    }
}

/// Waits until the lock may be free, for a moment at most. Completes the operation of a dead holder.
pub(super) fn wait<P: Platform>(
    region: &Region<P>,
    lock: usize,
    idle: &mut Option<(ClientId, Instant)>,
) -> Result<(), ObjectsError> {
    let at = region.layout.lock(lock);
    let word = region.words.word(at);
    let holder = match u8::try_from(word).ok().and_then(ClientId::new) {
        Some(holder) => holder,
        None if word == 0 => return Ok(()),
        None => return Err(region.damaged(format!("lock {lock} belongs to client {word}"))),
    };
    if recover_holder(region, holder)? || forget_unknown(region, holder, at)? {
        return Ok(());
    }
    // A client releases its locks at once when its operation is over.
    if region.words.word(region.layout.guard(holder)) != 0 {
        *idle = None;
    } else if idle_since(idle, holder).elapsed() > LONGEST_RELEASE {
        let holder = holder.number();
        return Err(region.damaged(format!(
            "lock {lock} belongs to client {holder}, which is in no operation (or was stopped at its end)"
        )));
    }
    locks::sleep(region, lock, holder);
    Ok(())
}
