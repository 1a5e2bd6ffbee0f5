//! Which pages of their image clones touch, taken from clones that are watched.
//!
//! ```text
//!  watched clone ── page maps ──► Watched::look ─► Observed ─► this node's table beside the image
//! ```
//! A watched clone's page tables only ever gain pages. So each look shows all that it has touched since
//! it started, and another look costs only a walk over its page tables (about 60 us for 2,000 pages).
//! The agent looks at growing intervals, and before it sends a signal to the clone. What a clone touches
//! between the last look and an exit of its own is not recorded: its memory is gone before the agent
//! learns of the exit.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use farfork_image::layout::MappedSpan;
use farfork_image::model::{Member, Model};
use farfork_pages::{Observed, Touched};
use farfork_pool::{BorrowedImage, Epochs, Medium};
use farfork_restore::AttachedImage;
use farfork_sys::memory::{PAGE_FILE, PageRun, pages_with_content, watched_pages};
use farfork_sys::proc;
use farfork_sys::status::Status;
use farfork_types::{Cid, PAGE_BYTES};
use memmap2::{Advice, MmapOptions};

use crate::images::NodePool;
use farfork_sys::sync::locked;

/// When a clone is first looked at, and by how much the intervals grow.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const GROWTH: u32 = 2;
const LONGEST: Duration = Duration::from_secs(30);

/// The page maps of a clone's processes. They refer to the memory that the clone was started with, even
/// if its pids are reused, and show nothing once that memory is gone.
#[derive(Debug)]
pub struct Watched {
    members: Vec<(File, Vec<MappedSpan>)>,
}

impl Watched {
    /// Opens those of the clone with this pid, an image of `model`. Processes of the image that have
    /// ended meanwhile are left out.
    ///
    /// # Errors
    /// The clone has ended, or its memory may not be looked at.
    pub fn open(pid: i32, model: &Model) -> io::Result<Watched> {
        let mut members = Vec::new();
        for (pid, member) in members_of(pid, model) {
            let spans = member.memory.mapped_spans().collect();
            members.push((File::open(format!("/proc/{pid}/pagemap"))?, spans));
        }
        let ended = || io::Error::from_raw_os_error(libc::ESRCH);
        if members.is_empty() { Err(ended()) } else { Ok(Watched { members }) }
    }

    /// What they have read and written since they started, as far as they still map it; nothing of
    /// memory that is not watched.
    ///
    /// # Errors
    /// The kernel's, which lacks `PAGEMAP_SCAN` before Linux 6.7.
    pub fn look(&self) -> io::Result<Observed> {
        let mut observed = Observed::default();
        for (pagemap, spans) in &self.members {
            for span in spans {
                let end = span.address + span.bytes;
                for run in watched_pages(pagemap, span.address, end)? {
                    let is_file = run.categories & PAGE_FILE != 0;
                    let touched = if is_file { Touched::Read } else { Touched::Written };
                    observed.add(*span, run.start..run.end, touched);
                }
            }
        }
        Ok(observed)
    }
}

/// Whether the kernel reports which pages of the image were only read. Before Linux 6.15 it does not
/// report read pages of a DAX file system as pages of a file. This process maps a page of the image and
/// looks how the kernel reports it.
///
/// # Errors
/// The image cannot be mapped.
pub fn are_read_pages_reported(pin: &BorrowedImage, attached: &AttachedImage) -> io::Result<bool> {
    if attached.medium != Medium::Dax {
        return Ok(true);
    }
    let place = attached.image.plan_offset;
    let page = MmapOptions::new()
        .offset(place)
        .len(PAGE_BYTES as usize)
        .map_raw_read_only(pin.image().file())?;
    // Maps it without reading: a file that is shorter than it was is an error then, no signal.
    page.advise(Advice::PopulateRead)?;
    let start = page.as_ptr() as u64;
    let look = || pages_with_content(&File::open("/proc/self/pagemap")?, start, start + PAGE_BYTES);
    let is_file = |run: &PageRun| run.categories & PAGE_FILE != 0;
    Ok(look().is_ok_and(|runs| runs.iter().any(is_file)))
}

