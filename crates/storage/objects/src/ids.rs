//! An id for a new client.

use crate::error::ObjectsError;
use crate::layout::{ClientId, READY};
use crate::recovery::recover_if_dead;
use crate::region::{Claim, Platform, Region};
use crate::words::Words;
use crate::{checks, metadata};

/// Takes an id that no living client has, and says in the region that it is taken. `None` if there are as many clients as there can
/// be.
pub(crate) fn take<P: Platform>(
    region: &Region<P>,
) -> Result<Option<(ClientId, Claim<P>)>, ObjectsError> {
    for id in ClientId::all() {
        if region.is_in_use(id) && !recover_if_dead(region, id)? {
            continue;
        }
        let Some(claim) = region.claim(id)? else { continue };
        // Another process may have taken it, and died, meanwhile.
        if region.is_in_use(id) {
            continue;
        }
        let process = u64::from(std::process::id());
        metadata::count_open(region);
        checks::begin(region, id);
        region.words.set_word(region.layout.client_pid(id), process);
        region.words.set_word(region.layout.client(id), READY);
        return Ok(Some((id, claim)));
    }
    Ok(None)
}
