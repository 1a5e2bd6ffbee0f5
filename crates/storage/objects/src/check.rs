//! Accounts for every granule and every slot.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::error::ObjectsError;
use crate::layout::{ClientId, FREE, IN_MAILBOX, MAILBOXES, slot_parts};
use crate::recovery::recover_dead;
use crate::region::{Platform, Region};
use crate::words::Words;

/// What was found. Without damage, `lost`, `double` and `foreign` are 0, and the other counts of objects add up
/// to `objects`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Check {
    /// All granules.
    pub objects: u64,
    /// Those that no client has.
    pub free: u64,
    /// Those that living clients own.
    pub owned: u64,
    /// Those that one slot of one mailbox names.
    pub in_mailboxes: u64,
    /// Those that belong to mailboxes, and no slot names them.
    pub lost: u64,
    /// Those that several slots name, or one although they are free.
    pub double: u64,
    /// Those of owners that are not clients, and slots that name no granule.
    pub foreign: u64,
    /// Dead clients that were recovered before.
    pub clients_recovered: u64,
}

/// Living clients change what is being counted. Only what every pass finds is wrong.
const PASSES: usize = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// What is wrong, and with which granule or slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Wrong {
    Lost(u32),
    Double(u32),
    Foreign(u32),
    ForeignSlot(usize),
}

impl<P: Platform> Region<P> {
    /// Recovers dead clients, then accounts for everything.
    ///
    /// # Errors
    /// [`ObjectsError::Io`].
    pub fn check(&self) -> Result<Check, ObjectsError> {
        let recovered = recover_dead(self)? as u64;
        let (mut check, mut wrong) = pass(self)?;
        for _ in 1..PASSES {
            if wrong.is_empty() {
                break;
            }
            thread::sleep(PAUSE);
            let again = pass(self)?;
            check = again.0;
            wrong = wrong.intersection(&again.1).copied().collect();
        }
        let count = |is: fn(&Wrong) -> bool| wrong.iter().filter(|wrong| is(wrong)).count() as u64;
        Ok(Check {
            lost: count(|wrong| matches!(wrong, Wrong::Lost(_))),
            double: count(|wrong| matches!(wrong, Wrong::Double(_))),
            foreign: count(|wrong| matches!(wrong, Wrong::Foreign(_) | Wrong::ForeignSlot(_))),
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
    let mut check = Check { objects: u64::from(region.layout.granules), ..Check::default() };
    let mut wrong = HashSet::new();
    let named = named(region, &mut wrong);
    let mut is_client = [false; 256];
    for id in ClientId::all().filter(|id| region.is_in_use(*id)) {
        is_client[usize::from(id.number())] = region.is_alive(id)?;
    }
    for granule in 0..region.layout.granules {
        let count = named.get(&granule).copied().unwrap_or(0);
        let owner = region.words.byte(region.layout.owner(granule));
        let found = match owner {
            FREE if count == 0 => {
                check.free += 1;
                continue;
            }
            IN_MAILBOX if count == 1 => {
                check.in_mailboxes += 1;
                continue;
            }
            // One slot may name what its client is just sending, or has just received.
            owner if is_client[usize::from(owner)] && count <= 1 => {
                check.owned += 1;
                continue;
            }
            IN_MAILBOX if count == 0 => Wrong::Lost(granule),
            _ if count > 0 => Wrong::Double(granule),
            _ => Wrong::Foreign(granule),
        };
        wrong.insert(found);
    }
    Ok((check, wrong))
}

/// How many slots name each granule.
fn named<P: Platform>(region: &Region<P>, wrong: &mut HashSet<Wrong>) -> HashMap<u32, u64> {
    let mut named: HashMap<u32, u64> = HashMap::new();
    for index in (0..MAILBOXES).filter(|index| region.mailbox_name(*index).is_some()) {
        let at = region.layout.mailbox(index);
        for slot in (0..region.slots(index)).map(|slot| at.slot(slot)) {
            let word = region.words.word(slot);
            let (_, granule) = slot_parts(word);
            if word != 0 && granule < region.layout.granules {
                *named.entry(granule).or_default() += 1;
            } else if word != 0 {
                wrong.insert(Wrong::ForeignSlot(slot));
            }
        }
    }
    named
}
