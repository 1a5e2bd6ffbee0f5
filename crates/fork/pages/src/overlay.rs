//! From a policy to the overlay of a plan.

use farfork_image::format::Image;
use farfork_image::layout::MappedSpan;
use farfork_image::model::{Member, Model};
use farfork_plan::overlay::{
    HELPED_BYTES, MemberOverlay, OVERLAY_MAGIC, OverlayHeader, Served, Span,
};
use farfork_plan::{Table, window};
use farfork_types::{PAGE_BYTES, Tiering, align_down, align_up};
use zerocopy::{Immutable, IntoBytes};

use crate::access::Access;
use crate::fresh;
use crate::policy::{self, Treatment};
use crate::set::PageSet;
use crate::share::{self, Share};

/// An overlay with more than this many bytes does not fit into the window.
const MOST: usize = window::OVERLAY_BYTES as usize;

/// Accessed pages become local together in blocks of this size: copying a block takes about as long as the
/// fault that triggered it.
const AHEAD_BYTES: u64 = 256 << 10;

/// Fewest bytes for which a clone that starts at once is helped: it would touch fewer pages before the
/// helper has woken up.
const LEAST_HELPED: u64 = 32 * PAGE_BYTES;

/// When a clone starts, once it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// At once. Its init supplies pages while it runs: to supply them before would delay the first
    /// instruction by more than the first call gains.
    AtOnce,
    /// When it is woken. Its pages are supplied before, when that delays no call.
    Later,
    /// When it is woken, with little memory: no page becomes local before it is touched.
    LaterWithoutRoom,
}

/// What an overlay depends on besides the image and its side tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OverlayKind {
    /// The tiering policy of the clones.
    pub tiering: Tiering,
    /// When they start.
    pub start: Start,
    /// How much of the image becomes local before they run, instead of what the policy would have become local
    /// in advance.
    pub share: Option<Share>,
}

/// An overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// What is to be mapped at [`window::OVERLAY`].
    pub bytes: Vec<u8>,
    /// Bytes that become local before they are touched, and may never be: while the clone runs, or
    /// before, if it waits.
    pub ahead_bytes: u64,
}

/// The overlay of this kind for clones of `image`, given its side tables `access`. None if the
/// plan alone suffices, or if the overlay does not fit into its window: then pages may not be where the
/// policy wants them, but all bytes are right.
pub fn compile(image: &Image, access: &Access, kind: OverlayKind) -> Option<Overlay> {
    if let Some(share) = kind.share {
        return compile_share(&image.model, access, share);
    }
    let draft = |member| Draft::compile(member, access, kind);
    let mut drafts: Vec<Draft> = image.model.members.iter().map(draft).collect();
    let ahead_bytes = match kind.start {
        Start::AtOnce => leave_to_helper(&mut drafts),
        Start::Later | Start::LaterWithoutRoom => drafts.iter().map(Draft::written_bytes).sum(),
    };
    let is_helped = kind.start == Start::AtOnce && ahead_bytes > 0;
    Some(Overlay { bytes: lay_out(&drafts, is_helped, 0)?, ahead_bytes })
}

/// The overlay of clones of which a share is to be local.
fn compile_share(model: &Model, access: &Access, share: Share) -> Option<Overlay> {
    let chosen = share::choose(model, access, share);
    let mut drafts: Vec<Draft> =
        model.members.iter().map(|member| Draft::with(member, &chosen.local)).collect();
    if share.far_nodes != 0 {
        let far = fresh::far_spans(model, share.local, chosen.pages);
        drafts.iter_mut().zip(far).for_each(|(draft, far)| draft.far = far);
    }
    let ahead_bytes = drafts.iter().map(|draft| draft.written_bytes() + draft.copied_bytes()).sum();
    Some(Overlay { bytes: lay_out(&drafts, false, share.far_nodes)?, ahead_bytes })
}

/// Leaves spans that are not worth a helper to faults. Returns the bytes that the helper makes local.
fn leave_to_helper(drafts: &mut [Draft]) -> u64 {
    let [first, others @ ..] = drafts else { return 0 };
    others.iter_mut().for_each(Draft::leave_to_faults);
    let bytes = first.written_bytes();
    if bytes < LEAST_HELPED {
        first.leave_to_faults();
        return 0;
    }
    bytes
}

