//! A store in a file: redb, a copy-on-write B-tree with transactions.

mod accepted;
mod activations;
mod base;
mod finished;
mod usage;

use std::path::Path;

use farfork_policy::settings::Disk;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
    TableHandle, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::base::{Access, Base};
use self::finished::FinishedQueue;
use super::{AcceptedCall, AcceptedEntry, DiskUsage, Key, Selection, Store, StoreError};
use crate::api::{
    Action, Activation, ActivationId, ActivationSummary, Change, Code, Name, NameError, Version,
};

type Json = &'static [u8];

/// Number by name.
const NAMESPACES: TableDefinition<'_, &str, u32> = TableDefinition::new("namespaces");
const KEYS: TableDefinition<'_, &str, Json> = TableDefinition::new("keys");
/// Keyed by namespace and name.
const ACTIONS: TableDefinition<'_, (&str, &str), Json> = TableDefinition::new("actions");
/// Keyed by namespace, start and id.
const ACTIVATIONS: TableDefinition<'_, (&str, u64, u128), Json> =
    TableDefinition::new("activations");
/// The same key.
const SUMMARIES: TableDefinition<'_, (&str, u64, u128), Json> =
    TableDefinition::new("summaries-of-activations");
const CODES: TableDefinition<'_, (&str, &str), &str> = TableDefinition::new("codes");

/// A database in a file.
#[derive(Debug)]
pub struct Embedded {
    base: Base,
    finished: FinishedQueue,
    disk: Disk,
}

impl Embedded {
    /// Opens the database at `path`, which is created if missing.
    pub fn open(path: &Path) -> Result<Embedded, StoreError> {
        Embedded::with_tables(Base::open(path).map_err(failed("open the store", path))?)
    }

    /// Makes a database in memory, which ends with this. Its methods do not block.
    pub fn in_memory() -> Result<Embedded, StoreError> {
        let failed = failed("make the store", Path::new("in memory"));
        Embedded::with_tables(Base::in_memory().map_err(failed)?)
    }

    fn with_tables(base: Base) -> Result<Embedded, StoreError> {
        let (finished, disk) = Default::default();
        let store = Embedded { base, finished, disk };
        // Readers fail if a table is missing.
        store.write("make tables", Durability::Immediate, |write| {
            write.open_table(NAMESPACES)?;
            write.open_table(KEYS)?;
            write.open_table(ACTIONS)?;
            write.open_table(CODES)?;
            accepted::open(write)?;
            activations::open(write)?;
            usage::open(write)
        })?;
        Ok(store)
    }

    /// Limits what a namespace may take.
    pub fn limited(self, disk: Disk) -> Embedded {
        Embedded { disk, ..self }
    }
}

/// Why a transaction ends without a commit.
enum Failure {
    Database(redb::Error),
    /// The database is not used now, for this reason.
    Refused(String),
    Store(StoreError),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Database(error.into())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Store(error)
    }
}

fn failed<E: Into<redb::Error>>(doing: &'static str, path: &Path) -> impl Fn(E) -> StoreError {
    let path = path.display().to_string();
    move |error| {
        let reason = error.into().to_string();
        StoreError::Database { doing, path: path.clone(), reason }
    }
}

fn encoded(record: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let table = "any";
    serde_json::to_vec(record)
        .map_err(|error| StoreError::Record { table, reason: error.to_string() }.into())
}

fn decoded<T: DeserializeOwned>(table: &'static str, bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes)
        .map_err(|error| StoreError::Record { table, reason: error.to_string() }.into())
}

/// A namespace by its name in a table.
fn namespace(name: &str) -> Result<Name, Failure> {
    let named = name.parse().map_err(|error: NameError| StoreError::Record {
        table: "namespaces",
        reason: error.to_string(),
    });
    Ok(named?)
}

impl Embedded {
    fn write<T>(
        &self,
        doing: &'static str,
        durability: Durability,
        change: impl Fn(&WriteTransaction) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let run = |database: &Database, _| self.transact(database, durability, &change);
        self.base.with(Access::Write, run).map_err(|failure| self.store_error(doing, failure))
    }

    fn transact<T>(
        &self,
        database: &Database,
        durability: Durability,
        change: impl Fn(&WriteTransaction) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut write = database.begin_write()?;
        write.set_durability(durability)?;
        let changed = change(&write)?;
        write.commit()?;
        if matches!(durability, Durability::Immediate) {
            self.base.wrote();
        }
        Ok(changed)
    }

    fn read<T>(
        &self,
        doing: &'static str,
        look: impl Fn(&redb::ReadTransaction) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let run = |database: &Database, _| look(&database.begin_read()?);
        self.base.with(Access::Read, run).map_err(|failure| self.store_error(doing, failure))
    }