/// The processes of the clone with this pid that are those of its image, an image of `model`; those
/// that have ended are left out.
pub fn members_of(pid: i32, model: &Model) -> Vec<(i32, &Member)> {
    let member = |pid: i32| {
        let status = Status::read(pid, pid).ok()?;
        let is_it = |member: &&Member| member.process.pid == status.innermost_pid;
        Some((pid, model.members.iter().find(is_it)?))
    };
    family(pid).into_iter().filter_map(member).collect()
}

/// A process and all that descends from it.
fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(proc::children(*pid));
        next += 1;
    }
    all
}

/// The profile of one living clone.
#[derive(Debug)]
pub struct Profile {
    watched: Watched,
    pool: Arc<NodePool>,
    cid: Cid,
    /// Those in which it started.
    epochs: Epochs,
    seen: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    last: Observed,
    is_over: bool,
}

impl Profile {
    /// The profile of a clone that is watched.
    pub fn new(watched: Watched, pool: Arc<NodePool>, cid: Cid, epochs: Epochs) -> Profile {
        Profile { watched, pool, cid, epochs, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Progress> {
        locked(&self.seen)
    }

    /// Looks at the clone and adds new pages to its node's table. Errors are ignored: the image may have
    /// been removed, or the pool may be full.
    pub fn sample(&self) {
        self.look(&mut self.seen());
    }

    /// Looks for the last time. Pages are about to become local that the clone has not written, and
    /// would count as written.
    pub fn finish(&self) {
        let mut seen = self.seen();
        self.look(&mut seen);
        seen.is_over = true;
    }

    /// Whether it is still looked at.
    pub fn goes_on(&self) -> bool {
        !self.seen().is_over
    }

    fn look(&self, seen: &mut Progress) {
        let Ok(mut now) = self.watched.look() else { return };
        let Progress { last, is_over: false } = seen else { return };
        // A clone that has ended, or has discarded memory, has touched what it has touched.
        now.read.merge(&last.read);
        now.written.merge(&last.written);
        now.read.subtract(&now.written);
        if now != *last && self.pool.add_access(self.cid, self.epochs, &now).is_ok() {
            *last = now;
        }
    }
}

/// Looks at watched clones as long as they live.
#[derive(Debug)]
pub struct Sampler {
    clones: Sender<Weak<Profile>>,
}

impl Sampler {
    /// Starts its thread.
    pub fn start() -> Sampler {
        let (clones, new) = channel();
        thread::spawn(move || Schedule::default().follow(&new));
        Sampler { clones }
    }

    /// Looks at this clone from now on.
    pub fn add(&self, profile: &Arc<Profile>) {
        // The thread lives as long as this sender.
        let _ = self.clones.send(Arc::downgrade(profile));
    }
}

/// The clones to look at: when next, and the interval after that.
#[derive(Default)]
struct Schedule {
    looks: Vec<(Instant, Duration, Weak<Profile>)>,
}

impl Schedule {
    fn follow(&mut self, new: &Receiver<Weak<Profile>>) {
        loop {
            let next = self.looks.iter().map(|(at, ..)| *at).min();
            let wait = next.map_or(LONGEST, |at| at.saturating_duration_since(Instant::now()));
            match new.recv_timeout(wait) {
                Ok(profile) => self.looks.push((Instant::now() + FIRST_LOOK, FIRST_LOOK, profile)),
                Err(RecvTimeoutError::Timeout) => self.look(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self, now: Instant) {
        self.looks.retain_mut(|(at, interval, profile)| {
            let Some(profile) = profile.upgrade() else { return false };
            if *at <= now {
                profile.sample();
                *interval = (*interval * GROWTH).min(LONGEST);
                *at = now + *interval;
            }
            true
        });
    }
}