fn lay_out(drafts: &[Draft], is_helped: bool, far_nodes: u64) -> Option<Vec<u8>> {
    if drafts.iter().all(Draft::is_empty) {
        return None;
    }
    let mut arena = Arena { bytes: vec![0; size_of::<OverlayHeader>()] };
    let members: Vec<MemberOverlay> = drafts.iter().map(|draft| draft.put(&mut arena)).collect();
    let members = arena.table(&members);
    arena.finish(members, is_helped, far_nodes)
}

/// The overlay of a profiling clone, without pages supplied in advance. None if there is nothing to
/// watch.
pub fn compile_watch(image: &Image) -> Option<Overlay> {
    let drafts: Vec<Draft> = image.model.members.iter().map(Draft::watching).collect();
    Some(Overlay { bytes: lay_out(&drafts, false, 0)?, ahead_bytes: 0 })
}

/// What is to be done with the memory of one process.
#[derive(Default)]
struct Draft {
    write: Vec<Span>,
    read: Vec<Span>,
    copied: Vec<Served>,
    served: Vec<Served>,
    local: PageSet,
    is_ahead: bool,
    pages: u64,
    watched: Vec<Span>,
    far: Vec<Span>,
}

impl Draft {
    fn compile(member: &Member, access: &Access, kind: OverlayKind) -> Draft {
        let OverlayKind { tiering, start, .. } = kind;
        let mut draft = Draft::default();
        let only_read = access.only_read();
        for span in member.memory.mapped_spans() {
            let treatment = policy::policy(tiering).treat(span.into(), access);
            if treatment.is_left_to_the_kernel() {
                draft.supply(span, &only_read, &treatment, start);
            }
            if treatment.is_copied {
                let (address, bytes) = (span.address, span.bytes);
                let place = span.offset();
                draft.copied.push(Served { address, bytes, place, first_page: 0 });
            }
            draft.serve(span, &treatment);
        }
        draft
    }

    /// With these pages local before the process runs. What may be written becomes so by a write, which cuts no
    /// mapping.
    fn with(member: &Member, chosen: &PageSet) -> Draft {
        let mut draft = Draft::default();
        for span in member.memory.mapped_spans() {
            let parts = spans(span, chosen);
            if span.is_writable {
                draft.write.extend(parts);
                continue;
            }
            draft.copied.extend(parts.map(|Span { address, bytes }| {
                let place = span.offset() + (address - span.address);
                Served { address, bytes, place, first_page: 0 }
            }));
        }
        draft
    }

    /// Whole mappings, since to watch a part would cut them.
    fn watching(member: &Member) -> Draft {
        let mut draft = Draft::default();
        for MappedSpan { address, bytes, .. } in member.memory.whole_spans() {
            match draft.watched.last_mut() {
                Some(last) if last.address + last.bytes == address => last.bytes += bytes,
                _ => draft.watched.push(Span { address, bytes }),
            }
        }
        draft
    }

    /// Supplies pages before they are touched: those that are written; then all, if the clone waits
    /// anyway, or else those that are only read.
    fn supply(
        &mut self,
        span: MappedSpan,
        only_read: &PageSet,
        treatment: &Treatment,
        start: Start,
    ) {
        if start != Start::AtOnce {
            if start == Start::Later {
                self.write.extend(spans(span, &treatment.write));
            }
            self.read.extend(spans(span, &policy::pages(span).collect()));
            return;
        }
        self.write.extend(spans(span, &treatment.write).flat_map(blocks));
        self.read.extend(spans(span, only_read).flat_map(blocks));
        // Touching one page maps its neighbours in the block, too (`fault_around_bytes`).
        self.read.dedup_by_key(|read| align_down(read.address, HELPED_BYTES));
    }

    fn written_bytes(&self) -> u64 {
        self.write.iter().map(|span| span.bytes).sum()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied.iter().map(|copied| copied.bytes).sum()
    }

    fn leave_to_faults(&mut self) {
        (self.write, self.read) = (Vec::new(), Vec::new());
    }

