//! Which versions of functions have a task: what there is of such a one goes when its last task ends, and not
//! before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the tasks of versions, by the names of their images.
#[derive(Debug, Default)]
pub struct Versions {
    tasks: Mutex<HashMap<String, usize>>,
}

/// A version has a task until this is dropped.
#[derive(Debug)]
pub struct Served {
    versions: Arc<Versions>,
    version: String,
}

impl Versions {
    fn tasks(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // Every step leaves the table valid.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A version has a task, or one more: a call that was looked up before an update may come after it.
    pub fn serve(self: &Arc<Versions>, version: &str) -> Served {
        *self.tasks().entry(version.to_owned()).or_default() += 1;
        Served { versions: Arc::clone(self), version: version.to_owned() }
    }

    /// Whether a version has a task.
    pub fn is_served(&self, version: &str) -> bool {
        self.tasks().contains_key(version)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let mut tasks = self.versions.tasks();
        if let Some(count) = tasks.get_mut(&self.version) {
            *count -= 1;
            if *count == 0 {
                tasks.remove(&self.version);
            }
        }
    }
}
