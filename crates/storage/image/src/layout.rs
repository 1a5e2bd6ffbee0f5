//! Where the pages of an address space lie in the chunks of its image.
//!
//! ```text
//!  window    ├─ 2 MiB of addresses, nearly full ─┤      ├ s1 ┤   sparse   ├ s2 ┤
//!  segments  ├──────────────────┤  ├─────────────┤      ├────┤            ├────┤
//!  chunks    ├──────────────────┤s1├─────────────┤      s2 and those of other sparse windows, …
//! ```
//! A window that is nearly full has a chunk of its own, in which its pages lie where they lie in
//! the window: address and pool offset are congruent modulo 2 MiB, and the kernel maps the whole
//! by one entry of a page table. So has a window into which a mapping leads on from the next.
//! Neighbours among such windows have neighbouring chunks. What other, sparse windows hold is put
//! wherever it fits, also beside others' pages: there a mapping is made of single pages in any
//! case.
//!
//! Invariants: segments overlap neither in the process nor in the image; each lies within one
//! window and one chunk; each stored page lies in a segment; there are no more chunks than
//! windows. What a segment holds beyond stored pages is anonymous memory that the process has not
//! touched. So a clone that maps exactly a segment at its address sees the process's own bytes only.

use std::collections::BTreeSet;

use farfork_types::{CHUNK_BYTES, PAGE_BYTES, align_down};

use crate::model::{
    Backing, Memory, Model, Region, RegionTraits, Segment, Stored, StoredWindow, WINDOW_WORDS,
};

/// A window of which so much is stored has a chunk of its own: packing it would save less than a
/// quarter of the chunk.
const FULL_BYTES: u64 = CHUNK_BYTES / 4 * 3;

/// Where the chunks begin in the image's file.
pub const DATA_AT: u64 = CHUNK_BYTES;

/// First address and address after the last.
type Span = (u64, u64);

/// Lays out `windows`, whose pages belong to `regions`, in chunks from number `first` of the image
/// on: segments in address order.
///
/// No region is cut more often than where a window without content begins or ends, so that what
/// was one mapping of the parent is one of the clone where that is possible: fewer calls at each
/// start, and `mremap` takes no more than one mapping at a time.
pub fn segments(regions: &[Region], windows: &[StoredWindow], first: u64) -> Vec<Segment> {
    let spans: Vec<Vec<Span>> = (0..windows.len()).map(|i| spans(windows, i, regions)).collect();
    let is_linked = |index: usize| is_linked(&spans, index, regions);
    let (mut packer, mut sparse) = (Packer::default(), Vec::new());
    for (index, window) in windows.iter().enumerate() {
        let kept: u64 = spans[index].iter().map(|span| span.1 - span.0).sum();
        if kept >= FULL_BYTES || is_linked(index) || index > 0 && is_linked(index - 1) {
            packer.apart(window.address, &spans[index]);
        } else {
            sparse.push(&spans[index]);
        }
    }
    sparse.into_iter().flatten().for_each(|span| packer.pack(*span));
    if packer.chunks > windows.len() as u64 {
        packer = Packer::default();
        windows.iter().zip(&spans).for_each(|(window, spans)| packer.apart(window.address, spans));
    }
    packer.segments.sort_by_key(|segment| segment.address);
    packer.segments.iter_mut().for_each(|segment| segment.place += first * CHUNK_BYTES);
    packer.segments
}

/// Lays out windows of content that is only copied from: chunk after chunk from number `first` on.
pub fn content(windows: &[StoredWindow], first: u64) -> Vec<Segment> {
    let places = (first..).map(|chunk| chunk * CHUNK_BYTES);
    let segment = |(window, place): (&StoredWindow, u64)| Segment {
        address: window.address,
        bytes: CHUNK_BYTES,
        place,
    };
    windows.iter().zip(places).map(segment).collect()
}

/// Whether a region goes on from a window to the next with what is stored of it.
fn is_linked(spans: &[Vec<Span>], index: usize, regions: &[Region]) -> bool {
    let Some(edge) = spans[index].last().map(|last| last.1) else { return false };
    let goes_on = spans.get(index + 1).and_then(|next| next.first()).is_some_and(|n| n.0 == edge);
    let after = regions.partition_point(|region| region.end <= edge);
    goes_on && regions.get(after).is_some_and(|region| region.start < edge)
}

