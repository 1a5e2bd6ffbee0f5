//! Counters by key, with guards.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_sys::sync::locked;

/// Counts guards by key.
#[derive(Debug)]
pub struct KeyedCounter<K: Eq + Hash> {
    counts: Mutex<HashMap<K, usize>>,
}

/// Counts until it is dropped.
#[derive(Debug)]
pub struct CountGuard<K: Eq + Hash> {
    counter: Arc<KeyedCounter<K>>,
    key: K,
}

impl<K: Eq + Hash> Default for KeyedCounter<K> {
    fn default() -> KeyedCounter<K> {
        KeyedCounter { counts: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash> KeyedCounter<K> {
    /// Adds one to a key, without a limit.
    pub fn add(self: &Arc<KeyedCounter<K>>, key: &K) -> CountGuard<K> {
        self.count(&mut self.counts(), key)
    }

    /// Adds one to a key, unless it has `most` already; then returns the count.
    pub fn add_within(
        self: &Arc<KeyedCounter<K>>,
        key: &K,
        most: usize,
    ) -> Result<CountGuard<K>, usize> {
        let mut counts = self.counts();
        let count = counts.get(key).copied().unwrap_or(0);
        if count < most { Ok(self.count(&mut counts, key)) } else { Err(count) }
    }

    /// Whether the count of a key is above 0.
    pub fn has(&self, key: &K) -> bool {
        self.counts().contains_key(key)
    }

    fn count(
        self: &Arc<KeyedCounter<K>>,
        counts: &mut HashMap<K, usize>,
        key: &K,
    ) -> CountGuard<K> {
        *counts.entry(key.clone()).or_default() += 1;
        CountGuard { counter: Arc::clone(self), key: key.clone() }
    }
}

impl<K: Eq + Hash> KeyedCounter<K> {
    fn counts(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        // Every step leaves the table valid.
        locked(&self.counts)
    }
}

impl<K: Eq + Hash> Drop for CountGuard<K> {
    fn drop(&mut self) {
        let mut counts = self.counter.counts();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_counts_until_it_is_dropped() {
        let counter = Arc::<KeyedCounter<&str>>::default();
        let mut held: Vec<_> = (0..3).map(|_| counter.add_within(&"guest", 3).unwrap()).collect();
        assert_eq!(counter.add_within(&"guest", 3).unwrap_err(), 3);
        assert!(counter.add_within(&"other", 3).is_ok());
        held.pop();
        held.push(counter.add_within(&"guest", 3).unwrap());
        held.push(counter.add(&"guest"));
        assert_eq!(counter.add_within(&"guest", 3).unwrap_err(), 4);
        assert!(counter.has(&"guest") && !counter.has(&"other"));
        drop(held);
        assert!(counter.counts().is_empty(), "zero counts take no memory");
    }
}
