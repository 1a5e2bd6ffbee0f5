//! Memory of requests: bodies while they arrive, arguments of calls that wait or run, large answers until they are sent.
//! Lines of running calls are counted alike, apart from these.
//!
//! Invariants: a namespace holds at most its limit, and all of them together at most theirs. A
//! reservation is given back when the bytes that it stands for are dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use farfork_policy::settings::Requests;
use farfork_sys::sync::locked;
use tokio::sync::Notify;

use crate::api::{ApiError, Name};

/// Counts the memory of requests.
#[derive(Debug, Default)]
pub struct RequestMemory {
    limits: Requests,
    used: Mutex<Used>,
    /// Notified when some is given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Used {
    bytes: u64,
    of_namespaces: HashMap<Name, u64>,
}

/// Memory of one request, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<RequestMemory>,
    namespace: Name,
    bytes: u64,
}

impl RequestMemory {
    /// Nothing is reserved yet.
    pub fn new(limits: Requests) -> Arc<RequestMemory> {
        Arc::new(RequestMemory { limits, ..RequestMemory::default() })
    }

    /// The limits.
    pub fn limits(&self) -> Requests {
        self.limits
    }

    /// The bytes that are reserved.
    pub fn used(&self) -> u64 {
        self.lock().bytes
    }

    /// An empty reservation for a request of this namespace.
    pub fn reservation(self: &Arc<RequestMemory>, namespace: &Name) -> Reservation {
        Reservation { memory: Arc::clone(self), namespace: namespace.clone(), bytes: 0 }
    }

    /// Reserves memory for an accepted call as soon as there is room. One that is larger than a limit,
    /// which may have been lowered, waits until nothing else is reserved.
    pub async fn when_free(self: &Arc<RequestMemory>, namespace: &Name, bytes: u64) -> Reservation {
        let mut reservation = self.reservation(namespace);
        loop {
            let freed = self.freed.notified();
            let is_alone = self.lock().of_namespaces.get(namespace).is_none_or(|used| *used == 0);
            let room = if is_alone { self.limits.namespace_bytes } else { u64::MAX };
            if reservation.grow(bytes.min(room)).is_ok() {
                return reservation;
            }
            freed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        // Every step leaves the numbers valid.
        locked(&self.used)
    }
}

impl Reservation {
    /// What counts it.
    #[cfg(test)]
    pub fn counted(&self) -> &Arc<RequestMemory> {
        &self.memory
    }

    /// Reserves memory for an answer. One that is larger than the limit is answered if nothing else is reserved.
    pub fn grow_for_answer(&mut self, bytes: u64) -> Result<(), ApiError> {
        let Requests { namespace_bytes, all_bytes } = self.memory.limits;
        self.grow(bytes.min(namespace_bytes).min(all_bytes))
    }

    /// Reserves more bytes, or refuses.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ApiError> {
        let Requests { namespace_bytes, all_bytes } = self.memory.limits;
        let mut used = self.memory.lock();
        let of_namespace = used.of_namespaces.get(&self.namespace).copied().unwrap_or(0);
        if self.bytes + bytes > namespace_bytes {
            return Err(ApiError::TooLarge { what: "a request", most: namespace_bytes });
        }
        if of_namespace + bytes > namespace_bytes {
            let whose = format!("requests of '{}' hold", self.namespace);
            return Err(full(&whose, of_namespace, namespace_bytes));
        }
        if used.bytes + bytes > all_bytes {
            return Err(full("requests of all namespaces hold", used.bytes, all_bytes));
        }
        used.bytes += bytes;
        *used.of_namespaces.entry(self.namespace.clone()).or_default() += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back all but this many bytes.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        if excess == 0 {
            return;
        }
        self.bytes -= excess;
        let mut used = self.memory.lock();
        used.bytes -= excess;
        if let Some(of_namespace) = used.of_namespaces.get_mut(&self.namespace) {
            *of_namespace -= excess;
            if *of_namespace == 0 {
                used.of_namespaces.remove(&self.namespace);
            }
        }
        drop(used);
        self.memory.freed.notify_waiters();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

fn full(whose: &str, used: u64, most: u64) -> ApiError {
    ApiError::TooMany(format!(
        "{whose} {used} of {most} bytes of memory; try again when some of their calls have ended, \
         or send less at once"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const LIMITS: Requests = Requests { namespace_bytes: 100, all_bytes: 150 };

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_namespace_and_all_together_have_a_limit() {
        let memory = RequestMemory::new(LIMITS);
        let mut first = memory.reservation(&name("a"));
        first.grow(60).unwrap();
        first.grow(30).unwrap();
        let mut second = memory.reservation(&name("a"));
        let refused = second.grow(20).unwrap_err();
        assert_eq!(refused.status(), 429);
        assert!(refused.to_string().contains("requests of 'a' hold 90 of 100 bytes"), "{refused}");
        let mut other = memory.reservation(&name("b"));
        other.grow(50).unwrap();
        let refused = other.grow(20).unwrap_err();
        assert_eq!(refused.status(), 429);
        assert!(refused.to_string().contains("all namespaces hold 140 of 150"), "{refused}");
        assert_eq!(other.grow(51).unwrap_err().status(), 413, "no wait would help");
        first.shrink_to(10);
        other.grow(20).unwrap();
        second.grow(20).unwrap();
        drop((first, second, other));
        assert_eq!(memory.used(), 0);
        assert!(memory.lock().of_namespaces.is_empty(), "zero counts take no memory");
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_call_waits_for_room() {
        let memory = RequestMemory::new(LIMITS);
        let mut first = memory.when_free(&name("a"), 70).await;
        let a = name("a");
        let next = memory.when_free(&a, 70);
        tokio::pin!(next);
        assert!(timeout(Duration::from_secs(9), &mut next).await.is_err());
        first.shrink_to(20);
        let second = timeout(Duration::from_secs(9), &mut next).await.unwrap();
        drop((first, second));
        let large = memory.when_free(&name("a"), 1000).await;
        assert_eq!((large.bytes, memory.used()), (100, 100), "or it would wait for ever");
    }
}