/// What of a window is stored.
fn spans(windows: &[StoredWindow], index: usize, regions: &[Region]) -> Vec<Span> {
    let window = &windows[index];
    let end = window.address + CHUNK_BYTES;
    let first = regions.partition_point(|region| region.end <= window.address);
    let mut spans: Vec<Span> = Vec::new();
    for region in regions[first..].iter().take_while(|region| region.start < end) {
        let piece = (region.start.max(window.address), region.end.min(end));
        let mut own = window.runs(piece.0, piece.1);
        // A page of a file that was not stored does not read as zeros. Content that is copied is not mapped.
        if region.backing == Backing::Anonymous && !region.must_be_anonymous() {
            own.splice(.., joined(&own, windows, index, region));
        }
        for span in own {
            match spans.last_mut() {
                Some(last) if last.1 == span.0 => last.1 = span.1,
                _ => spans.push(span),
            }
        }
    }
    spans
}

/// The runs of a region in a window as one, with what is untouched between them, and around them
/// up to the region's ends. At an edge of the window behind which nothing of the region is stored
/// it is cut in any case, and then closely.
fn joined(runs: &[Span], windows: &[StoredWindow], index: usize, region: &Region) -> Option<Span> {
    let stores = |window: Option<&StoredWindow>| {
        window.is_some_and(|window| !window.runs(region.start, region.end).is_empty())
    };
    let (start, end) = (windows[index].address, windows[index].address + CHUNK_BYTES);
    let before = || windows[..index].last().filter(|window| window.address + CHUNK_BYTES == start);
    let after = || windows.get(index + 1).filter(|window| window.address == end);
    let is_cut_before = region.start < start && !stores(before());
    let is_cut_after = end < region.end && !stores(after());
    let (first, last) = (runs.first()?.0, runs.last()?.1);
    Some((
        if is_cut_before { first } else { region.start.max(start) },
        if is_cut_after { last } else { region.end.min(end) },
    ))
}

#[derive(Default)]
struct Packer {
    segments: Vec<Segment>,
    chunks: u64,
    /// Bytes and place of what is free in the chunks.
    holes: BTreeSet<(u64, u64)>,
    /// Where the last packed span ended, and the hole behind it.
    last: (u64, (u64, u64)),
}

impl Packer {
    /// Gives a window a chunk of its own.
    fn apart(&mut self, window: u64, spans: &[Span]) {
        let chunk = self.chunks * CHUNK_BYTES;
        self.chunks += 1;
        let mut free = chunk;
        for (start, end) in spans {
            let place = chunk + (start - window);
            self.add(*start, end - start, place);
            self.free(free, place);
            free = place + (end - start);
        }
        self.free(free, chunk + CHUNK_BYTES);
    }

    /// Puts a span of a sparse window where it fits best: behind the one that it continues, else
    /// in the smallest hole.
    fn pack(&mut self, (start, end): Span) {
        let bytes = end - start;
        let (before, behind) = self.last;
        let continues = before == start && behind.0 >= bytes && self.holes.contains(&behind);
        let best = || self.holes.range((bytes, 0)..).next().copied();
        let found = if continues { Some(behind) } else { best() };
        let (free, place) = found.unwrap_or_else(|| {
            self.chunks += 1;
            (CHUNK_BYTES, (self.chunks - 1) * CHUNK_BYTES)
        });
        self.holes.remove(&(free, place));
        self.free(place + bytes, place + free);
        self.add(start, bytes, place);
        self.last = (end, (free - bytes, place + bytes));
    }

    fn add(&mut self, address: u64, bytes: u64, place: u64) {
        self.segments.push(Segment { address, bytes, place });
    }

    fn free(&mut self, from: u64, to: u64) {
        if from < to {
            self.holes.insert((to - from, from));
        }
    }
}

impl Segment {
    /// Address after the last.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Where `address`, which lies within it, lies in the image's file.
    pub fn offset(&self, address: u64) -> u64 {
        DATA_AT + self.place + (address - self.address)
    }
}

impl StoredWindow {
    /// Whether page number `page` of the window was copied.
    pub fn holds(&self, page: usize) -> bool {
        self.pages[page / 64] & (1 << (page % 64)) != 0
    }

    /// Runs of stored pages between two addresses.
    pub fn runs(&self, start: u64, end: u64) -> Vec<Span> {
        let mut runs: Vec<Span> = Vec::new();
        let inside = start.max(self.address)..end.min(self.address + CHUNK_BYTES);
        for address in inside.step_by(PAGE_BYTES as usize) {
            if !self.holds(((address - self.address) / PAGE_BYTES) as usize) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.1 == address => run.1 += PAGE_BYTES,
                _ => runs.push((address, address + PAGE_BYTES)),
            }
        }
        runs
    }
}

impl Stored {
    /// The chunk after the last that holds a segment.
    pub fn end_chunk(&self) -> u64 {
        self.segments.iter().map(|segment| segment.place / CHUNK_BYTES + 1).max().unwrap_or(0)
    }

    /// The window that an address lies in, if it is stored.
    pub fn window_of(&self, address: u64) -> Option<&StoredWindow> {
        let start = align_down(address, CHUNK_BYTES);
        let index = self.windows.binary_search_by_key(&start, |window| window.address).ok()?;
        self.windows.get(index)
    }

