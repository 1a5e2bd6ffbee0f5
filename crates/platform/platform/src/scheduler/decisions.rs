//! Decisions as they are made, for viewers.
//!
//! ```text
//!  publish ─► the last decisions of each question ─► new viewers
//!          └► a channel of bounded length ─────────► viewers; slow ones lose the oldest
//! ```
//! Invariant: a new viewer gets each decision once, as a past or an upcoming one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use farfork_policy::journal::Record;
use farfork_sys::sync::locked;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;

/// Decisions kept per question. Per question, so that those made at every call do not displace all
/// others.
const KEPT: usize = 16;
/// Length of the channel.
const BEHIND: usize = 256;

/// A published decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Its number, from 0 when the platform began.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The function, user or node that it is about.
    pub about: String,
    /// The question's name.
    pub question: String,
    /// The choice.
    pub choice: Value,
    /// The reason.
    pub why: String,
}

/// A viewer's decisions.
#[derive(Debug)]
pub struct Subscription {
    /// The last decisions, the oldest first.
    pub past: Vec<Arc<Published>>,
    /// New decisions.
    pub upcoming: broadcast::Receiver<Arc<Published>>,
}

/// Publishes decisions, and keeps the last ones.
#[derive(Debug)]
pub struct Decisions {
    kept: Mutex<Kept>,
    sender: broadcast::Sender<Arc<Published>>,
}

#[derive(Debug, Default)]
struct Kept {
    last: BTreeMap<String, VecDeque<Arc<Published>>>,
}

impl Default for Decisions {
    fn default() -> Decisions {
        Decisions { kept: Mutex::default(), sender: broadcast::Sender::new(BEHIND) }
    }
}

impl Decisions {
    /// Publishes a decision.
    pub fn publish(&self, record: &Record) {
        let mut kept = locked(&self.kept);
        let published = Arc::new(Published {
            number: record.number,
            at_ms: record.at_ms,
            about: record.about.clone(),
            question: record.question.clone(),
            choice: record.choice.clone(),
            why: record.why.clone(),
        });
        let last = kept.last.entry(record.question.clone()).or_default();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(Arc::clone(&published));
        // Under the lock, so that no viewer subscribes in between. Fails if there is no viewer.
        let _ = self.sender.send(published);
    }

    /// Subscribes a viewer.
    pub fn subscribe(&self) -> Subscription {
        let kept = locked(&self.kept);
        let mut past: Vec<_> = kept.last.values().flatten().cloned().collect();
        let upcoming = self.sender.subscribe();
        drop(kept);
        past.sort_unstable_by_key(|decision| decision.number);
        Subscription { past, upcoming }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::broadcast::error::TryRecvError;

    fn record(number: u64, question: &str, why: &str) -> Record {
        Record {
            number,
            at_ms: 7,
            about: "guest/a".to_owned(),
            question: question.to_owned(),
            facts: Value::Null,
            choice: true.into(),
            why: why.to_owned(),
        }
    }

    #[test]
    fn rare_decisions_stay_beside_frequent_ones() {
        let decisions = Decisions::default();
        decisions.publish(&record(0, "checkpoint", "rare"));
        (0..100)
            .for_each(|one| decisions.publish(&record(1 + one, "keep-alive", &one.to_string())));
        let past = decisions.subscribe().past;
        assert_eq!(past.len(), 1 + KEPT);
        assert_eq!((past[0].why.as_str(), past[1].why.as_str()), ("rare", "84"));
        assert!(past.windows(2).all(|two| two[0].number < two[1].number));
    }

    #[test]
    fn each_decision_arrives_once_and_lost_ones_are_counted() {
        let decisions = Decisions::default();
        decisions.publish(&record(0, "checkpoint", "before"));
        let Subscription { past, mut upcoming } = decisions.subscribe();
        assert_eq!(past.len(), 1);
        assert_eq!(upcoming.try_recv(), Err(TryRecvError::Empty));
        decisions.publish(&record(1, "checkpoint", "after"));
        assert_eq!(upcoming.try_recv().unwrap().why, "after");
        let many = BEHIND as u64 + 44;
        (0..many).for_each(|one| decisions.publish(&record(2 + one, "checkpoint", "much")));
        assert_eq!(upcoming.try_recv(), Err(TryRecvError::Lagged(44)));
        assert_eq!(upcoming.try_recv().unwrap().number, 2 + 44);
    }
}
