//! Records of activations, and their summaries: without these, lists would read megabytes of logs.
//!
//! Invariant: a record, its summary and its entries in the indexes are written in one transaction.

use std::collections::BTreeMap;

use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, TableHandle,
    WriteTransaction,
};

use super::super::Selection;
use super::{ACTIVATIONS, Failure, Json, SUMMARIES, decoded, encoded, usage};
use crate::api::{Activation, ActivationId, ActivationSummary, Name};

/// The start of an activation, keyed by namespace and id.
const STARTS: TableDefinition<'_, (&str, u128), u64> = TableDefinition::new("starts");
/// Keyed by namespace, action, start and id.
const OF_ACTION: TableDefinition<'_, (&str, &str, u64, u128), ()> =
    TableDefinition::new("activations-of-action");
/// Deletions per transaction, which other writers wait for.
const MOST_FORGOTTEN: usize = 256;

/// Creates missing tables, and summaries of records that an older farfork has written without.
pub fn open(write: &WriteTransaction) -> Result<(), Failure> {
    write.open_table(STARTS)?;
    write.open_table(OF_ACTION)?;
    let activations = write.open_table(ACTIVATIONS)?;
    if activations.len()? == write.open_table(SUMMARIES)?.len()? {
        return Ok(());
    }
    write.delete_table(SUMMARIES)?;
    let mut summaries = write.open_table(SUMMARIES)?;
    for entry in activations.iter()? {
        let (place, record) = entry?;
        let activation: Activation = decoded(ACTIVATIONS.name(), record.value())?;
        summaries.insert(place.value(), &*encoded(&activation.summary())?)?;
    }
    Ok(())
}

/// The tables of records.
struct Tables<'t> {
    activations: Table<'t, (&'static str, u64, u128), Json>,
    summaries: Table<'t, (&'static str, u64, u128), Json>,
    starts: Table<'t, (&'static str, u128), u64>,
    of_action: Table<'t, (&'static str, &'static str, u64, u128), ()>,
}

/// How many records there are more and less, and how many bytes.
#[derive(Default)]
struct Change {
    more: [u64; 2],
    less: [u64; 2],
}

impl<'t> Tables<'t> {
    fn open(write: &'t WriteTransaction) -> Result<Tables<'t>, Failure> {
        Ok(Tables {
            activations: write.open_table(ACTIVATIONS)?,
            summaries: write.open_table(SUMMARIES)?,
            starts: write.open_table(STARTS)?,
            of_action: write.open_table(OF_ACTION)?,
        })
    }

    fn put(&mut self, activation: &Activation, change: &mut Change) -> Result<(), Failure> {
        let (namespace, id) = (activation.namespace.as_str(), activation.activation_id.0);
        let (name, start) = (activation.name.as_str(), activation.start);
        let (record, summary) = (encoded(activation)?, encoded(&activation.summary())?);
        let place = (namespace, start, id);
        change.more(record.len() + summary.len());
        // Records are written twice if the database had to be opened again.
        let old = self.activations.insert(place, &*record)?.map(|old| old.value().len());
        let old_summary = self.summaries.insert(place, &*summary)?.map(|old| old.value().len());
        if let Some(old) = old {
            change.less(old + old_summary.unwrap_or(0));
        }
        self.starts.insert((namespace, id), start)?;
        self.of_action.insert((namespace, name, start, id), ())?;
        Ok(())
    }

    fn remove(&mut self, summary: &ActivationSummary, change: &mut Change) -> Result<(), Failure> {
        let (namespace, id) = (summary.namespace.as_str(), summary.activation_id.0);
        let (name, start) = (summary.name.as_str(), summary.start);
        let place = (namespace, start, id);
        let record = self.activations.remove(place)?.map_or(0, |old| old.value().len());
        let summary = self.summaries.remove(place)?.map_or(0, |old| old.value().len());
        change.less(record + summary);
        self.starts.remove((namespace, id))?;
        self.of_action.remove((namespace, name, start, id))?;
        Ok(())
    }

    /// Removes a namespace's oldest records until this many bytes are free, but at most so many.
    fn remove_oldest(&mut self, namespace: &str, bytes: u64, most: u64) -> Result<Change, Failure> {
        let mut change = Change::default();
        while change.less[1] < bytes && change.less[0] < most {
            let mut its =
                self.summaries.range((namespace, 0, 0)..=(namespace, u64::MAX, u128::MAX))?;
            let Some((place, oldest)) = its.next().transpose()? else { break };
            let summary: ActivationSummary = decoded(SUMMARIES.name(), oldest.value())?;
            drop((place, oldest, its));
            self.remove(&summary, &mut change)?;
        }
        Ok(change)
    }
}

impl Change {
    fn more(&mut self, bytes: usize) {
        self.more[0] += 1;
        self.more[1] += bytes as u64;
    }

