//! Which clients are alive, and which one has the turn.
//!
//! Contract, which `tests/liveness.rs` checks for every mechanism:
//! 1. A claim excludes all others of its id until it is dropped, or its process dies. A claim of all ids is one of each.
//! 2. An id is alive exactly while it is claimed. A dead client never seems alive again by itself: the
//!    number of a process plays no part.
//! 3. One turn at a time; it ends with its holder, too.
//! 4. A process is named as the holder of a claim only if it is that.

mod kernel;

pub use kernel::{KernelClaim, KernelLocks};

use std::io;

use crate::layout::ClientId;

/// A mechanism.
pub trait Liveness {
    /// Held by a client for as long as it lives, or by the process that recovers a dead one.
    type Claim;

    /// Takes an id, unless it is claimed.
    ///
    /// # Errors
    /// Those of the mechanism.
    fn claim(&self, id: ClientId) -> io::Result<Option<Self::Claim>>;

    /// Takes all ids; `None` if one is claimed.
    ///
    /// # Errors
    /// Those of the mechanism.
    fn claim_all(&self) -> io::Result<Option<Vec<Self::Claim>>> {
        ClientId::all().map(|id| self.claim(id)).collect()
    }

    /// Whether an id is claimed.
    ///
    /// # Errors
    /// Those of the mechanism.
    fn is_alive(&self, id: ClientId) -> io::Result<bool>;

    /// Whether a process, of this process's PID namespace, holds the claim of an id. False if this cannot be seen.
    fn is_held_by(&self, id: ClientId, pid: u32) -> bool;

    /// Waits for the turn: the right to make a mailbox, or to rebuild lost metadata. No other operation takes it.
    ///
    /// # Errors
    /// Those of the mechanism.
    fn turn(&self) -> io::Result<Self::Claim>;
}

/// Takes all ids, or says how many clients live, at least one.
pub(crate) fn claim_all<L: Liveness>(liveness: &L) -> io::Result<Result<Vec<L::Claim>, usize>> {
    if let Some(claims) = liveness.claim_all()? {
        return Ok(Ok(claims));
    }
    let mut living = 0;
    for id in ClientId::all() {
        living += usize::from(liveness.is_alive(id)?);
    }
    // One may have ended just now.
    Ok(Err(living.max(1)))
}