    fn serve(&mut self, span: MappedSpan, treatment: &Treatment) {
        let Some(local) = &treatment.local else { return };
        self.is_ahead = treatment.is_ahead;
        let pages = policy::pages(span);
        for page in local.runs(pages.clone()).flatten() {
            self.local.insert(self.pages + (page - pages.start));
        }
        let place = span.offset();
        match self.served.last_mut() {
            Some(last)
                if last.address + last.bytes == span.address
                    && last.place + last.bytes == place =>
            {
                last.bytes += span.bytes;
            }
            _ => self.served.push(Served {
                address: span.address,
                bytes: span.bytes,
                place,
                first_page: self.pages,
            }),
        }
        self.pages += span.bytes / PAGE_BYTES;
    }

    fn is_empty(&self) -> bool {
        let spans = [&self.write, &self.read, &self.watched, &self.far];
        let supplied = [&self.copied, &self.served];
        spans.into_iter().all(Vec::is_empty) && supplied.into_iter().all(Vec::is_empty)
    }

    fn put(&self, arena: &mut Arena) -> MemberOverlay {
        MemberOverlay {
            write: arena.table(&self.write),
            read: arena.table(&self.read),
            copied: arena.table(&self.copied),
            served: arena.table(&self.served),
            local: arena.table(&{
                let mut words = self.local.words().to_vec();
                words.resize(self.pages.div_ceil(64) as usize, 0);
                words
            }),
            ahead_bytes: if self.is_ahead { AHEAD_BYTES } else { 0 },
            watched: arena.table(&self.watched),
            far: arena.table(&self.far),
        }
    }
}

/// Addresses of pages of `span`, neighbours joined.
fn spans(span: MappedSpan, pages: &PageSet) -> impl Iterator<Item = Span> {
    let of_span = policy::pages(span);
    let first = of_span.start;
    let address = move |page: u64| span.address + (page - first) * PAGE_BYTES;
    pages.runs(of_span).map(move |run| Span {
        address: address(run.start),
        bytes: (run.end - run.start) * PAGE_BYTES,
    })
}

/// The parts of a span in blocks of [`HELPED_BYTES`].
fn blocks(span: Span) -> impl Iterator<Item = Span> {
    let end = span.address + span.bytes;
    let blocks = (align_down(span.address, HELPED_BYTES)..end).step_by(HELPED_BYTES as usize);
    blocks.map(move |block| {
        let address = block.max(span.address);
        Span { address, bytes: end.min(block + HELPED_BYTES) - address }
    })
}

