//! What happens when no node has room for an instance.
//!
//! Idle instances and waiting ghosts are worth what it costs to make them again, times how often
//! they are used, for each byte that they take (the greedy-dual order of FaasCache, ASPLOS '21). A
//! clone costs next to nothing to make again, so clones go before instances without an image.

use serde::{Deserialize, Serialize};

use crate::greedy::{self, Candidate};
use crate::occupant::OccupantId;
use crate::{Decision, Facts, Memory, Policy};

/// Facts about an instance that has to start where a node has no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionFacts {
    /// Bytes that must be free for the instance beside the busy ones.
    pub need_bytes: u64,
    /// Most bytes that it may take, if that is more.
    #[serde(default)]
    pub most_bytes: u64,
    /// Memory of the node.
    pub memory: Memory,
    /// What may end on it: idle instances, and ghosts that wait.
    pub idle: Vec<Idle>,
    /// Instances on it that are busy or starting.
    pub busy: u64,
    /// Bytes of instances and ghosts that are ending, as far as the kernel still counts them.
    #[serde(default)]
    pub leaving_bytes: u64,
    /// How long the first call has waited, in milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
    /// Whether more may be free in a moment: an instance has ended or become idle so recently that
    /// the kernel may still count what it held, or memory is set aside for a moment.
    pub is_settling: bool,
    /// Calls that wait for an instance already.
    pub queued: u64,
}

/// An idle instance, or a ghost that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// Its name.
    pub id: OccupantId,
    /// Bytes that its end frees.
    pub bytes: u64,
    /// Microseconds that it takes to make it again.
    #[serde(alias = "start_us")]
    pub saves_us: u64,
    /// Its share of the uses of its kind in the last hour.
    #[serde(alias = "calls_per_hour")]
    pub uses_per_hour: u64,
}

/// What the choice depends on, of the function that asks. Equal ones have equal choices on nodes that are as they
/// were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asker {
    /// What its instance needs at its start.
    pub first_bytes: u64,
    /// Most bytes that it may take.
    pub most_bytes: u64,
    /// Calls that wait.
    pub queued: u64,
    /// Whether instances of its own are busy or starting.
    pub has_busy: bool,
    /// Whether what is leaving is counted on.
    pub is_patient: bool,
}

/// Whether what is leaving is counted on, after the first call has waited for so long.
pub fn is_patient(waited_ms: u64) -> bool {
    waited_ms < PATIENCE_MS
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// Start it.
    Start,
    /// Start it when these have ended.
    Evict(Vec<OccupantId>),
    /// Wait until an instance is idle.
    Wait,
    /// Refuse the call: there is no room.
    Refuse,
}

impl Facts for AdmissionFacts {
    type Choice = Admission;
    const QUESTION: &'static str = "admission";
}

/// After this long, memory of what is ending is not counted on: other calls may take it again and
/// again.
const PATIENCE_MS: u64 = 1000;

/// Evicts what is worth least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeastWorthFirst {
    /// Share of a node's memory that instances may take, in thousandths.
    pub most_memory_permille: u64,
    /// Most calls that wait.
    pub most_queued: u64,
}

impl Default for LeastWorthFirst {
    fn default() -> LeastWorthFirst {
        LeastWorthFirst { most_memory_permille: 950, most_queued: 1000 }
    }
}

impl Policy<AdmissionFacts> for LeastWorthFirst {
    fn decide(&self, facts: &AdmissionFacts) -> Decision<Admission> {
        let AdmissionFacts { need_bytes, memory, busy, queued, .. } = *facts;
        let needed = Memory { used_bytes: memory.used_bytes.saturating_add(need_bytes), ..memory };
        let lacking = needed.excess_above(self.most_memory_permille);
        if lacking == 0 {
            return Decision::new(Admission::Start, "memory is free");
        }
        let most_bytes = need_bytes.max(facts.most_bytes);
        let alone = Memory { used_bytes: most_bytes, ..memory };
        if alone.excess_above(self.most_memory_permille) > 0 {
            let why = format!("it may take {most_bytes} bytes, more than the node's budget");
            return Decision::new(Admission::Refuse, why);
        }
        let leaving = if is_patient(facts.waited_ms) { facts.leaving_bytes } else { 0 };
        let missing = lacking.saturating_sub(leaving);
        let idle = facts.idle.iter().map(Idle::candidate);
        let (ids, freed) = greedy::least_worth(idle, missing);
        if missing > 0 && freed >= missing {
            let why = format!("{missing} bytes are missing, and these are worth least");
            return Decision::new(Admission::Evict(ids), why);
        }
        if missing > 0 && busy == 0 && !facts.is_settling {
            let why = format!("it needs {need_bytes} bytes, and evicting all would not free them");
            return Decision::new(Admission::Refuse, why);
        }
        if queued >= self.most_queued {
            return Decision::new(Admission::Refuse, format!("{queued} calls are waiting already"));
        }
        let why = match busy {
            _ if missing == 0 => {
                format!("{lacking} bytes are missing, and are about to be free")
            }
            0 => format!("{missing} bytes are missing, and more may be free in a moment"),
            _ => format!("{missing} bytes are missing, and {busy} instances are busy"),
        };
        Decision::new(Admission::Wait, why)
    }
}