    /// The segments of addresses from `start` up to `end`.
    pub fn segments_in(&self, start: u64, end: u64) -> impl Iterator<Item = &Segment> {
        let first = self.segments.partition_point(|segment| segment.end() <= start);
        self.segments[first..].iter().take_while(move |segment| segment.address < end)
    }

    /// Marks the stored pages in the bitmaps of the chunks that hold them.
    fn mark_pages(&self, chunks: &mut [[u64; WINDOW_WORDS]]) {
        for segment in &self.segments {
            let window = self.window_of(segment.address);
            let runs = window.map(|window| window.runs(segment.address, segment.end()));
            let pages = runs.unwrap_or_default();
            let pages = pages.iter().flat_map(|run| (run.0..run.1).step_by(PAGE_BYTES as usize));
            for address in pages {
                let place = segment.place + (address - segment.address);
                let page = (place % CHUNK_BYTES / PAGE_BYTES) as usize;
                chunks[(place / CHUNK_BYTES) as usize][page / 64] |= 1 << (page % 64);
            }
        }
    }
}

/// Part of an address space that a clone maps privately from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedSpan {
    /// First address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Offset in the image's chunks, as [`Segment::place`].
    pub place: u64,
    /// Whether the clone may write it as it starts.
    pub is_writable: bool,
}

impl MappedSpan {
    /// Where it begins in the image's file.
    pub fn offset(&self) -> u64 {
        DATA_AT + self.place
    }
}

impl Memory {
    /// What a clone maps from the pool, in address order, without guard regions: these are not
    /// read or written, and mapping pages there would remove the guard.
    pub fn mapped_spans(&self) -> impl Iterator<Item = MappedSpan> {
        self.whole_spans().flat_map(|span| {
            let parts = self.unguarded((span.address, span.address + span.bytes));
            parts.into_iter().map(move |(start, end)| MappedSpan {
                address: start,
                bytes: end - start,
                place: span.place + (start - span.address),
                ..span
            })
        })
    }

    /// The same with its guard regions: mappings of the clone begin and end where these do, or go on
    /// from one to the next.
    pub fn whole_spans(&self) -> impl Iterator<Item = MappedSpan> {
        let shows_pool = |region: &&Region| !self.is_copied && region.shows_pool();
        self.regions.iter().filter(shows_pool).flat_map(|region| {
            let segments = self.stored.segments_in(region.start, region.end);
            segments.map(|segment| {
                let start = segment.address.max(region.start);
                MappedSpan {
                    address: start,
                    bytes: segment.end().min(region.end) - start,
                    place: segment.place + (start - segment.address),
                    is_writable: region.prot & libc::PROT_WRITE as u32 != 0,
                }
            })
        })
    }

    /// Anonymous memory that may be written and of which nothing is stored: a clone gets it at its first touch. Without
    /// guard regions, and without memory that is not as `mmap` makes it.
    pub fn untouched_spans(&self) -> Vec<Span> {
        let is_plain = |region: &&Region| {
            let is_writable = region.prot & libc::PROT_WRITE as u32 != 0;
            let is_anonymous = matches!(region.backing, Backing::Anonymous);
            is_writable && is_anonymous && region.traits == RegionTraits::default()
        };
        let mut gaps = Vec::new();
        for region in self.regions.iter().filter(is_plain) {
            let mut at = region.start;
            for segment in self.stored.segments_in(region.start, region.end) {
                if at < segment.address {
                    gaps.push((at, segment.address));
                }
                at = segment.end();
            }
            if at < region.end {
                gaps.push((at, region.end));
            }
        }
        gaps.into_iter().flat_map(|gap| self.unguarded(gap)).collect()
    }

    fn unguarded(&self, (start, end): Span) -> Vec<Span> {
        let mut parts = Vec::new();
        let mut at = start;
        for (from, to) in self.guards.iter().filter(|guard| guard.0 < end && start < guard.1) {
            if at < *from {
                parts.push((at, *from));
            }
            at = at.max(*to);
        }
        if at < end {
            parts.push((at, end));
        }
        parts
    }
}

impl Model {
    /// All that the image holds.
    pub fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.members.iter().map(|member| &member.memory.stored).chain([&self.content])
    }

    /// Chunks that hold the segments.
    pub fn chunks(&self) -> usize {
        self.stored().map(Stored::end_chunk).max().unwrap_or(0) as usize
    }

    /// Bit per stored page of each chunk.
    pub fn chunk_pages(&self) -> Vec<[u64; WINDOW_WORDS]> {
        let mut chunks = vec![[0; WINDOW_WORDS]; self.chunks()];
        self.stored().for_each(|stored| stored.mark_pages(&mut chunks));
        chunks
    }
}