    /// Makes finished activations visible to readers. They are on disk after the next flush.
    fn write_finished(&self) -> Result<(), StoreError> {
        self.keep(Durability::None)
    }

    /// The same for reads that can do without those that the disk does not take; returns whether
    /// all are visible.
    fn try_write_finished(&self) -> bool {
        let written = self.write_finished();
        written.inspect_err(|error| tracing::debug!(%error, "activations wait")).is_ok()
    }

    fn keep(&self, least: Durability) -> Result<(), StoreError> {
        let run = |database: &Database, generation| {
            self.finished.write(generation, least, |all, durability| {
                self.transact(database, durability, |write| {
                    let ids = all.iter().map(|activation| activation.activation_id);
                    accepted::remove(write, ids)?;
                    activations::keep(write, all, self.disk.namespace_record_bytes)
                })
            })
        };
        self.base
            .with(Access::Write, run)
            .map_err(|failure| self.store_error("store activations", failure))
    }

    fn store_error(&self, doing: &'static str, failure: Failure) -> StoreError {
        match failure {
            Failure::Database(error) => failed(doing, self.base.path())(error),
            Failure::Refused(reason) => {
                let path = self.base.path().display().to_string();
                StoreError::Database { doing, path, reason }
            }
            Failure::Store(error) => error,
        }
    }
}

impl Store for Embedded {
    fn blocks(&self) -> bool {
        self.base.has_file()
    }

    fn number(&self, namespace: &Name) -> Result<u32, StoreError> {
        let known = self.read("look up a namespace", |read| {
            Ok(read.open_table(NAMESPACES)?.get(namespace.as_str())?.map(|found| found.value()))
        })?;
        if let Some(number) = known {
            return Ok(number);
        }
        self.write("number a namespace", Durability::Immediate, |write| {
            let mut table = write.open_table(NAMESPACES)?;
            // Another thread may have been faster.
            if let Some(found) = table.get(namespace.as_str())? {
                return Ok(found.value());
            }
            let number = u32::try_from(table.len()?).unwrap_or(u32::MAX);
            table.insert(namespace.as_str(), number)?;
            Ok(number)
        })
    }

    fn namespaces(&self) -> Result<Vec<Name>, StoreError> {
        self.read("list namespaces", |read| {
            let mut namespaces = Vec::new();
            for entry in read.open_table(NAMESPACES)?.iter()? {
                namespaces.push(namespace(entry?.0.value())?);
            }
            Ok(namespaces)
        })
    }

    fn put_key(&self, key: &Key) -> Result<(), StoreError> {
        self.write("add a key", Durability::Immediate, |write| {
            write.open_table(KEYS)?.insert(&*key.user, &*encoded(key)?)?;
            Ok(())
        })
    }

    fn key(&self, user: &str) -> Result<Option<Key>, StoreError> {
        self.read("look up a key", |read| {
            let found = read.open_table(KEYS)?.get(user)?;
            found.map(|found| decoded(KEYS.name(), found.value())).transpose()
        })
    }

    fn keys(&self, namespace: Option<&Name>) -> Result<Vec<Key>, StoreError> {
        self.read("list keys", |read| {
            let mut keys = Vec::new();
            for entry in read.open_table(KEYS)?.iter()? {
                let key: Key = decoded("keys", entry?.1.value())?;
                if namespace.is_none_or(|namespace| *namespace == key.namespace) {
                    keys.push(key);
                }
            }
            Ok(keys)
        })
    }

    fn revoke(&self, namespace: &Name) -> Result<usize, StoreError> {
        self.write("revoke keys", Durability::Immediate, |write| {
            let mut table = write.open_table(KEYS)?;
            let mut users = Vec::new();
            for entry in table.iter()? {
                let key: Key = decoded("keys", entry?.1.value())?;
                users.extend((key.namespace == *namespace).then_some(key.user));
            }
            for user in &users {
                table.remove(&**user)?;
            }
            Ok(users.len())
        })
    }

    fn action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError> {
        self.read("look up an action", |read| {
            let found = read.open_table(ACTIONS)?.get((namespace.as_str(), name.as_str()))?;
            found.map(|found| decoded(ACTIONS.name(), found.value())).transpose()
        })
    }

