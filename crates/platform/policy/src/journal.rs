//! The decision journal, and its replay.
//!
//! ```text
//!  {"settings": {...}}                                                       first, and at each change
//!  {"number", "at_ms", "about", "question", "facts", "choice", "why"}        one per decision
//! ```
//! Decisions are numbered in the order in which they were made, from 0 when the platform began. A number
//! that is left out is a decision that could not be written.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admission::AdmissionFacts;
use crate::checkpoint::CheckpointFacts;
use crate::ghosts::{AttachedFacts, EmptyFacts};
use crate::growth::GrowthFacts;
use crate::keep_alive::IdleFacts;
use crate::placement::PlacementFacts;
use crate::reclaim::ReclaimFacts;
use crate::relief::ReliefFacts;
use crate::share::ShareFacts;
use crate::tiering::TieringFacts;
use crate::{Decision, Facts, Policies, Question, Settings};

/// The journal cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read.
    #[error("cannot read the journal")]
    Read(#[source] io::Error),
    /// A line is not a record.
    #[error("line {line} of the journal is invalid: {reason}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// Why.
        reason: String,
    },
}

/// A line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// The policies from here on.
    Settings {
        /// Their settings.
        settings: Settings,
    },
    /// A decision.
    Record(Record),
}

/// The record of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number, from 0 when the platform began. Journals of earlier versions have none.
    #[serde(default)]
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The function, user or node that it is about.
    pub about: String,
    /// The question's name.
    pub question: String,
    /// The facts.
    pub facts: Value,
    /// The choice.
    pub choice: Value,
    /// The reason.
    pub why: String,
}

impl Record {
    /// The record of a decision, which gets its number later.
    pub fn new<F: Facts>(
        at_ms: u64,
        about: &str,
        facts: &F,
        decision: &Decision<F::Choice>,
    ) -> serde_json::Result<Record> {
        Ok(Record {
            number: 0,
            at_ms,
            about: about.to_owned(),
            question: F::QUESTION.to_owned(),
            facts: serde_json::to_value(facts)?,
            choice: serde_json::to_value(&decision.choice)?,
            why: decision.why.clone(),
        })
    }
}

/// Writes a line.
pub fn write(to: &mut impl Write, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)
}

/// A decision that comes out differently on replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its line, from 1.
    pub line: usize,
    /// The recorded decision.
    pub record: Record,
    /// The choice on replay.
    pub choice: Value,
    /// Its reason.
    pub why: String,
}

/// A replayed journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Decisions that it holds.
    pub decisions: usize,
    /// Decisions that were made between them, and not written.
    pub missing: u64,
    /// Decisions that come out differently.
    pub differences: Vec<Difference>,
    /// The number of the last one since the platform began.
    last: Option<u64>,
}

impl Replayed {
    fn count(&mut self, number: u64) {
        self.decisions += 1;
        let expected = self.last.map_or(number, |last| last + 1);
        self.missing += number.saturating_sub(expected);
        self.last = Some(number);
    }
}

/// Replays a journal. The policies have the settings in the journal, or `other` if given. A last line
/// without an end is skipped: it was cut off, or is being written.
pub fn replay(
    mut journal: impl BufRead,
    other: Option<Settings>,
) -> Result<Replayed, JournalError> {
    let mut policies = Policies::from(other.unwrap_or_default());
    let mut replayed = Replayed::default();
    for line in 1.. {
        let mut text = Vec::new();
        journal.read_until(b'\n', &mut text).map_err(JournalError::Read)?;
        let wrong = |reason: String| JournalError::Line { line, reason };
        if !text.ends_with(b"\n") {
            break;
        }
        match serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))? {
            // A platform has begun, and numbers its decisions anew.
            Line::Settings { settings } => {
                replayed.last = None;
                policies = other.map_or_else(|| settings.into(), Policies::from);
            }
            Line::Record(record) => {
                replayed.count(record.number);
                let (choice, why) = policies.replay(&record).map_err(wrong)?;
                if (&choice, &why) != (&record.choice, &record.why) {
                    replayed.differences.push(Difference { line, record, choice, why });
                }
            }
        }
    }
    Ok(replayed)
}

