//! The helper: while the clone already runs, it makes those of its pages local that clones were seen
//! to write, and maps those that they read, so that the clone finds them there.
//!
//! It is the init's own work, done in small pieces between what the clone asks of it, from when the
//! clone leaves for its parent's code (before, the two would wait for each other), and as long as
//! there is a processor for it. Pages are made local as `farfork promote` does it (see
//! `farfork_sys::promote`): the kernel is asked to write to them what lies where nothing can be read,
//! and so copies them and writes nothing. A write of the clone's own comes before the copy, and is in
//! it, or finds the page there.
//!
//! What the clone has mapped already it makes local by itself, when it writes. Done from another
//! processor, that takes a message to the clone's, which has to forget what it knows of the page: on a
//! virtual machine it takes several times as long, and the clone waits for it.

use farfork_plan::overlay::{HELPED_BYTES, Span};
use farfork_types::PAGE_BYTES;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as k;

use super::image::Image;
use super::proc::{self, Path, Proc};
use crate::call::{self, Errno, SysResult, syscall};
use crate::maps::{self, AddressSpace, Mapping};
use crate::overlay;

/// What is still to be supplied to the clone's first process.
pub struct Helper {
    /// Readable when the clone leaves for its parent's code; [`NO_FD`] once it has.
    leaves: i32,
    target: Option<Target>,
    /// What is still to be made local, and then to be mapped.
    write: &'static [Span],
    read: &'static [Span],
    /// When a processor was last free.
    free_at: u64,
    /// How many there are for this process and the clone.
    processors: u32,
}

const NO_FD: i32 = -1;

/// Spans that are supplied between two looks at the clone's requests.
const PIECE: usize = 8;

/// Help ends when no processor was free for this long. Just after the start the agent and the caller
/// still run for a moment.
const PATIENCE_NS: u64 = 5_000_000;

impl Helper {
    /// A helper that begins when `leaves` becomes readable, or never.
    pub fn new(leaves: Option<i32>) -> Helper {
        let leaves = leaves.unwrap_or(NO_FD);
        Helper { leaves, target: None, write: &[], read: &[], free_at: 0, processors: 0 }
    }

    /// The descriptor that becomes readable when the clone leaves for its parent's code, for `poll`.
    pub fn leaves(&self) -> i32 {
        self.leaves
    }

    /// Whether there is something to do.
    pub fn is_at_work(&self) -> bool {
        self.target.is_some()
    }

    /// Begins to help the process.
    pub fn begin(&mut self, process: i32, proc: Proc) {
        call::close_range(self.leaves as u32, self.leaves as u32);
        self.leaves = NO_FD;
        (self.write, self.read) = overlay::first_in_advance();
        self.target = Target::open(process, proc).ok();
        (self.free_at, self.processors) = (call::now_ns(), processors());
    }

    /// Ends. The remaining pages are left to faults.
    pub fn end(&mut self) {
        if let Some(target) = self.target.take() {
            target.close();
        }
    }

    /// Supplies what a few spans lack. Ends when nothing is left, the process has gone, or no processor
    /// is free.
    pub fn go_on(&mut self, proc: Proc, image: &Image) {
        let Some(target) = &self.target else { return };
        let (spans, supply): (_, Supply) = match self.write {
            [] => (&mut self.read, Target::map),
            _ => (&mut self.write, Target::make_local),
        };
        let piece = &spans[..spans.len().min(PIECE)];
        *spans = &spans[piece.len()..];
        let is_done = piece.is_empty() || target.supply(piece, image, supply).is_err();
        if is_done || !self.has_had_processor(proc) {
            self.end();
        }
    }

    /// Whether, within [`PATIENCE_NS`], no more tasks were runnable than there are processors, this one
    /// and the clone's among them. A load that cannot be read counts as too high.
    fn has_had_processor(&mut self, proc: Proc) -> bool {
        let (mut text, now) = ([0u8; 64], call::now_ns());
        let load = proc.read(&Path::new(b"loadavg"), &mut text);
        if load.ok().and_then(running).is_some_and(|running| running <= self.processors) {
            self.free_at = now;
        }
        now <= self.free_at + PATIENCE_NS
    }
}

/// One way to supply a span, which begins in a mapping.
type Supply = fn(&Target, &Span, &Mapping) -> Result<(), Errno>;

/// The process that is helped, through `/proc`.
struct Target {
    process: i32,
    space: AddressSpace,
    pagemap: i32,
}

impl Target {
    fn open(process: i32, proc: Proc) -> Result<Target, Errno> {
        let file = |name| proc.file(&proc::path_of(process as u32, name), k::O_RDONLY);
        let space = AddressSpace::from_maps_fd(file(b"maps")?);
        match file(b"pagemap") {
            Ok(pagemap) => Ok(Target { process, space, pagemap }),
            Err(errno) => {
                space.close();
                Err(errno)
            }
        }
    }

