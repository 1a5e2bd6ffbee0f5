//! Asks the policies, and writes the decision journal.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use farfork_policy::journal::{self, Line, Record};
use farfork_policy::settings::Growth;
use farfork_policy::share::Cell;
use farfork_policy::{Decision, Facts, Policies, Question, Settings};
use farfork_scheduler::Advice;
use farfork_sys::sync::locked;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde_json::Value;
use tokio::time::Instant;

use super::decisions::Decisions;
use crate::clock::now_ms;

/// Beyond this size a new journal is begun; the previous one is kept.
const MOST_BYTES: u64 = 64 << 20;

/// Policies and their journal.
#[derive(Debug)]
pub struct Advisor {
    policies: Policies,
    settings: Settings,
    book: Mutex<Book>,
    /// What is known of functions with shares of near memory, by their names.
    profiles: BTreeMap<String, Vec<Cell>>,
    /// When it was made, if time is counted from then on.
    begun: Option<Instant>,
    /// Counts of decisions.
    pub counts: Family<DecisionLabels, Counter>,
    /// Decisions for viewers.
    pub decisions: Decisions,
}

/// Numbers decisions and writes them down.
#[derive(Debug, Default)]
struct Book {
    /// The number of the next decision.
    next: u64,
    journal: Option<JournalFile>,
}

/// Labels of the count of decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct DecisionLabels {
    policy: &'static str,
    /// The choice in a word; empty if it is a figure or a list.
    choice: String,
}

/// The file of a decision journal.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: File,
    /// Bytes of its complete lines.
    bytes: u64,
    /// Whether a part of a line may follow them.
    is_torn: bool,
    /// Lines lost since the last successful write.
    lost: u64,
}

impl JournalFile {
    /// Opens the journal at `path`, which is created if missing.
    pub fn open(path: &Path) -> io::Result<JournalFile> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let bytes = whole_lines(&mut file)?;
        // Cuts off a partial line of a full disk or a crash, which would spoil the next line.
        file.set_len(bytes)?;
        Ok(JournalFile { path: path.to_owned(), file, bytes, is_torn: false, lost: 0 })
    }

    /// Writes a line. Failures are counted, and logged once.
    fn append(&mut self, settings: Settings, line: io::Result<Line>) {
        match line.and_then(|line| self.write(settings, &line)) {
            Ok(()) => {
                let lost = std::mem::take(&mut self.lost);
                if lost > 0 {
                    tracing::warn!(
                        lost,
                        "the decision journal is written again; it lacks the lost decisions"
                    );
                }
            }
            Err(source) => {
                if self.lost == 0 {
                    let reason = farfork_sys::words::of(&source);
                    tracing::error!(
                        reason,
                        "cannot write the decision journal; decisions are lost until this succeeds"
                    );
                }
                self.lost += 1;
            }
        }
    }

    fn write(&mut self, settings: Settings, line: &Line) -> io::Result<()> {
        if self.bytes >= MOST_BYTES {
            self.begin_anew()?;
        }
        // Replay needs the settings before any decision.
        if self.bytes == 0 && !matches!(line, Line::Settings { .. }) {
            self.put(&Line::Settings { settings })?;
        }
        self.put(line)
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, self.path.with_extension("old.jsonl")) {
            // It was renamed already, when the new file could not be created.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let lost = self.lost;
        *self = JournalFile { lost, ..JournalFile::open(&self.path)? };
        Ok(())
    }

    fn put(&mut self, line: &Line) -> io::Result<()> {
        let mut text = Vec::new();
        journal::write(&mut text, line)?;
        if self.is_torn {
            self.file.set_len(self.bytes)?;
        }
        // In one write, so that a killed process leaves complete lines. A full disk may take a part
        // of it.
        self.is_torn = true;
        self.file.write_all(&text)?;
        self.is_torn = false;
        self.bytes += text.len() as u64;
        Ok(())
    }
}

/// The length of a file up to the end of its last complete line.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let bytes = file.metadata()?.len();
    let mut last = [b'\n'];
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
    }
    if last == [b'\n'] {
        return Ok(bytes);
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1))
}

impl Advisor {
    /// Makes the policies of these settings; decisions go to the journal, if one is given.
    pub fn new(settings: Settings, mut journal: Option<JournalFile>) -> io::Result<Advisor> {
        if let Some(journal) = &mut journal {
            journal.write(settings, &Line::Settings { settings })?;
        }
        let (policies, book) = (settings.into(), Mutex::new(Book { next: 0, journal }));
        let (counts, decisions) = Default::default();
        let profiles = BTreeMap::new();
        Ok(Advisor { policies, settings, book, profiles, begun: None, counts, decisions })
    }