    fn less(&mut self, bytes: usize) {
        self.less[0] += 1;
        self.less[1] += bytes as u64;
    }

    /// Counts it for a namespace; returns the bytes of its records.
    fn count(&self, write: &WriteTransaction, namespace: &str) -> Result<u64, Failure> {
        let changed = usage::change(write, namespace, |usage| {
            usage.count = (usage.count + self.more[0]).saturating_sub(self.less[0]);
            usage.records = (usage.records + self.more[1]).saturating_sub(self.less[1]);
        });
        Ok(changed?.records)
    }
}

/// Keeps records. Where those of a namespace take more than `most_bytes`, its oldest go.
pub fn keep(write: &WriteTransaction, all: &[Activation], most_bytes: u64) -> Result<(), Failure> {
    let mut tables = Tables::open(write)?;
    let mut changes = BTreeMap::<&str, Change>::new();
    for activation in all {
        tables.put(activation, changes.entry(activation.namespace.as_str()).or_default())?;
    }
    for (namespace, change) in changes {
        let excess = change.count(write, namespace)?.saturating_sub(most_bytes);
        if excess > 0 {
            // If the limit was lowered, the next writes remove the rest.
            let most = change.more[0] + MOST_FORGOTTEN as u64;
            tables.remove_oldest(namespace, excess, most)?.count(write, namespace)?;
        }
    }
    Ok(())
}

/// A whole record.
pub fn find(
    read: &ReadTransaction,
    namespace: &Name,
    id: ActivationId,
) -> Result<Option<Activation>, Failure> {
    let namespace = namespace.as_str();
    let Some(start) = read.open_table(STARTS)?.get((namespace, id.0))? else {
        return Ok(None);
    };
    let found = read.open_table(ACTIVATIONS)?.get((namespace, start.value(), id.0))?;
    found.map(|found| decoded(ACTIVATIONS.name(), found.value())).transpose()
}

/// Summaries of the selected records.
pub fn list(
    read: &ReadTransaction,
    namespace: &Name,
    selection: &Selection,
) -> Result<Vec<ActivationSummary>, Failure> {
    let summaries = read.open_table(SUMMARIES)?;
    let mut found = Vec::new();
    select(read, namespace, selection, |start, id| {
        if let Some(summary) = summaries.get((namespace.as_str(), start, id))? {
            found.push(decoded(SUMMARIES.name(), summary.value())?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// How many are selected.
pub fn count(
    read: &ReadTransaction,
    namespace: &Name,
    selection: &Selection,
) -> Result<usize, Failure> {
    let mut count = 0;
    select(read, namespace, selection, |_, _| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Calls `visit` with start and id of each selected record, the latest first.
fn select(
    read: &ReadTransaction,
    namespace: &Name,
    selection: &Selection,
    mut visit: impl FnMut(u64, u128) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let namespace = namespace.as_str();
    let (since, upto) = (selection.since_ms.unwrap_or(0), selection.upto_ms.unwrap_or(u64::MAX));
    let Selection { skip, limit, .. } = *selection;
    if since > upto {
        return Ok(());
    }
    let Some(name) = selection.name.as_ref().map(Name::as_str) else {
        let summaries = read.open_table(SUMMARIES)?;
        let found = summaries.range((namespace, since, 0)..=(namespace, upto, u128::MAX))?;
        return found.rev().skip(skip).take(limit).try_for_each(|entry| {
            let (_, start, id) = entry?.0.value();
            visit(start, id)
        });
    };
    let index = read.open_table(OF_ACTION)?;
    let found = index.range((namespace, name, since, 0)..=(namespace, name, upto, u128::MAX))?;
    found.rev().skip(skip).take(limit).try_for_each(|entry| {
        let (_, _, start, id) = entry?.0.value();
        visit(start, id)
    })
}

/// Deletes records of any namespace that began before this time, up to [`MOST_FORGOTTEN`]; returns
/// how many.
pub fn forget(write: &WriteTransaction, before_ms: u64) -> Result<usize, Failure> {
    let mut tables = Tables::open(write)?;
    let summaries = &tables.summaries;
    let mut old: Vec<ActivationSummary> = Vec::new();
    let mut done = String::new();
    loop {
        let mut rest = summaries.range((&*done, u64::MAX, u128::MAX)..)?;
        let Some((first, _)) = rest.next().transpose()? else { break };
        done = first.value().0.to_owned();
        let its = summaries.range((&*done, 0, 0)..(&*done, before_ms, 0))?;
        for entry in its.take(MOST_FORGOTTEN - old.len()) {
            old.push(decoded(SUMMARIES.name(), entry?.1.value())?);
        }
    }
    let mut changes = BTreeMap::<&str, Change>::new();
    for summary in &old {
        tables.remove(summary, changes.entry(summary.namespace.as_str()).or_default())?;
    }
    for (namespace, change) in changes {
        change.count(write, namespace)?;
    }
    Ok(old.len())
}

#[cfg(test)]
mod tests {
    use redb::Durability;

    use super::super::Embedded;
    use super::*;
    use crate::store::{Store, StoreError};

    fn some() -> (tempfile::TempDir, Embedded) {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        for (name, id) in [("a", 1), ("b", 2), ("a", 3)] {
            store.finish(Activation::example(name, id, id as u64 * 10)).unwrap();
        }
        store.flush().unwrap();
        (directory, store)
    }

    fn selections() -> [Selection; 2] {
        let all = Selection { limit: 9, ..Selection::default() };
        [all.clone(), Selection { name: Some("a".parse().unwrap()), ..all }]
    }

    #[test]
    fn lists_and_deletions_do_not_read_whole_records() {
        let (_directory, store) = some();
        let spoilt = store.write("spoil records", Durability::Immediate, |write| {
            let mut activations = write.open_table(ACTIVATIONS)?;
            for id in 1..=3 {
                activations.insert(("guest", id as u64 * 10, id), &b"invalid"[..])?;
            }
            Ok(())
        });
        spoilt.unwrap();
        let read = store.activation(&Name::guest(), ActivationId(1));
        assert!(matches!(read, Err(StoreError::Record { .. })), "{read:?}");
        for (selection, expected) in selections().iter().zip([&[3, 2, 1][..], &[3, 1]]) {
            let listed = store.activations(&Name::guest(), selection).unwrap();
            let ids: Vec<u128> = listed.iter().map(|listed| listed.activation_id.0).collect();
            assert_eq!(ids, expected);
            let count = store.count_activations(&Name::guest(), selection).unwrap();
            assert_eq!(count, expected.len());
        }
        assert_eq!(store.forget(20).unwrap(), 1);
        assert_eq!(store.activation(&Name::guest(), ActivationId(1)).unwrap(), None);
    }

    #[test]
    fn records_without_summaries_are_listed() {
        let (directory, store) = some();
        let before = store.activations(&Name::guest(), &selections()[0]).unwrap();
        assert_eq!(before[2], Activation::example("a", 1, 10).summary());
        let take_away = |write: &WriteTransaction| Ok(write.delete_table(SUMMARIES)?);
        store.write("downgrade", Durability::Immediate, take_away).unwrap();
        drop(store);
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        assert_eq!(store.activations(&Name::guest(), &selections()[0]).unwrap(), before);
        // Records that such a farfork has deleted are not listed.
        let lose = |write: &WriteTransaction| {
            write.open_table(ACTIVATIONS)?.remove(("guest", 30, 3))?;
            Ok(())
        };
        store.write("downgrade", Durability::Immediate, lose).unwrap();
        drop(store);
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        assert_eq!(store.activations(&Name::guest(), &selections()[0]).unwrap(), before[1..]);
    }
}