    fn close(self) {
        self.space.close();
        call::close_range(self.pagemap as u32, self.pagemap as u32);
    }

    /// Supplies spans by `supply`, but for those where the clone has something else by now.
    fn supply(&self, spans: &[Span], image: &Image, supply: Supply) -> Result<(), Errno> {
        let mut mapping: Option<Mapping> = None;
        for span in spans {
            let covers = |found: &Mapping| (found.start..found.end).contains(&span.address);
            if !mapping.as_ref().is_some_and(covers) {
                mapping = self.space.at_or_after(span.address)?;
            }
            let is_images =
                |found: &&Mapping| image.holds(found) && found.flags & maps::SHARED == 0;
            if let Some(found) = mapping.as_ref().filter(|found| covers(found)).filter(is_images) {
                supply(self, span, found)?;
            }
        }
        Ok(())
    }

    /// Makes those pages of a span local that are not mapped.
    fn make_local(&self, span: &Span, mapping: &Mapping) -> Result<(), Errno> {
        if mapping.flags & maps::WRITE == 0 {
            return Ok(());
        }
        let bytes = span.bytes.min(mapping.end - span.address).min(HELPED_BYTES);
        let mut entries = [0u64; PAGES];
        let mut rest =
            self.page_table(span.address, &mut entries[..(bytes / PAGE_BYTES) as usize])?;
        let mut at = span.address;
        while let [first, ..] = rest {
            let is_present = first & PRESENT != 0;
            let alike = |entry: &&u64| (*entry & PRESENT != 0) == is_present;
            let run = rest.iter().take_while(alike).count();
            let bytes = run as u64 * PAGE_BYTES;
            if !is_present {
                transfer(k::__NR_process_vm_writev, self.process, [NOWHERE, 1], [at, bytes])?;
            }
            (rest, at) = (&rest[run..], at + bytes);
        }
        Ok(())
    }

    /// The entries of `/proc/PID/pagemap` from an address on.
    fn page_table<'e>(&self, at: u64, entries: &'e mut [u64]) -> Result<&'e [u64], Errno> {
        let (buffer, bytes) = (entries.as_mut_ptr() as u64, size_of_val(entries) as u64);
        let offset = at / PAGE_BYTES * size_of::<u64>() as u64;
        // SAFETY: the kernel writes at most the entries' bytes.
        let read =
            unsafe { syscall(k::__NR_pread64, [self.pagemap as u64, buffer, bytes, offset]) }?;
        Ok(&entries[..read as usize / size_of::<u64>()])
    }

    /// Has the kernel map what lies around the start of a span.
    fn map(&self, span: &Span, _: &Mapping) -> Result<(), Errno> {
        let mut byte = 0u8;
        let own = [&raw mut byte as u64, 1];
        transfer(k::__NR_process_vm_readv, self.process, own, [span.address, 1])
    }
}

/// Pages of the longest span.
const PAGES: usize = (HELPED_BYTES / PAGE_BYTES) as usize;
/// A page that is mapped, in an entry of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
/// Where nothing is mapped in this process.
const NOWHERE: u64 = PAGE_BYTES;

/// One call that reads memory of another process, or writes it. A page that cannot be supplied is not a
/// failure.
fn transfer(call: u32, process: i32, own: [u64; 2], its: [u64; 2]) -> Result<(), Errno> {
    let args = [process as u64, own.as_ptr() as u64, 1, its.as_ptr() as u64, 1, 0];
    // SAFETY: what is read goes to memory of the caller's; what is written comes from where nothing is.
    let done: SysResult = unsafe { syscall(call, args) };
    match done {
        Ok(_) | Err(Errno(EFAULT)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

const EFAULT: i32 = e::EFAULT as i32;

/// Processors that this process may run on, which the clone may, too.
fn processors() -> u32 {
    let mut allowed = [0u64; 128];
    let (at, bytes) = (allowed.as_mut_ptr() as u64, size_of_val(&allowed) as u64);
    // SAFETY: the kernel writes at most so many bytes.
    let _ = unsafe { syscall(k::__NR_sched_getaffinity, [0, bytes, at]) };
    allowed.iter().map(|word| word.count_ones()).sum()
}

/// Tasks that run or want to: the number before the slash in `0.07 0.03 0.01 2/147 4711`.
fn running(text: &[u8]) -> Option<u32> {
    let field = text.split(|byte| *byte == b' ').nth(3)?;
    let digits = field.split(|byte| *byte == b'/').next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}
