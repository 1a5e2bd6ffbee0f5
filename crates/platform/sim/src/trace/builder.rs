//! What readers of traces fill.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::provisioned::Provisioned;
use super::sorter::{Call, Sorter};
use super::{Function, SHOWN};
use crate::error::SimError;
use crate::malformed::Malformed;

/// Functions, calls, and what is wrong.
pub struct Builder {
    pub functions: Vec<Function>,
    /// By owner and name, with a zero byte between them.
    known: HashMap<String, u32>,
    /// A key, so that looking a function up needs no new memory.
    key: String,
    pub calls: Sorter,
    /// Why a call could not be kept.
    failure: Option<io::Error>,
    pub rows_malformed: u64,
    pub malformed: Vec<Malformed>,
    pub notes: Vec<String>,
    pub provisioned: Provisioned,
}

impl Builder {
    /// Keeps so many calls in memory.
    pub fn new(in_memory: usize) -> Builder {
        Builder {
            functions: Vec::new(),
            known: HashMap::new(),
            key: String::new(),
            calls: Sorter::new(in_memory),
            failure: None,
            rows_malformed: 0,
            malformed: Vec::new(),
            notes: Vec::new(),
            provisioned: Provisioned::default(),
        }
    }

    /// The index of a function.
    pub fn function(&mut self, owner: &str, name: &str) -> u32 {
        self.key.clear();
        self.key.extend([owner, "\0", name]);
        if let Some(index) = self.known.get(&self.key) {
            return *index;
        }
        let index = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        let full = if owner.is_empty() { name.to_owned() } else { format!("{owner}/{name}") };
        let function = Function { name: full, owner: owner.to_owned(), memory_bytes: None };
        self.functions.push(function);
        self.known.insert(self.key.clone(), index);
        index
    }

    /// Adds a call.
    pub fn call(&mut self, call: Call) {
        if self.failure.is_none() {
            self.failure = self.calls.add(call).err();
        }
    }

    /// Fails if a call could not be kept.
    pub fn check(&mut self) -> Result<(), SimError> {
        self.failure.take().map_or(Ok(()), |source| Err(SimError::Spill { source }))
    }

    /// Counts a malformed row. Its line is looked up only if it is kept.
    pub fn malformed(&mut self, path: &Path, line: impl FnOnce() -> u64, reason: String) {
        self.rows_malformed += 1;
        if self.malformed.len() < SHOWN {
            self.malformed.push(Malformed { path: path.to_owned(), line: line(), reason });
        }
    }
}
