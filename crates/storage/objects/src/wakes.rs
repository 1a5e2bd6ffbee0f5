//! Which side of a mailbox sleeps, and how the other one wakes it.

use crate::layout::MailboxLayout;
use crate::region::{Platform, Region};
use crate::words::Words;

/// One of the two clients of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

impl Side {
    /// Not 0 while it sleeps. It alone writes that, and its recovery.
    #[inline]
    pub(crate) fn sleeps(self, at: MailboxLayout) -> usize {
        match self {
            Side::Sender => at.sender_sleeps(),
            Side::Receiver => at.receiver_sleeps(),
        }
    }

    /// Changes when it is to wake up. The other side alone writes that, and its recovery.
    pub(crate) fn wakes(self, at: MailboxLayout) -> usize {
        match self {
            Side::Sender => at.sender_wakes(),
            Side::Receiver => at.receiver_wakes(),
        }
    }
}

/// Wakes a client that sleeps. A client that is killed in the middle leaves it asleep until its timer ends, or until
/// the recovery wakes it.
#[cold]
pub(crate) fn wake_sleeper<P: Platform>(region: &Region<P>, at: MailboxLayout, side: Side) {
    let wakes = side.wakes(at);
    region.words.set_word(wakes, region.words.word(wakes).wrapping_add(1));
    region.words.wake(wakes);
}
