//! What each namespace takes of the disk.
//!
//! Invariant: the numbers change in the transaction that changes what they count.

use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};

use super::super::DiskUsage;
use super::{ACTIONS, ACTIVATIONS, CODES, Failure, SUMMARIES, namespace};
use crate::api::Name;

/// Bytes of actions with their code, bytes of records, and how many records; by namespace.
const USAGE: TableDefinition<'_, &str, (u64, u64, u64)> = TableDefinition::new("disk-usage");

/// What one namespace takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of actions with their code.
    pub code: u64,
    /// Bytes of records with their summaries.
    pub records: u64,
    /// How many records.
    pub count: u64,
}

/// Creates the table. Counts anew what a farfork without it has written.
pub fn open(write: &WriteTransaction) -> Result<(), Failure> {
    let mut counted = 0;
    for entry in write.open_table(USAGE)?.iter()? {
        counted += entry?.1.value().2;
    }
    let (actions, activations) = (write.open_table(ACTIONS)?, write.open_table(ACTIVATIONS)?);
    let is_new = write.open_table(USAGE)?.is_empty()? && !actions.is_empty()?;
    if counted == activations.len()? && !is_new {
        return Ok(());
    }
    write.delete_table(USAGE)?;
    write.open_table(USAGE)?;
    for entry in actions.iter()? {
        let (place, value) = entry?;
        let bytes = value.value().len() as u64;
        change(write, place.value().0, |usage| usage.code += bytes)?;
    }
    for entry in write.open_table(CODES)?.iter()? {
        let (place, value) = entry?;
        let bytes = value.value().len() as u64;
        change(write, place.value().0, |usage| usage.code += bytes)?;
    }
    let summaries = write.open_table(SUMMARIES)?;
    for entry in activations.iter()? {
        let (place, value) = entry?;
        let summary = summaries.get(place.value())?.map_or(0, |summary| summary.value().len());
        let bytes = (value.value().len() + summary) as u64;
        change(write, place.value().0, |usage| {
            (usage.records, usage.count) = (usage.records + bytes, usage.count + 1);
        })?;
    }
    Ok(())
}

/// Changes what a namespace takes; returns it as it is now.
pub fn change(
    write: &WriteTransaction,
    namespace: &str,
    change: impl FnOnce(&mut Usage),
) -> Result<Usage, Failure> {
    let mut table = write.open_table(USAGE)?;
    let (code, records, count) =
        table.get(namespace)?.map(|found| found.value()).unwrap_or_default();
    let mut usage = Usage { code, records, count };
    change(&mut usage);
    match usage == Usage::default() {
        true => drop(table.remove(namespace)?),
        false => drop(table.insert(namespace, (usage.code, usage.records, usage.count))?),
    }
    Ok(usage)
}

/// What all namespaces take that take anything.
pub fn list(read: &ReadTransaction) -> Result<Vec<(Name, DiskUsage)>, Failure> {
    let mut all = Vec::new();
    for entry in read.open_table(USAGE)?.iter()? {
        let (whose, usage) = entry?;
        let (code_bytes, record_bytes, _) = usage.value();
        all.push((namespace(whose.value())?, DiskUsage { code_bytes, record_bytes }));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use redb::Durability;
    use serde_json::json;

    use super::super::Embedded;
    use super::*;
    use crate::api::{ActionPut, Activation, Runtimes};
    use crate::store::Store;

    #[test]
    fn what_an_older_farfork_has_stored_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let store = Embedded::open(&path).unwrap();
        let put = json!({"exec": {"kind": "python", "code": "some code"}});
        let put: ActionPut = serde_json::from_value(put).unwrap();
        let runtimes = Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true };
        let place = (&Name::guest(), &"hello".parse().unwrap());
        store.put_action(&put.apply(place, None, &runtimes, 1).unwrap(), None).unwrap();
        let usage = || store.disk_usage().unwrap();
        let only_code = usage();
        for id in 1..=3 {
            store.finish(Activation::example("hello", id, 1)).unwrap();
        }
        store.flush().unwrap();
        let before = usage();
        assert!(before[0].1.record_bytes > 0 && before[0].1.code_bytes > 9, "{before:?}");
        // The same record again, as after an error of the disk.
        store.finish(Activation::example("hello", 3, 1)).unwrap();
        store.flush().unwrap();
        assert_eq!(usage(), before);
        let forget = |write: &WriteTransaction| Ok(write.delete_table(USAGE).map(drop)?);
        store.write("downgrade", Durability::Immediate, forget).unwrap();
        drop(store);
        let store = Embedded::open(&path).unwrap();
        assert_eq!(store.disk_usage().unwrap(), before);
        while store.forget(u64::MAX).unwrap() > 0 {}
        assert_eq!(store.disk_usage().unwrap(), only_code);
    }
}