    fn actions(
        &self,
        namespace: &Name,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<Action>, StoreError> {
        self.read("list actions", |read| {
            let table = read.open_table(ACTIONS)?;
            let from_namespace = table.range((namespace.as_str(), "")..)?;
            let mut actions = Vec::new();
            for entry in from_namespace.skip(skip).take(limit) {
                let (key, value) = entry?;
                if key.value().0 != namespace.as_str() {
                    break;
                }
                actions.push(decoded(ACTIONS.name(), value.value())?);
            }
            Ok(actions)
        })
    }

    fn code(&self, namespace: &Name, name: &Name) -> Result<Option<Code>, StoreError> {
        self.read("read an action's code", |read| {
            let found = read.open_table(CODES)?.get((namespace.as_str(), name.as_str()))?;
            Ok(found.map(|found| found.value().to_owned()))
        })
    }

    fn put_action(&self, change: &Change, before: Option<Version>) -> Result<(), StoreError> {
        let Change { action, code } = change;
        let place = (action.namespace.as_str(), action.name.as_str());
        self.write("store an action", Durability::Immediate, |write| {
            let mut actions = write.open_table(ACTIONS)?;
            let found = actions.get(place)?.map(|found| decoded(ACTIONS.name(), found.value()));
            let found: Option<Action> = found.transpose()?;
            if found.map(|found| found.version) != before {
                return Err(StoreError::Conflict.into());
            }
            let document = encoded(action)?;
            let old = actions.insert(place, &*document)?.map_or(0, |old| old.value().len());
            let (mut more, mut less) = (document.len(), old);
            if let Some(code) = code {
                let mut codes = write.open_table(CODES)?;
                less += codes.insert(place, &**code)?.map_or(0, |old| old.value().len());
                more += code.len();
            }
            let usage = usage::change(write, place.0, |usage| {
                usage.code = (usage.code + more as u64).saturating_sub(less as u64);
            })?;
            let (bytes, most) = (usage.code, self.disk.namespace_code_bytes);
            // What makes it smaller is always allowed: the limit may have been lowered.
            match more > less && bytes > most {
                true => Err(StoreError::TooMuchCode { bytes, most }.into()),
                false => Ok(()),
            }
        })
    }

    fn delete_action(&self, namespace: &Name, name: &Name) -> Result<Option<Action>, StoreError> {
        let place = (namespace.as_str(), name.as_str());
        self.write("remove an action", Durability::Immediate, |write| {
            let code = write.open_table(CODES)?.remove(place)?.map_or(0, |old| old.value().len());
            let mut actions = write.open_table(ACTIONS)?;
            let found = actions.remove(place)?;
            let less = code + found.as_ref().map_or(0, |found| found.value().len());
            usage::change(write, place.0, |usage| {
                usage.code = usage.code.saturating_sub(less as u64);
            })?;
            found.map(|found| decoded(ACTIONS.name(), found.value())).transpose()
        })
    }

    fn accept(&self, call: &AcceptedCall) -> Result<(), StoreError> {
        self.write("accept a call", Durability::Immediate, |write| accepted::add(write, call))
    }

    fn accepted(&self) -> Result<Vec<AcceptedEntry>, StoreError> {
        self.write_finished()?;
        self.read("list accepted calls", accepted::list)
    }

    fn accepted_call(&self, entry: &AcceptedEntry) -> Result<Option<AcceptedCall>, StoreError> {
        self.write_finished()?;
        self.read("read an accepted call", |read| accepted::find(read, entry))
    }

    fn finish(&self, activation: Activation) -> Result<(), StoreError> {
        match self.finished.add(activation) {
            true => Ok(()),
            false => Err(StoreError::Database {
                doing: "store an activation",
                path: self.base.path().display().to_string(),
                reason: "its queue of unwritten activations is full".to_owned(),
            }),
        }
    }

    fn activation(
        &self,
        namespace: &Name,
        id: ActivationId,
    ) -> Result<Option<Activation>, StoreError> {
        if !self.try_write_finished()
            && let Some(found) = self.finished.find(namespace, id)
        {
            return Ok(Some(found));
        }
        self.read("look up an activation", |read| activations::find(read, namespace, id))
    }

    fn activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<Vec<ActivationSummary>, StoreError> {
        self.try_write_finished();
        self.read("list activations", |read| activations::list(read, namespace, selection))
    }

    fn count_activations(
        &self,
        namespace: &Name,
        selection: &Selection,
    ) -> Result<usize, StoreError> {
        self.try_write_finished();
        self.read("count activations", |read| activations::count(read, namespace, selection))
    }

    fn forget(&self, before_ms: u64) -> Result<usize, StoreError> {
        self.write_finished()?;
        self.write("delete activations", Durability::Immediate, |write| {
            activations::forget(write, before_ms)
        })
    }

    fn flush(&self) -> Result<(), StoreError> {
        // Durable also for transactions committed without durability.
        self.keep(Durability::Immediate)
    }

    fn disk_usage(&self) -> Result<Vec<(Name, DiskUsage)>, StoreError> {
        self.read("add up what namespaces take", usage::list)
    }

    fn disk_limits(&self) -> Disk {
        self.disk
    }
}