    /// With profiles of functions, by `NAMESPACE/NAME` or name.
    pub fn with_profiles(self, profiles: BTreeMap<String, Vec<Cell>>) -> Advisor {
        Advisor { profiles, ..self }
    }

    /// Whether shares of near memory are decided for all functions.
    pub fn decides_shares(&self) -> bool {
        self.settings.share.is_some()
    }

    /// The profile of a function; empty if there is none.
    pub fn profile(&self, path: &str, name: &str) -> Vec<Cell> {
        let found = self.profiles.get(path).or_else(|| self.profiles.get(name));
        found.cloned().unwrap_or_default()
    }

    /// The same for a simulation: times in the journal count from now on, by the clock of Tokio.
    pub fn simulated(settings: Settings, journal: Option<JournalFile>) -> io::Result<Advisor> {
        Ok(Advisor { begun: Some(Instant::now()), ..Advisor::new(settings, journal)? })
    }

    /// The policy of memory that stays free for busy instances.
    pub fn growth(&self) -> Growth {
        self.settings.growth
    }

    /// How long instances are idle before they are frozen.
    pub fn freeze_after(&self) -> Duration {
        Duration::from_millis(self.settings.freeze.after_ms)
    }

    /// Decides by a policy, without recording the decision.
    pub fn consider<F: Question>(&self, facts: &F) -> Decision<F::Choice> {
        F::policy(&self.policies).decide(facts)
    }

    /// Decides where a lock is held: decisions are recorded when the returned value is dropped.
    pub fn deferred(&self) -> Deferred<'_> {
        Deferred { advisor: self, made: RefCell::default() }
    }

    /// Counts, publishes and journals a decision.
    pub fn record<F: Facts>(&self, about: &dyn Display, facts: &F, decision: &Decision<F::Choice>) {
        self.keep(self.made(about, facts, decision));
    }

    fn made<F: Facts>(
        &self,
        about: &dyn Display,
        facts: &F,
        decision: &Decision<F::Choice>,
    ) -> Made {
        let record = Record::new(self.now_ms(), &about.to_string(), facts, decision);
        let labels = DecisionLabels::new::<F>(&decision.choice);
        Made { labels, record: record.map_err(io::Error::from) }
    }

    fn keep(&self, made: Made) {
        let Made { labels, record } = made;
        self.counts.get_or_create(&labels).inc();
        // Under one lock, so that the journal has decisions in the order of their numbers.
        let mut book = locked(&self.book);
        let record = record.map(|record| Record { number: book.next, ..record });
        book.next += 1;
        if let Ok(record) = &record {
            self.decisions.publish(record);
        }
        if let Some(file) = &mut book.journal {
            file.append(self.settings, record.map(Line::Record));
        }
    }

    fn now_ms(&self) -> u64 {
        let since = |begun: Instant| u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.begun.map_or_else(now_ms, since)
    }
}

impl Advice for Advisor {
    fn decide_if<F: Question>(
        &self,
        about: &dyn Display,
        facts: &F,
        is_worth: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice {
        let decision = self.consider(facts);
        if is_worth(&decision.choice) {
            self.record(about, facts, &decision);
        }
        decision.choice
    }
}

/// A decision that is to be recorded.
#[derive(Debug)]
struct Made {
    labels: DecisionLabels,
    record: io::Result<Record>,
}

/// Decides, and records the decisions when it is dropped.
#[derive(Debug)]
pub struct Deferred<'a> {
    advisor: &'a Advisor,
    made: RefCell<Vec<Made>>,
}

impl Advice for Deferred<'_> {
    fn decide_if<F: Question>(
        &self,
        about: &dyn Display,
        facts: &F,
        is_worth: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice {
        let decision = self.advisor.consider(facts);
        if is_worth(&decision.choice) {
            self.made.borrow_mut().push(self.advisor.made(about, facts, &decision));
        }
        decision.choice
    }
}

impl Drop for Deferred<'_> {
    fn drop(&mut self) {
        self.made.take().into_iter().for_each(|made| self.advisor.keep(made));
    }
}

