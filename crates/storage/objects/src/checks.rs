//! What a client of a checked region remembers of its objects.

use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::process::abort;

use crate::layout::ClientId;
use crate::region::{Platform, Region};
use crate::words::Words;

/// What is done besides: `abort` ends the process at a finding, `trace` remembers where objects were freed, `abort,trace` both.
pub(crate) const SETTING: &str = "FARFORK_CHECKED";

/// What a checked client remembers.
#[derive(Debug)]
pub(crate) struct Checks {
    /// How many clients had the id before this one, and this one.
    pub(crate) incarnation: u64,
    /// Of the next object.
    pub(crate) generation: u16,
    /// How many objects were freed.
    pub(crate) frees: u64,
    /// What is held back, the oldest first.
    pub(crate) freed: VecDeque<Freed>,
    /// Its bytes.
    pub(crate) held_bytes: u64,
    /// What was found beside calls that were refused.
    pub(crate) findings: Vec<String>,
    aborts: bool,
    /// Whether places of frees are kept.
    pub(crate) traces: bool,
}

/// A freed object.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) granule: u32,
    pub(crate) bytes: u64,
    /// Number of this free among those of the client.
    pub(crate) number: u64,
    pub(crate) place: Option<Backtrace>,
}

impl Checks {
    /// Of the client that has an id now. `None` in other regions.
    pub(crate) fn of<P: Platform>(region: &Region<P>, id: ClientId) -> Option<Box<Checks>> {
        region.header.is_checked.then(|| {
            let incarnation = region.words.word(region.layout.incarnation(id));
            // Two clients hardly begin with the same ones.
            let generation = incarnation.wrapping_mul(40_503) as u16 ^ u16::from(id.number()) << 8;
            Box::new(Checks {
                incarnation,
                generation,
                frees: 0,
                freed: VecDeque::new(),
                held_bytes: 0,
                findings: Vec::new(),
                aborts: is_set("abort"),
                traces: is_set("trace"),
            })
        })
    }

    /// Reports a misuse, which may end the process.
    pub(crate) fn say(&self, what: &str) {
        // Without the lock of the standard error: a forked child may have it from a thread that it does not have.
        let _ = rustix::io::write(rustix::stdio::stderr(), format!("farfork: {what}\n").as_bytes());
        if self.aborts {
            abort();
        }
    }

    /// Reports and keeps it.
    pub(crate) fn find(&mut self, what: String) {
        self.say(&what);
        self.findings.push(what);
    }
}

/// Another client begins to use an id.
pub(crate) fn begin<P: Platform>(region: &Region<P>, id: ClientId) {
    if region.header.is_checked {
        let at = region.layout.incarnation(id);
        region.words.set_word(at, region.words.word(at).wrapping_add(1));
    }
}

fn is_set(wanted: &str) -> bool {
    std::env::var(SETTING).is_ok_and(|value| value.split(',').any(|word| word == wanted))
}