impl Idle {
    pub(crate) fn candidate(&self) -> Candidate<'_, OccupantId> {
        let Idle { id, bytes, saves_us, uses_per_hour } = self;
        let (uses_per_hour, saves_us) = (*uses_per_hour, *saves_us);
        Candidate { name: id, bytes: *bytes, uses_per_hour, saves_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn idle(id: &str, bytes: u64, saves_us: u64, uses_per_hour: u64) -> Idle {
        Idle { id: id.into(), bytes, saves_us, uses_per_hour }
    }

    fn facts(need_bytes: u64, used_bytes: u64, idle: Vec<Idle>) -> AdmissionFacts {
        let memory = Memory { used_bytes, budget_bytes: 1000 };
        AdmissionFacts { need_bytes, memory, idle, busy: 1, ..AdmissionFacts::default() }
    }

    fn decided(facts: &AdmissionFacts) -> Admission {
        LeastWorthFirst::default().decide(facts).choice
    }

    fn evicted(ids: &[&str]) -> Admission {
        Admission::Evict(ids.iter().map(|id| OccupantId::from(*id)).collect())
    }

    #[test]
    fn clones_are_evicted_before_cold_started_instances() {
        let both = vec![idle("cold", 100, 500_000, 10), idle("clone", 100, 1_000, 10)];
        assert_eq!(decided(&facts(100, 850, both.clone())), Admission::Start);
        assert_eq!(decided(&facts(100, 900, both.clone())), evicted(&["clone"]));
        assert_eq!(decided(&facts(160, 900, both)), evicted(&["clone", "cold"]));
    }

    #[test]
    fn rarely_called_and_large_instances_are_evicted_first() {
        let seldom = vec![idle("often", 100, 1_000, 100), idle("seldom", 100, 1_000, 1)];
        assert_eq!(decided(&facts(100, 900, seldom)), evicted(&["seldom"]));
        let large = vec![idle("small", 100, 1_000, 10), idle("large", 400, 1_000, 10)];
        assert_eq!(decided(&facts(100, 900, large)), evicted(&["large"]));
    }

    #[test]
    fn without_room_a_call_waits_unless_no_room_can_come() {
        let full = facts(100, 900, vec![idle("small", 10, 1, 1)]);
        assert_eq!(decided(&full), Admission::Wait);
        let quiet = AdmissionFacts { busy: 0, ..full.clone() };
        assert_eq!(decided(&quiet), Admission::Refuse);
        assert_eq!(decided(&AdmissionFacts { is_settling: true, ..quiet }), Admission::Wait);
        assert_eq!(decided(&AdmissionFacts { queued: 1000, ..full.clone() }), Admission::Refuse);
        assert_eq!(decided(&AdmissionFacts { need_bytes: 950, ..full.clone() }), Admission::Wait);
        assert_eq!(decided(&AdmissionFacts { need_bytes: 951, ..full }), Admission::Refuse);
    }

    #[test]
    fn nothing_is_evicted_for_memory_that_is_about_to_be_free() {
        let both = || vec![idle("a", 60, 1_000, 10), idle("b", 60, 1_000, 20)];
        let leaving = |leaving_bytes| AdmissionFacts { leaving_bytes, ..facts(150, 900, both()) };
        assert_eq!(decided(&leaving(0)), evicted(&["a", "b"]));
        assert_eq!(decided(&leaving(60)), evicted(&["a"]));
        assert_eq!(decided(&leaving(100)), Admission::Wait);
        let late = AdmissionFacts { waited_ms: 1000, ..leaving(100) };
        assert_eq!(decided(&late), evicted(&["a", "b"]), "what was leaving was for others");
        let last = AdmissionFacts { queued: 1000, idle: vec![], ..leaving(100) };
        assert_eq!(decided(&last), Admission::Refuse);
    }

    proptest! {
        #[test]
        fn started_instances_fit(
            need in 0u64..2000,
            used in 0u64..2000,
            sizes in proptest::collection::vec((0u64..300, 0u64..1000, 0u64..50), 0..8),
        ) {
            let all: Vec<Idle> = sizes
                .iter()
                .enumerate()
                .map(|(index, (bytes, start, calls))| idle(&index.to_string(), *bytes, *start, *calls))
                .collect();
            let freed = match decided(&facts(need, used, all.clone())) {
                Admission::Start => 0,
                Admission::Evict(ids) => {
                    let bytes = |id: &OccupantId| all[id.as_instance().unwrap() as usize].bytes;
                    let freed: u64 = ids.iter().map(bytes).sum();
                    // None was evicted needlessly.
                    let last = ids.last().map(bytes).unwrap();
                    prop_assert!(used + need - (freed - last) > 950);
                    freed
                }
                Admission::Wait | Admission::Refuse => {
                    let all: u64 = all.iter().map(|idle| idle.bytes).sum();
                    prop_assert!(need > 950 || (used + need).saturating_sub(950) > all);
                    return Ok(());
                }
            };
            prop_assert!((used + need).saturating_sub(freed) <= 950);
        }
    }
}