impl Policies {
    /// Repeats the decision of a record.
    fn replay(&self, record: &Record) -> Result<(Value, String), String> {
        match record.question.as_str() {
            TieringFacts::QUESTION => ask::<TieringFacts>(self, record),
            CheckpointFacts::QUESTION => ask::<CheckpointFacts>(self, record),
            IdleFacts::QUESTION => ask::<IdleFacts>(self, record),
            EmptyFacts::QUESTION => ask::<EmptyFacts>(self, record),
            AttachedFacts::QUESTION => ask::<AttachedFacts>(self, record),
            PlacementFacts::QUESTION => ask::<PlacementFacts>(self, record),
            AdmissionFacts::QUESTION => ask::<AdmissionFacts>(self, record),
            GrowthFacts::QUESTION => ask::<GrowthFacts>(self, record),
            ReliefFacts::QUESTION => ask::<ReliefFacts>(self, record),
            ReclaimFacts::QUESTION => ask::<ReclaimFacts>(self, record),
            ShareFacts::QUESTION => ask::<ShareFacts>(self, record),
            other => Err(format!("unknown question '{other}'")),
        }
    }
}

fn ask<F: Question>(policies: &Policies, record: &Record) -> Result<(Value, String), String> {
    let facts: F = serde_json::from_value(record.facts.clone()).map_err(|e| e.to_string())?;
    let Decision { choice, why } = F::policy(policies).decide(&facts);
    Ok((serde_json::to_value(choice).map_err(|e| e.to_string())?, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use crate::Policy;
    use crate::admission::Idle;
    use crate::checkpoint::AfterCalls;
    use crate::growth::Worker;
    use crate::placement::NodeFacts;
    use crate::reclaim::ImageFacts;
    use crate::settings::{Checkpoint, Settings, Share};
    use crate::share::{ALL, Cell, Dynamic};
    use farfork_types::LocalShare;

    fn decided<F: Facts>(policy: &dyn Policy<F>, facts: F) -> Line {
        let record = Record::new(17, "guest/hello", &facts, &policy.decide(&facts));
        Line::Record(record.unwrap())
    }

    fn share() -> ShareFacts {
        let cell = |permille, latency_us| Cell {
            payload_bytes: 1,
            local_permille: LocalShare::from_permille(permille).unwrap(),
            calls: 40,
            latency_us,
            near_bytes: u64::from(permille),
        };
        ShareFacts {
            payload_bytes: 1,
            current_permille: ALL,
            tolerance_permille: None,
            arrivals_per_hour: 60,
            profiled: vec![cell(700, 104), cell(1000, 100)],
            observed: vec![cell(950, 101), cell(1000, 100)],
        }
    }

    /// One decision of each kind.
    fn all(policies: &Policies) -> Vec<Line> {
        let memory = Memory { used_bytes: 95, budget_bytes: 100 };
        let tiering = TieringFacts {
            current: farfork_types::Tiering::Hybrid,
            latency: crate::tiering::Latency { calls: 40, mean_us: 1, p99_us: 2 },
            objective: crate::tiering::Objective { mean_us: None, p99_us: Some(2) },
            memory,
            pool_busy_permille: Some(10),
        };
        let checkpoint = CheckpointFacts { calls: 16, pool: memory, ..CheckpointFacts::default() };
        let idle = Idle { id: "i".into(), bytes: 5, saves_us: 7, uses_per_hour: 1 };
        let node = NodeFacts { node: "n".into(), memory, ..NodeFacts::default() };
        let worker = Worker { id: "7".into(), goes_on: true, ..Worker::default() };
        let image = ImageFacts { name: "g/f".into(), bytes: 20, ..ImageFacts::default() };
        vec![
            decided(&*policies.tiering, tiering),
            decided(&*policies.checkpoint, checkpoint),
            decided(&*policies.keep_alive, IdleFacts { memory, ..IdleFacts::default() }),
            decided(&*policies.empty_ghosts, EmptyFacts { burst: 3, ghost_bytes: 1, memory }),
            decided(
                &*policies.attached_ghosts,
                AttachedFacts { burst: 3, memory, ..Default::default() },
            ),
            decided(&*policies.placement, PlacementFacts { need_bytes: 9, nodes: vec![node] }),
            decided(
                &*policies.admission,
                AdmissionFacts {
                    need_bytes: 3,
                    memory,
                    idle: vec![idle.clone()],
                    ..AdmissionFacts::default()
                },
            ),
            decided(
                &*policies.growth,
                GrowthFacts { memory, idle_bytes: 1, workers: vec![worker] },
            ),
            decided(&*policies.relief, ReliefFacts { memory, idle: vec![idle], leaving_bytes: 0 }),
            decided(
                &*policies.reclaim,
                ReclaimFacts { pool: memory, images: vec![image], ..ReclaimFacts::default() },
            ),
            decided(&*policies.share, share()),
        ]
    }

    fn journal(settings: Settings) -> Vec<u8> {
        let mut text = Vec::new();
        write(&mut text, &Line::Settings { settings }).unwrap();
        all(&settings.into()).iter().for_each(|line| write(&mut text, line).unwrap());
        text
    }

    fn patient() -> Settings {
        Settings {
            checkpoint: Checkpoint::AfterCalls(AfterCalls { calls: 99 }),
            ..Settings::default()
        }
    }

    #[test]
    fn every_kind_of_decision_is_replayed() {
        let shares = [
            Share::Fixed(Default::default()),
            Share::Dynamic(Dynamic::default()),
            Share::Adaptive(Default::default()),
        ];
        let with = |share| Settings { share: Some(share), ..Settings::default() };
        for settings in [Settings::default(), patient()].into_iter().chain(shares.map(with)) {
            let replayed = replay(&*journal(settings), None).unwrap();
            assert_eq!((replayed.decisions, replayed.differences), (11, Vec::new()));
        }
        let other = Some(with(Share::Dynamic(Dynamic { tolerance_permille: 10 })));
        let replayed = replay(&*journal(with(shares[1])), other).unwrap();
        let [one] = &replayed.differences[..] else { panic!("{:#?}", replayed.differences) };
        assert_eq!((&one.record.choice, &one.choice), (&700.into(), &1000.into()));
    }

    #[test]
    fn other_settings_are_reported_as_differences() {
        let replayed = replay(&*journal(Settings::default()), Some(patient())).unwrap();
        let differences = replayed.differences;
        let [one] = &differences[..] else { panic!("{differences:#?}") };
        assert_eq!((one.line, one.record.question.as_str()), (3, "checkpoint"));
        assert_eq!((&one.record.choice, &one.choice), (&"now".into(), &"not-yet".into()));
    }

    #[test]
    fn records_without_newer_facts_are_replayed() {
        let line = r#"{"at_ms":1,"about":"a/b","question":"admission","facts":{"need_bytes":3,"memory":
            {"used_bytes":95,"budget_bytes":100},"idle":[{"id":"i","bytes":5,"start_us":7,
            "calls_per_hour":1}],"busy":0,"is_settling":false,"queued":0},"choice":{"evict":["i"]},
            "why":"3 bytes are missing, and these are worth least"}"#;
        let line = line.replace('\n', " ") + "\n";
        let replayed = replay(line.as_bytes(), None).unwrap();
        assert_eq!((replayed.decisions, replayed.differences), (1, Vec::new()));
    }

    #[test]
    fn a_last_line_that_was_cut_off_is_skipped() {
        let whole = journal(Settings::default());
        for cut in 1..200 {
            let replayed = replay(&whole[..whole.len() - cut], None).unwrap();
            let seen = (replayed.decisions, replayed.differences);
            assert_eq!(seen, (10, Vec::new()), "{cut} bytes are cut off");
        }
        let cut_off = [&whole[..whole.len() - 9], b"\n", &whole].concat();
        let message = replay(&*cut_off, None).unwrap_err().to_string();
        assert!(message.contains("line 12 "), "only the last may be: {message}");
    }

    #[test]
    fn decisions_that_were_not_written_are_counted() {
        let policies = Policies::from(Settings::default());
        let mut text = Vec::new();
        // Two runs of a platform; the first begins in an older journal.
        for numbers in [&[7, 8, 12, 13][..], &[0, 1, 3]] {
            write(&mut text, &Line::Settings { settings: Settings::default() }).unwrap();
            for number in numbers {
                let mut line = all(&policies).swap_remove(0);
                if let Line::Record(record) = &mut line {
                    record.number = *number;
                }
                write(&mut text, &line).unwrap();
            }
        }
        let replayed = replay(&*text, None).unwrap();
        assert_eq!((replayed.decisions, replayed.missing), (7, 3 + 1));
        let replayed = replay(&*text, Some(patient())).unwrap();
        assert_eq!((replayed.decisions, replayed.missing), (7, 3 + 1));
    }

    #[test]
    fn an_invalid_line_is_named() {
        let mut text = journal(Settings::default());
        text.extend_from_slice(b"{\"at_ms\": 1}\n");
        let message = replay(&*text, None).unwrap_err().to_string();
        assert!(message.contains("line 13"), "{message}");
        let unknown = r#"{"at_ms":1,"about":"x","question":"why","facts":{},"choice":1,"why":""}"#;
        let message = replay(format!("{unknown}\n").as_bytes(), None).unwrap_err().to_string();
        assert!(message.contains("'why'"), "{message}");
    }
}
