//! The policies, and the journal of what they decide.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};
use std::io::{self, Write};

use farfork_policy::journal::{self, Line, Record};
use farfork_policy::{Policies, Question, Settings};
use farfork_scheduler::Advice;

/// Decides by policies, and writes the decisions down if there is a journal.
pub struct Advisor<'a> {
    policies: Policies,
    book: Option<RefCell<Book<'a>>>,
    /// The time.
    pub now_us: Cell<u64>,
}

struct Book<'a> {
    to: &'a mut dyn Write,
    /// The number of the next decision.
    next: u64,
    failed: Option<io::Error>,
}

impl fmt::Debug for Advisor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Advisor").field("policies", &self.policies).finish_non_exhaustive()
    }
}

impl<'a> Advisor<'a> {
    /// The policies of these settings.
    pub fn new(settings: Settings, journal: Option<&'a mut dyn Write>) -> Advisor<'a> {
        let book = journal.map(|to| {
            let mut book = Book { to, next: 0, failed: None };
            book.write(&Line::Settings { settings });
            RefCell::new(book)
        });
        Advisor { policies: settings.into(), book, now_us: Cell::new(0) }
    }

    /// Whether all decisions were written.
    pub fn end(self) -> io::Result<()> {
        let failed = self.book.and_then(|book| book.into_inner().failed);
        failed.map_or(Ok(()), Err)
    }
}

impl Book<'_> {
    fn write(&mut self, line: &Line) {
        if self.failed.is_none() {
            self.failed = journal::write(&mut self.to, line).err();
        }
    }
}

impl Advice for Advisor<'_> {
    fn is_recorded(&self) -> bool {
        self.book.is_some()
    }

    fn decide_if<F: Question>(
        &self,
        about: &dyn Display,
        facts: &F,
        is_worth: impl FnOnce(&F::Choice) -> bool,
    ) -> F::Choice {
        let Some(book) = &self.book else { return F::policy(&self.policies).choose(facts) };
        let decision = F::policy(&self.policies).decide(facts);
        if is_worth(&decision.choice) {
            let mut book = book.borrow_mut();
            let at_ms = self.now_us.get() / 1000;
            match Record::new(at_ms, &about.to_string(), facts, &decision) {
                Ok(record) => {
                    let number = book.next;
                    book.next += 1;
                    book.write(&Line::Record(Record { number, ..record }));
                }
                Err(error) => book.failed = Some(error.into()),
            }
        }
        decision.choice
    }
}