/// The bytes of an overlay while it is laid out; every address is final at once.
struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    fn table<T: IntoBytes + Immutable>(&mut self, elements: &[T]) -> Table {
        let start = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(elements.as_bytes());
        Table { address: window::OVERLAY + start as u64, count: elements.len() as u64 }
    }

    fn finish(mut self, members: Table, is_helped: bool, far_nodes: u64) -> Option<Vec<u8>> {
        let bytes = align_up(self.bytes.len() as u64, PAGE_BYTES);
        self.bytes.resize(bytes as usize, 0);
        let is_helped = is_helped.into();
        let header = OverlayHeader { magic: OVERLAY_MAGIC, bytes, members, is_helped, far_nodes };
        self.bytes[..size_of::<OverlayHeader>()].copy_from_slice(header.as_bytes());
        (self.bytes.len() <= MOST).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use farfork_image::model::{Backing, Memory, Region, RegionTraits, Segment, Stored};

    use super::*;

    const READ_WRITE: u32 = 3;

    /// Eight stored pages from 0x10000 on, the third guarded, and a copied stack.
    fn member() -> Member {
        let region = |start, end, grows_down| Region {
            start,
            end,
            prot: READ_WRITE,
            backing: Backing::Anonymous,
            traits: RegionTraits { grows_down, ..RegionTraits::default() },
        };
        let segment = |address, bytes, place| Segment { address, bytes, place };
        let segments = vec![segment(0x10000, 0x8000, 0x5000), segment(0x50000, 0x1000, 0x20000)];
        Member {
            memory: Memory {
                regions: vec![region(0x10000, 0x18000, false), region(0x50000, 0x51000, true)],
                stored: Stored { segments, ..Stored::default() },
                guards: vec![(0x12000, 0x13000)],
                ..Memory::default()
            },
            ..Member::default()
        }
    }

    fn kind(tiering: Tiering, start: Start) -> OverlayKind {
        OverlayKind { tiering, start, share: None }
    }

    fn draft(access: &Access, tiering: Tiering) -> Draft {
        Draft::compile(&member(), access, kind(tiering, Start::AtOnce))
    }

    fn later(access: &Access, tiering: Tiering) -> Draft {
        Draft::compile(&member(), access, kind(tiering, Start::Later))
    }

    /// A process of so many pages from 0x100000 on, at the same place in the image as in memory.
    fn large(pages: u64) -> Draft {
        let bytes = pages * PAGE_BYTES;
        let region = Region {
            start: 0x10_0000,
            end: 0x10_0000 + bytes,
            ..member().memory.regions[0].clone()
        };
        let segment = Segment { address: 0x10_0000, bytes, place: 0x10_0000 };
        let stored = Stored { segments: vec![segment], ..Stored::default() };
        let memory = Memory { regions: vec![region], stored, ..Memory::default() };
        // Every second page is written, from the first block's last page on; the others are read.
        let accessed: PageSet = (0x10f..0x100 + pages).collect();
        let dirtied = accessed.runs(0..u64::MAX).flatten().filter(|page| page % 2 == 1).collect();
        let access = Access { accessed, dirtied, ..Access::default() };
        let member = Member { memory, ..Member::default() };
        Draft::compile(&member, &access, kind(Tiering::Mow, Start::AtOnce))
    }

    #[test]
    fn a_clone_that_starts_at_once_is_helped_if_it_is_worth_it() {
        let mut drafts = [large(0x20), large(0x400)];
        assert_eq!(leave_to_helper(&mut drafts), 0, "the first process has little");
        assert_eq!(lay_out(&drafts, false, 0), None, "and the second is not helped");
        let mut drafts = [large(0x400), large(0x400)];
        let bytes = leave_to_helper(&mut drafts);
        assert_eq!(bytes, (0x400 - 0xf_u64).div_ceil(2) * PAGE_BYTES);
        assert!(drafts[1].is_empty());
        assert_eq!(lay_out(&drafts, true, 0).unwrap()[32..40], 1u64.to_le_bytes());
    }

    #[test]
    fn helping_takes_one_call_for_what_a_fault_maps() {
        let draft = large(0x20);
        let page = |page: u64| Span { address: page * PAGE_BYTES, bytes: PAGE_BYTES };
        assert_eq!(draft.write, (0x10f..0x120).step_by(2).map(page).collect::<Vec<_>>());
        assert_eq!(draft.read, [page(0x110)]);
        let long = Span { address: 0x1_f000, bytes: 0x1_2000 };
        let parts = [(0x1_f000, 0x1000), (0x2_0000, 0x1_0000), (0x3_0000, 0x1000)];
        let parts = parts.map(|(address, bytes)| Span { address, bytes });
        assert_eq!(blocks(long).collect::<Vec<_>>(), parts);
    }

    #[test]
    fn written_pages_become_spans_of_addresses() {
        let dirtied: PageSet = [5, 6, 7, 12].into_iter().collect();
        let access = Access { accessed: dirtied.clone(), dirtied, ..Access::default() };
        let draft = later(&access, Tiering::Mow);
        let span = |address, bytes| Span { address, bytes };
        // Page 7 is the guarded one.
        assert_eq!(draft.write, [span(0x10000, 0x2000), span(0x17000, 0x1000)]);
        assert!(draft.served.is_empty());
    }

    #[test]
    fn a_waiting_clone_has_all_pages_mapped_that_the_kernel_maps() {
        let access = Access { dirtied: PageSet::from_iter([5]), ..Access::default() };
        let of = |tiering| later(&access, tiering);
        let span = |address, bytes| Span { address, bytes };
        assert_eq!(of(Tiering::Mow).write, [span(0x10000, 0x1000)]);
        assert_eq!(of(Tiering::Mow).read, [span(0x10000, 0x2000), span(0x13000, 0x5000)]);
        for tiering in [Tiering::Moa, Tiering::Hybrid, Tiering::Copy] {
            assert!(of(tiering).read.is_empty(), "{tiering}");
        }
    }

    #[test]
    fn a_waiting_clone_without_room_has_no_local_pages_yet() {
        let access = Access { dirtied: PageSet::from_iter([5, 6]), ..Access::default() };
        let without = kind(Tiering::Mow, Start::LaterWithoutRoom);
        let without = Draft::compile(&member(), &access, without);
        let with = later(&access, Tiering::Mow);
        assert_eq!((without.written_bytes(), with.written_bytes()), (0, 2 * PAGE_BYTES));
        assert_eq!(without.read, with.read, "which takes nothing but page tables");
    }

    #[test]
    fn a_share_is_written_or_copied_before_the_process_runs() {
        let chosen = PageSet::from_iter([5, 6, 12]);
        let span = |address, bytes| Span { address, bytes };
        let draft = Draft::with(&member(), &chosen);
        assert_eq!(draft.write, [span(0x10000, 0x2000), span(0x17000, 0x1000)]);
        assert!(draft.copied.is_empty() && draft.read.is_empty() && draft.served.is_empty());
        let mut read_only = member();
        read_only.memory.regions[0].prot = 1;
        let draft = Draft::with(&read_only, &chosen);
        let base = farfork_image::layout::DATA_AT + 0x5000;
        let copied = |address, bytes, place| Served { address, bytes, place, first_page: 0 };
        let expected = [copied(0x10000, 0x2000, base), copied(0x17000, 0x1000, base + 0x7000)];
        assert_eq!((draft.copied.as_slice(), draft.copied_bytes()), (&expected[..], 0x3000));
        assert!(draft.write.is_empty());
        let model = Model { members: vec![member()], ..Model::default() };
        let local = farfork_types::LocalShare::from_permille(0).unwrap();
        let nothing = Share { local, copies: true, far_nodes: 0 };
        assert_eq!(compile_share(&model, &Access::default(), nothing), None);
    }

    #[test]
    fn untouched_memory_is_far_only_where_there_is_far_memory() {
        let mut model = Model { members: vec![member()], ..Model::default() };
        model.members[0].memory.regions[0].end = 0x38000;
        let local = farfork_types::LocalShare::from_permille(500).unwrap();
        let bytes = |far_nodes| {
            let share = Share { local, copies: true, far_nodes };
            compile_share(&model, &Access::default(), share).unwrap().bytes
        };
        let word = |bytes: &[u8], at: u64| {
            u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap())
        };
        let far = |bytes: &[u8]| {
            let members = word(bytes, 16) - window::OVERLAY;
            let table = members + size_of::<MemberOverlay>() as u64 - 16;
            (word(bytes, table) - window::OVERLAY, word(bytes, table + 8))
        };
        assert_eq!(far(&bytes(0)).1, 0);
        let bytes = bytes(2);
        let (at, count) = far(&bytes);
        // Of two periods of 16 pages behind the stored ones, each second half.
        assert_eq!((word(&bytes, 40), count), (2, 2));
        assert_eq!((word(&bytes, at), word(&bytes, at + 8)), (0x20000, 0x8000));
    }

    #[test]
    fn supplied_memory_knows_where_it_lies_in_the_pool() {
        let draft = draft(&Access::default(), Tiering::Moa);
        let base = farfork_image::layout::DATA_AT + 0x5000;
        let served = |address, bytes, first_page| Served {
            address,
            bytes,
            place: base + (address - 0x10000),
            first_page,
        };
        assert_eq!(draft.served, [served(0x10000, 0x2000, 0), served(0x13000, 0x5000, 2)]);
        assert_eq!(draft.local.len(), 7);
    }

    #[test]
    fn tables_stand_where_the_header_says() {
        let mut arena = Arena { bytes: vec![0; size_of::<OverlayHeader>()] };
        let member = draft(&Access::default(), Tiering::Hybrid).put(&mut arena);
        let members = arena.table(&[member]);
        let bytes = arena.finish(members, false, 0).unwrap();
        assert_eq!(bytes.len() as u64 % PAGE_BYTES, 0);
        let at = |table: Table| (table.address - window::OVERLAY) as usize;
        assert_eq!(bytes[at(member.served)..][..8], 0x10000u64.to_le_bytes());
        assert_eq!((member.served.count, member.local.count), (2, 1));
        assert_eq!(bytes[at(members)..][..16], member.write.as_bytes()[..]);
    }
}
