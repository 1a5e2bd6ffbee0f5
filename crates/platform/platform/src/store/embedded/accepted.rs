//! Accepted calls that have not been made.

use redb::{ReadTransaction, ReadableTable, TableDefinition, TableHandle, WriteTransaction};
use serde::Deserialize;

use super::super::{AcceptedCall, AcceptedEntry};
use super::{Failure, Json, decoded, encoded};
use crate::api::{ActivationId, Name};

/// Keyed by time and id.
const ACCEPTED: TableDefinition<'_, (u64, u128), Json> = TableDefinition::new("accepted");
/// The time at which a call was accepted, keyed by id.
const PENDING: TableDefinition<'_, u128, u64> = TableDefinition::new("pending");

/// The part of a record that a list needs.
#[derive(Deserialize)]
struct Head {
    namespace: Name,
}

/// Creates missing tables.
pub fn open(write: &WriteTransaction) -> Result<(), Failure> {
    write.open_table(ACCEPTED)?;
    write.open_table(PENDING)?;
    Ok(())
}

/// Adds a call.
pub fn add(write: &WriteTransaction, call: &AcceptedCall) -> Result<(), Failure> {
    let place = (call.accepted_ms, call.id.0);
    write.open_table(ACCEPTED)?.insert(place, &*encoded(call)?)?;
    write.open_table(PENDING)?.insert(call.id.0, call.accepted_ms)?;
    Ok(())
}

/// Removes those of these calls that were accepted.
pub fn remove(
    write: &WriteTransaction,
    ids: impl Iterator<Item = ActivationId>,
) -> Result<(), Failure> {
    let (mut pending, mut accepted) = (write.open_table(PENDING)?, write.open_table(ACCEPTED)?);
    for ActivationId(id) in ids {
        if let Some(accepted_ms) = pending.remove(id)? {
            accepted.remove((accepted_ms.value(), id))?;
        }
    }
    Ok(())
}

/// All calls without their arguments, the oldest first.
pub fn list(read: &ReadTransaction) -> Result<Vec<AcceptedEntry>, Failure> {
    let table = read.open_table(ACCEPTED)?;
    let mut all = Vec::new();
    for entry in table.iter()? {
        let (place, record) = entry?;
        let ((accepted_ms, id), bytes) = (place.value(), record.value().len() as u64);
        let Head { namespace } = decoded(ACCEPTED.name(), record.value())?;
        all.push(AcceptedEntry { id: ActivationId(id), namespace, accepted_ms, bytes });
    }
    Ok(all)
}

/// A call, if it has not been made.
pub fn find(
    read: &ReadTransaction,
    entry: &AcceptedEntry,
) -> Result<Option<AcceptedCall>, Failure> {
    let found = read.open_table(ACCEPTED)?.get((entry.accepted_ms, entry.id.0))?;
    found.map(|found| decoded(ACCEPTED.name(), found.value())).transpose()
}