impl DecisionLabels {
    fn new<F: Facts>(choice: &F::Choice) -> DecisionLabels {
        let choice = match serde_json::to_value(choice) {
            Ok(Value::String(word)) => word,
            Ok(Value::Bool(is_so)) => if is_so { "yes" } else { "no" }.to_owned(),
            Ok(Value::Null) => "none".to_owned(),
            // A choice with details, such as the instances to evict.
            Ok(Value::Object(with)) => with.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        };
        DecisionLabels { policy: F::QUESTION, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_policy::checkpoint::{CheckpointFacts, Timing};
    use std::io::BufReader;

    fn replayed(path: &Path) -> (usize, usize) {
        let file = BufReader::new(File::open(path).unwrap());
        let replayed = journal::replay(file, None).unwrap();
        (replayed.decisions, replayed.differences.len())
    }

    #[test]
    fn journalled_decisions_can_be_replayed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        for _ in 0..2 {
            let journal = JournalFile::open(&path).unwrap();
            let advisor = Advisor::new(Settings::default(), Some(journal)).unwrap();
            for (calls, expected) in [(1, Timing::NotYet), (16, Timing::Now)] {
                let facts = CheckpointFacts { calls, ..CheckpointFacts::default() };
                let choice = advisor.decide(&"guest/a", &facts);
                assert_eq!(choice, expected);
            }
        }
        assert_eq!(replayed(&path), (4, 0));
    }

    #[test]
    fn a_partial_line_is_removed_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        for cut_off in ["{\"sett", "{\"at_ms\":1,\"ab"] {
            let mut text = fs::read_to_string(&path).unwrap_or_default();
            text.push_str(cut_off);
            fs::write(&path, text).unwrap();
            let journal = JournalFile::open(&path).unwrap();
            let advisor = Advisor::new(Settings::default(), Some(journal)).unwrap();
            advisor.decide(&"guest/a", &CheckpointFacts::default());
        }
        assert_eq!(replayed(&path), (2, 0));
    }

    /// An advisor with its journal at `path`, after one decision.
    fn asked(path: &Path) -> Advisor {
        let journal = JournalFile::open(path).unwrap();
        let advisor = Advisor::new(Settings::default(), Some(journal)).unwrap();
        ask(&advisor);
        advisor
    }

    fn ask(advisor: &Advisor) {
        advisor.decide(&"guest/a", &CheckpointFacts::default());
    }

    fn lost(advisor: &Advisor) -> u64 {
        advisor.book.lock().unwrap().journal.as_ref().unwrap().lost
    }

    /// Replaces the journal's file; returns the old one.
    fn replace(advisor: &Advisor, file: File) -> File {
        let mut book = advisor.book.lock().unwrap();
        std::mem::replace(&mut book.journal.as_mut().unwrap().file, file)
    }

    #[test]
    fn a_journal_continues_when_the_disk_accepts_writes_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        let advisor = asked(&path);
        // A file that cannot be written.
        let disk = replace(&advisor, File::open(&path).unwrap());
        (0..3).for_each(|_| ask(&advisor));
        assert_eq!(lost(&advisor), 3);
        // The disk may have taken a part of a line.
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"{\"at_ms\":1,\"ab").unwrap();
        replace(&advisor, disk);
        ask(&advisor);
        assert_eq!((replayed(&path), lost(&advisor)), ((2, 0), 0));
        let file = BufReader::new(File::open(&path).unwrap());
        assert_eq!(journal::replay(file, None).unwrap().missing, 3, "numbers show what is lost");
    }

    #[test]
    fn a_failed_rotation_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        let advisor = asked(&path);
        advisor.book.lock().unwrap().journal.as_mut().unwrap().bytes = MOST_BYTES;
        // The old journal was renamed, and creating the new one failed.
        fs::rename(&path, directory.path().join("decisions.old.jsonl")).unwrap();
        fs::create_dir(&path).unwrap();
        ask(&advisor);
        assert_eq!(lost(&advisor), 1);
        fs::remove_dir_all(&path).unwrap();
        ask(&advisor);
        assert_eq!((replayed(&path), lost(&advisor)), ((1, 0), 0));
        assert!(fs::read_to_string(&path).unwrap().starts_with("{\"settings\""));
    }

    #[test]
    fn a_new_journal_begins_with_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("decisions.jsonl");
        let mut journal = JournalFile::open(&path).unwrap();
        journal.bytes = MOST_BYTES;
        let advisor = Advisor::new(Settings::default(), Some(journal)).unwrap();
        advisor.decide(&"guest/a", &CheckpointFacts::default());
        assert_eq!(replayed(&path), (1, 0));
        assert!(directory.path().join("decisions.old.jsonl").exists());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"settings\""), "{text}");
    }
}
