//! Accounts for every byte and every slot.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

use crate::audit;
use crate::census::{self, Seen};
use crate::error::ObjectsError;
use crate::layout::{
    ClientId, FREE, IN_MAILBOX, LINKED, MAILBOXES, SHARED, first_granule, slot_parts, span_of,
};
use crate::recovery::{is_left, recover_dead};
use crate::region::{Platform, Region};
use crate::span::Span;
use crate::spans::span;
use crate::words::Words;

/// What was found. Without damage, `lost`, `double` and `foreign` are 0. `bytes` are those free, owned, in
/// mailboxes and linked together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Bytes for objects.
    pub bytes: u64,
    /// Bytes that no object takes.
    pub bytes_free: u64,
    /// Objects of living clients, and of dead ones in a guarded operation that is still to be completed.
    pub owned: u64,
    /// Bytes that they take.
    pub bytes_owned: u64,
    /// Objects that one slot of one mailbox names.
    pub in_mailboxes: u64,
    /// Bytes that they take.
    pub bytes_in_mailboxes: u64,
    /// Objects of structures, and records of shared ones.
    pub linked: u64,
    /// Bytes that they take.
    pub bytes_linked: u64,
    /// Objects of mailboxes that no slot names, objects of structures that no reference means, and spans of which no client knows.
    pub lost: u64,
    /// Objects that several slots name, slots that name free memory, objects of structures with a wrong count.
    pub double: u64,
    /// Objects of owners that are not clients, owner bytes where no object can begin, slots that name no place for
    /// objects, spans with impossible words.
    pub foreign: u64,
    /// Objects of structures that nothing holds, but which refer to each other in a circle. Nothing frees them. Not damage.
    pub unreachable: u64,
    /// Dead clients that were recovered before.
    pub clients_recovered: u64,
}

/// Living clients change what is being counted. Only what every pass finds is wrong.
const PASSES: usize = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// What is wrong, or leaks, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wrong {
    Lost(u32),
    LostSpan(u32),
    Double(u32),
    Foreign(u32),
    ForeignSpan(u32),
    ForeignSlot(usize),
    Unreachable(u32),
}

impl<P: Platform> Region<P> {
    /// Recovers dead clients, then accounts for everything.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn check(&self) -> Result<Check, ObjectsError> {
        self.check_generation()?;
        let recovered = recover_dead(self)? as u64;
        let (mut check, mut wrong) = pass(self)?;
        for _ in 1..PASSES {
            if wrong.is_empty() {
                break;
            }
            self.words.pause(PAUSE);
            let again = pass(self)?;
            check = again.0;
            wrong = wrong.intersection(&again.1).copied().collect();
        }
        let count = |is: fn(&Wrong) -> bool| wrong.iter().filter(|wrong| is(wrong)).count() as u64;
        Ok(Check {
            lost: count(|wrong| matches!(wrong, Wrong::Lost(_) | Wrong::LostSpan(_))),
            double: count(|wrong| matches!(wrong, Wrong::Double(_))),
            foreign: count(|wrong| {
                matches!(wrong, Wrong::Foreign(_) | Wrong::ForeignSpan(_) | Wrong::ForeignSlot(_))
            }),
            unreachable: count(|wrong| matches!(wrong, Wrong::Unreachable(_))),
            clients_recovered: recovered,
            ..check
        })
    }
}

impl Check {
    /// Whether nothing is lost, double or foreign.
    pub fn is_clean(&self) -> bool {
        self.lost + self.double + self.foreign == 0
    }
}

fn pass<P: Platform>(region: &Region<P>) -> Result<(Check, HashSet<Wrong>), ObjectsError> {
    let mut check = Check { bytes: region.layout.span_bytes(), ..Check::default() };
    let mut wrong = HashSet::new();
    let mut named = named(region, &mut wrong);
    let mut is_client = [false; 256];
    for id in ClientId::all().filter(|id| region.is_in_use(*id)) {
        is_client[usize::from(id.number())] = region.is_alive(id)? || is_left(region, id)?;
    }
    census::objects(region, |Seen { granule, owner, bytes }| {
        let count = named.remove(&granule).unwrap_or(0);
        let found = match owner {
            _ if bytes == 0 => Wrong::Foreign(granule),
            IN_MAILBOX if count == 1 => {
                check.in_mailboxes += 1;
                check.bytes_in_mailboxes += bytes;
                return;
            }
            SHARED | LINKED if owner == SHARED || count == 0 => {
                check.linked += 1;
                check.bytes_linked += bytes;
                return;
            }
            // One slot may name what its client is just sending, or has just received.
            owner if is_client[usize::from(owner)] && count <= 1 => {
                check.owned += 1;
                check.bytes_owned += bytes;
                return;
            }
            IN_MAILBOX if count == 0 => Wrong::Lost(granule),
            _ if count > 0 => Wrong::Double(granule),
            _ => Wrong::Foreign(granule),
        };
        wrong.insert(found);
    });
    // Slots that name no object.
    wrong.extend(named.into_keys().map(Wrong::Double));
    let taken = check.bytes_owned + check.bytes_in_mailboxes + check.bytes_linked;
    check.bytes_free = check.bytes.saturating_sub(taken);
    let audit = audit::structures(region);
    wrong.extend(audit.lost.into_iter().map(Wrong::Lost));
    wrong.extend(audit.miscounted.into_iter().map(Wrong::Double));
    wrong.extend(audit.unreachable.into_iter().map(Wrong::Unreachable));
    for at in region.layout.spans() {
        wrong.extend(wrong_span(region, at, &is_client));
    }
    Ok((check, wrong))
}

/// What is wrong with the word of a span.
fn wrong_span<P: Platform>(region: &Region<P>, at: u32, is_client: &[bool; 256]) -> Option<Wrong> {
    let is_known = |client: u8| is_client[usize::from(client)];
    let Some(found) = span(region, at) else { return Some(Wrong::ForeignSpan(at)) };
    let is_right = match found {
        Span::Free => true,
        Span::Slots { client, .. } => client == 0 || is_known(client),
        Span::Claimed { client, .. } => is_known(client),
        Span::Run { client, .. } => {
            region.words.byte(region.layout.owner(first_granule(at))) != FREE || is_known(client)
        }
        Span::Rest { first } => {
            let run = region.layout.spans().contains(&first).then(|| span(region, first)).flatten();
            matches!(run, Some(Span::Run { spans, .. })
                if first < at && at < first.saturating_add(spans))
        }
    };
    (!is_right).then_some(Wrong::LostSpan(at))
}

/// How many slots name each granule.
fn named<P: Platform>(region: &Region<P>, wrong: &mut HashSet<Wrong>) -> HashMap<u32, u64> {
    let mut named: HashMap<u32, u64> = HashMap::new();
    for index in (0..MAILBOXES).filter(|index| region.mailbox_name(*index).is_some()) {
        let at = region.layout.mailbox(index);
        for slot in (0..region.slots(index)).map(|slot| at.slot(slot)) {
            let word = region.words.word(slot);
            let (_, granule) = slot_parts(word);
            if word != 0 && region.layout.spans().contains(&span_of(granule)) {
                *named.entry(granule).or_default() += 1;
            } else if word != 0 {
                wrong.insert(Wrong::ForeignSlot(slot));
            }
        }
    }
    named
}
