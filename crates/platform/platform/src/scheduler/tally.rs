//! Counts, by key, of what goes on.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts what goes on, by key.
#[derive(Debug)]
pub struct Tally<K: Eq + Hash> {
    counts: Mutex<HashMap<K, usize>>,
}

/// Something goes on until this is dropped.
#[derive(Debug)]
pub struct Tallied<K: Eq + Hash> {
    tally: Arc<Tally<K>>,
    key: K,
}

impl<K: Eq + Hash> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally { counts: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash> Tally<K> {
    /// One more goes on with this key, however many there are.
    pub fn add(self: &Arc<Tally<K>>, key: &K) -> Tallied<K> {
        self.count(&mut self.counts(), key)
    }

    /// The same, or how many there are if these are as many as there may be.
    pub fn add_within(self: &Arc<Tally<K>>, key: &K, most: usize) -> Result<Tallied<K>, usize> {
        let mut counts = self.counts();
        let count = counts.get(key).copied().unwrap_or(0);
        if count < most { Ok(self.count(&mut counts, key)) } else { Err(count) }
    }

    /// Whether something goes on with this key.
    pub fn has(&self, key: &K) -> bool {
        self.counts().contains_key(key)
    }

    fn count(self: &Arc<Tally<K>>, counts: &mut HashMap<K, usize>, key: &K) -> Tallied<K> {
        *counts.entry(key.clone()).or_default() += 1;
        Tallied { tally: Arc::clone(self), key: key.clone() }
    }
}

impl<K: Eq + Hash> Tally<K> {
    fn counts(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        // Every step leaves the table valid.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Tallied<K> {
    fn drop(&mut self) {
        let mut counts = self.tally.counts();
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
    fn a_place_is_taken_until_it_is_given_up() {
        let tally = Arc::<Tally<&str>>::default();
        let mut held: Vec<_> = (0..3).map(|_| tally.add_within(&"guest", 3).unwrap()).collect();
        assert_eq!(tally.add_within(&"guest", 3).unwrap_err(), 3);
        assert!(tally.add_within(&"other", 3).is_ok());
        held.pop();
        held.push(tally.add_within(&"guest", 3).unwrap());
        held.push(tally.add(&"guest"));
        assert_eq!(tally.add_within(&"guest", 3).unwrap_err(), 4);
        assert!(tally.has(&"guest") && !tally.has(&"other"));
        drop(held);
        assert!(tally.counts().is_empty(), "what is not there takes no room");
    }
}
