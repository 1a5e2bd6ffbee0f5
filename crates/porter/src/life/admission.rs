//! How many calls of a namespace wait or are being made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::Name;

/// Most calls of a namespace that wait or are being made.
pub const MOST_CALLS: usize = 1000;

/// Counts calls by namespace.
#[derive(Debug, Default)]
pub struct Admission {
    calls: Mutex<HashMap<Name, usize>>,
}

/// A call's place among those of its namespace, given up when this is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    namespace: Name,
}

impl Admission {
    fn calls(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        // Every step leaves the table valid.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or tells how many are taken if that is as many as there may be.
    pub fn admit(self: &Arc<Admission>, namespace: &Name) -> Result<Admitted, usize> {
        let mut calls = self.calls();
        let count = calls.get(namespace).copied().unwrap_or(0);
        if count >= MOST_CALLS {
            return Err(count);
        }
        Ok(self.place(&mut calls, namespace))
    }

    /// Takes a place for a call that was admitted by an earlier run of the platform.
    pub fn admit_again(self: &Arc<Admission>, namespace: &Name) -> Admitted {
        self.place(&mut self.calls(), namespace)
    }

    fn place(
        self: &Arc<Admission>,
        calls: &mut HashMap<Name, usize>,
        namespace: &Name,
    ) -> Admitted {
        *calls.entry(namespace.clone()).or_default() += 1;
        Admitted { admission: Arc::clone(self), namespace: namespace.clone() }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut calls = self.admission.calls();
        if let Some(count) = calls.get_mut(&self.namespace) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_by_who_is_admitted_and_not_later() {
        let admission = Arc::<Admission>::default();
        let [guest, other] = ["guest", "other"].map(|name| name.parse::<Name>().unwrap());
        let mut admitted: Vec<Admitted> =
            (0..MOST_CALLS).map(|_| admission.admit(&guest).unwrap()).collect();
        assert_eq!(admission.admit(&guest).unwrap_err(), MOST_CALLS);
        assert!(admission.admit(&other).is_ok());
        admitted.pop();
        admitted.push(admission.admit(&guest).unwrap());
        let again = admission.admit_again(&guest);
        assert_eq!(admission.admit(&guest).unwrap_err(), MOST_CALLS + 1);
        drop((admitted, again));
        assert!(admission.calls().is_empty());
    }
}
