//! The bytes of a region.
//!
//! ```text
//!       0  header, one page
//!            0  magic "FFREGION"         8  version, u32: 3, 4 if checked, 6 if metadata is node-local
//!           12  0, u32; of version 6: 1 if checked
//!           16  bytes of the region     24  address it maps at   32  uuid, 16 bytes
//!           48  0 …; of version 6: directory of the node-local file, 256 bytes, padded with 0
//!                                     4092  CRC-32C of the 4,092 bytes before it
//!    4096  clients 1 to 126, 256 bytes each                                              node-local in version 6
//!            0  state: 0 free, 1 in use, 2 being given back        8  pid
//!           16  first of a list of objects that are being freed    24  guarded operation: 0 none, else its intent
//!           32  clients that had the id, in a checked region         40  0 …
//!           64  stores to do again: their number                   72  11 times: where, what
//!   36352  clients that have opened the region, as the metadata knows it; else 0     36360  0 …        node-local in version 6
//!   36864  mailboxes, 32 times 8,448 bytes
//!            0  state: 0 none, 1 ready   8  slots                 16  name, 48 bytes, padded with 0
//!           64  client that sends       72  next to send          80  0 …
//!          128  client that receives   136  next to receive      144  0 …
//!          192  1 while the receiver sleeps      200  wakes of the receiver, by the sender
//!          208  1 while the sender sleeps        216  wakes of the sender, by the receiver     224  0 …
//!          256  slots, 1,024 words: 0 empty, else sequence << 32 | granule + 1
//!  307200  guarded operations, 16 times 128 bytes
//!            0  state: 0 none, 1 ready   8  version               16  grace period, microseconds
//!           24  completed for dead clients                        32  abandoned         40  0 …
//!           64  name, 48 bytes, padded with 0                    112  0 …
//!  309248  locks of guarded operations, 64 times 64 bytes                              unused in version 6
//!            0  client that holds it     8  1 while clients sleep until it is free     16  0 …
//!  313344  generation of the node-local metadata; + 1 << 63 while it is being rebuilt
//!  313352  clients that have opened the region, if metadata is node-local     313360  0 …
//!  315392  spans, a word for each 65,536 bytes of the region, see `span.rs`
//!       …  marks of clients 1 to 126, a bit for each span: the client may have something there     node-local in version 6
//!       …  locks as above, then intents of clients 1 to 126, 4,096 bytes each, see `intents.rs`    only in version 6, node-local
//!       …  spans of 65,536 bytes                   (the first begins at a multiple of 65,536)
//!       …  owner bytes, one for each 16 bytes of the region        (end where the region ends)     node-local in version 6
//! ```
//! In version 6, what is node-local lies in another file at the same offsets ([`crate::metadata`]), and marks begin at a page.
//! All numbers are little-endian. Words are 64 bits unless stated otherwise. Spans and granules are counted
//! from the beginning of the region, so that an address gives both by a shift. What lies before the first
//! span has owner bytes, too; they are always 0. As the owner bytes end where the region ends, one
//! comparison shows whether an address lies in the region.

use std::ops::Range;

/// Bytes of a granule, the unit in which objects are addressed.
pub const GRANULE_BYTES: u64 = 16;
/// Granules of a span.
pub const SPAN_GRANULES: u32 = 4096;
/// Bytes of a span.
pub const SPAN_BYTES: u64 = GRANULE_BYTES * SPAN_GRANULES as u64;
/// Most clients at a time.
pub const CLIENTS: u8 = 126;
/// Most mailboxes of a region.
pub const MAILBOXES: usize = 32;
/// Most slots of a mailbox.
pub const MOST_SLOTS: u64 = 1024;
/// Most guarded operations of a region.
pub const OPERATIONS: usize = 16;
/// Locks that guarded operations can take.
pub const LOCKS: usize = 64;
/// Most bytes of the name of a mailbox or an operation.
pub const NAME_BYTES: usize = 48;
/// Owner byte of a granule at which no object begins.
pub const FREE: u8 = 0;
/// Owner byte of a record of a shared structure.
pub const SHARED: u8 = 253;
/// Owner byte of an object that belongs to a structure.
pub const LINKED: u8 = 254;
/// Owner byte of an object that is in a mailbox.
pub const IN_MAILBOX: u8 = 255;
/// State of a mailbox that can be used, and of a client that has its id.
pub const READY: u64 = 1;
/// State of a client whose objects are being given back.
pub const LEAVING: u64 = 2;
/// Smallest region.
pub const SMALLEST_BYTES: u64 = 1 << 20;
/// Largest region.
pub const LARGEST_BYTES: u64 = 64 << 30;

pub(crate) const PAGE_BYTES: u64 = 4096;
const CLIENTS_AT: usize = 4096;
const CLIENT_BYTES: usize = 256;
const MAILBOXES_AT: usize = 36_864;
const MAILBOX_BYTES: usize = 8448;
const OPERATIONS_AT: usize = MAILBOXES_AT + MAILBOXES * MAILBOX_BYTES;
const OPERATION_BYTES: usize = 128;
const LOCKS_AT: usize = OPERATIONS_AT + OPERATIONS * OPERATION_BYTES;
const LOCK_BYTES: usize = 64;
/// Bytes of the intent of a guarded operation.
pub(crate) const INTENT_BYTES: usize = 4096;
const SPANS_AT: usize = OPERATIONS_AT + 8192;
/// Where the generation of node-local metadata lies.
pub(crate) const GENERATION_AT: usize = LOCKS_AT + LOCKS * LOCK_BYTES;

/// How many clients have opened a region with node-local metadata.
pub(crate) const OPENS_AT: usize = GENERATION_AT + 8;
/// The same, as the metadata knows it: behind the last client.
pub(crate) const OPENS_NODE_AT: usize = CLIENTS_AT + CLIENT_BYTES * CLIENTS as usize;

/// Id of a client: 1 to [`CLIENTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u8);

impl ClientId {
    /// The id of this number, if it is one.
    pub fn new(number: u8) -> Option<ClientId> {
        (1..=CLIENTS).contains(&number).then_some(ClientId(number))
    }

    /// All ids.
    pub fn all() -> impl Iterator<Item = ClientId> {
        (1..=CLIENTS).map(ClientId)
    }

    /// Its number, which is the owner byte of its objects.
    #[inline]
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Where everything lies, in bytes from the beginning of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Number of the first span.
    pub first_span: u32,
    /// Number after that of the last span.
    pub end_span: u32,
    /// Words of a client's marks.
    mark_words: usize,
    marks_at: usize,
    locks_at: usize,
    /// Where intents lie that are not objects.
    intents_at: Option<usize>,
    owners_at: usize,
}

impl Layout {
    /// Of a region of this size. `None` if a region cannot have it.
    pub fn of(bytes: u64) -> Option<Layout> {
        Layout::with(bytes, false)
    }

    /// Of a region of this size whose metadata is node-local: it is whole spans, so that what is node-local is whole pages.
    pub fn node_local(bytes: u64) -> Option<Layout> {
        let layout = Layout::with(bytes, true)?;
        bytes.is_multiple_of(SPAN_BYTES).then_some(layout)
    }

    fn with(bytes: u64, is_node_local: bool) -> Option<Layout> {
        let is_valid = bytes.is_multiple_of(PAGE_BYTES);
        if !is_valid || !(SMALLEST_BYTES..=LARGEST_BYTES).contains(&bytes) {
            return None;
        }
        let owners_at = bytes - bytes / GRANULE_BYTES;
        let end_span = owners_at / SPAN_BYTES;
        let mark_words = end_span.div_ceil(64) as usize;
        let alignment = if is_node_local { PAGE_BYTES as usize } else { 8 };
        let marks_at = (SPANS_AT + 8 * end_span as usize).next_multiple_of(alignment);
        let end_of_marks = marks_at + 8 * mark_words * usize::from(CLIENTS);
        let guards_at = is_node_local.then_some(end_of_marks.next_multiple_of(alignment));
        let mut layout = Layout {
            first_span: 0,
            end_span: end_span as u32,
            mark_words,
            marks_at,
            locks_at: guards_at.unwrap_or(LOCKS_AT),
            intents_at: guards_at.map(|at| at + LOCKS * LOCK_BYTES),
            owners_at: owners_at as usize,
        };
        let end_of_tables = layout.end_of_intents().unwrap_or(end_of_marks);
        layout.first_span = end_of_tables.div_ceil(SPAN_BYTES as usize) as u32;
        (layout.first_span < layout.end_span).then_some(layout)
    }

    fn end_of_intents(&self) -> Option<usize> {
        self.intents_at.map(|at| at + INTENT_BYTES * usize::from(CLIENTS))
    }

    /// What is node-local in a region with such metadata, in whole pages: clients, marks with locks and intents, owner bytes.
    pub fn node_local_parts(&self) -> [Range<u64>; 3] {
        let marks = self.marks_at..self.end_of_intents().unwrap_or(self.marks_at);
        let owners = self.owners_at..self.owners_at + self.owners_at / 15;
        [CLIENTS_AT..MAILBOXES_AT, marks, owners].map(|part| part.start as u64..part.end as u64)
    }

    /// What lies before and behind all spans of a region of this size, in whole pages.
    pub(crate) fn metadata_parts(&self, bytes: u64) -> [Range<u64>; 2] {
        let spans = [self.first_span, self.end_span].map(|span| u64::from(span) * SPAN_BYTES);
        [0..spans[0], spans[1]..bytes]
    }

    /// Numbers of all spans.
    pub fn spans(&self) -> Range<u32> {
        self.first_span..self.end_span
    }

    /// Bytes of all spans.
    pub fn span_bytes(&self) -> u64 {
        u64::from(self.end_span - self.first_span) * SPAN_BYTES
    }

    /// State of a client.
    pub(crate) fn client(&self, id: ClientId) -> usize {
        CLIENTS_AT + CLIENT_BYTES * usize::from(id.number() - 1)
    }

    /// Pid of a client.
    pub(crate) fn client_pid(&self, id: ClientId) -> usize {
        self.client(id) + 8
    }

    /// First of the objects that a client is freeing.
    pub(crate) fn dying(&self, id: ClientId) -> usize {
        self.client(id) + 16
    }

    /// Intent of the guarded operation that a client is in.
    pub(crate) fn guard(&self, id: ClientId) -> usize {
        self.client(id) + 24
    }

    /// How many clients have had the id, in a checked region.
    pub(crate) fn incarnation(&self, id: ClientId) -> usize {
        self.client(id) + 32
    }

    /// Number of stores of a client that are to be done again.
    pub(crate) fn redo_count(&self, id: ClientId) -> usize {
        self.client(id) + 64
    }

    /// Where one of these stores goes. What it stores follows.
    pub(crate) fn redo_entry(&self, id: ClientId, index: usize) -> usize {
        self.client(id) + 72 + 16 * index
    }

    /// A mailbox. Panics unless `index` is below [`MAILBOXES`].
    pub(crate) fn mailbox(&self, index: usize) -> MailboxLayout {
        assert!(index < MAILBOXES, "a region has {MAILBOXES} mailboxes");
        MailboxLayout(MAILBOXES_AT + MAILBOX_BYTES * index)
    }

    /// A guarded operation. Panics unless `index` is below [`OPERATIONS`].
    pub(crate) fn operation(&self, index: usize) -> OperationLayout {
        assert!(index < OPERATIONS, "a region has {OPERATIONS} operations");
        OperationLayout(OPERATIONS_AT + OPERATION_BYTES * index)
    }

    /// Holder of a lock. Panics unless `index` is below [`LOCKS`].
    pub(crate) fn lock(&self, index: usize) -> usize {
        assert!(index < LOCKS, "a region has {LOCKS} locks");
        self.locks_at + LOCK_BYTES * index
    }

    /// Intent of a client. `None` if intents are objects.
    pub(crate) fn intent(&self, id: ClientId) -> Option<usize> {
        self.intents_at.map(|at| at + INTENT_BYTES * usize::from(id.number() - 1))
    }

    /// Not 0 while clients sleep until the lock is free.
    pub(crate) fn lock_sleepers(&self, index: usize) -> usize {
        self.lock(index) + 8
    }

    /// Word of a span.
    #[inline]
    pub(crate) fn span(&self, span: u32) -> usize {
        SPANS_AT + 8 * span as usize
    }

    /// Word of a client's marks that has the bit of a span.
    pub(crate) fn mark(&self, id: ClientId, span: u32) -> usize {
        self.marks(id, span as usize / 64)
    }

    /// Word `word` of a client's marks.
    pub(crate) fn marks(&self, id: ClientId, word: usize) -> usize {
        self.marks_at + 8 * (self.mark_words * usize::from(id.number() - 1) + word)
    }

    /// Words of a client's marks.
    pub(crate) fn mark_words(&self) -> usize {
        self.mark_words
    }

    /// Owner byte of a granule. Beyond the region if the granule is.
    #[inline]
    pub(crate) fn owner(&self, granule: u32) -> usize {
        self.owners_at + granule as usize
    }

    /// Owner byte of what begins at a byte. Beyond every region if nothing can begin there.
    #[inline]
    pub(crate) fn owner_of_offset(&self, offset: u64) -> usize {
        // The lowest four bits become the highest ones.
        self.owners_at.saturating_add(offset.rotate_right(4) as usize)
    }

    /// First byte of a granule.
    #[inline]
    pub(crate) fn granule(&self, granule: u32) -> u64 {
        GRANULE_BYTES * u64::from(granule)
    }

    /// The granule that begins at this byte of a span.
    pub(crate) fn granule_at(&self, offset: u64) -> Option<u32> {
        let granule = u32::try_from(offset / GRANULE_BYTES).ok()?;
        let is_one = offset.is_multiple_of(GRANULE_BYTES);
        (is_one && self.spans().contains(&span_of(granule))).then_some(granule)
    }
}

/// The span of a granule.
#[inline]
pub(crate) fn span_of(granule: u32) -> u32 {
    granule / SPAN_GRANULES
}

/// The first granule of a span.
#[inline]
pub(crate) fn first_granule(span: u32) -> u32 {
    span * SPAN_GRANULES
}

/// Where the words of a guarded operation lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationLayout(usize);

impl OperationLayout {
    pub(crate) fn state(self) -> usize {
        self.0
    }

    pub(crate) fn version(self) -> usize {
        self.0 + 8
    }

    /// Grace period in microseconds.
    pub(crate) fn grace(self) -> usize {
        self.0 + 16
    }

    /// How often others completed it for a dead client.
    pub(crate) fn completed(self) -> usize {
        self.0 + 24
    }

    /// How often it was abandoned.
    pub(crate) fn abandoned(self) -> usize {
        self.0 + 32
    }

    /// Word `index` of the name.
    pub(crate) fn name(self, index: usize) -> usize {
        self.0 + 64 + 8 * index
    }
}

/// Where a mailbox's words lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MailboxLayout(usize);

impl MailboxLayout {
    pub(crate) fn state(self) -> usize {
        self.0
    }

    pub(crate) fn slots(self) -> usize {
        self.0 + 8
    }

    /// Word `index` of the name.
    pub(crate) fn name(self, index: usize) -> usize {
        self.0 + 16 + 8 * index
    }

    pub(crate) fn sender(self) -> usize {
        self.0 + 64
    }

    pub(crate) fn tail(self) -> usize {
        self.0 + 72
    }

    pub(crate) fn receiver(self) -> usize {
        self.0 + 128
    }

    pub(crate) fn head(self) -> usize {
        self.0 + 136
    }

    /// Not 0 while the receiver sleeps until a message comes.
    #[inline]
    pub(crate) fn receiver_sleeps(self) -> usize {
        self.0 + 192
    }

    /// Changes when the receiver is to wake up.
    pub(crate) fn receiver_wakes(self) -> usize {
        self.0 + 200
    }

    /// Not 0 while the sender sleeps until there is room.
    #[inline]
    pub(crate) fn sender_sleeps(self) -> usize {
        self.0 + 208
    }

    /// Changes when the sender is to wake up.
    pub(crate) fn sender_wakes(self) -> usize {
        self.0 + 216
    }

    #[inline]
    pub(crate) fn slot(self, index: u64) -> usize {
        self.0 + 256 + 8 * index as usize
    }
}

/// A word in a slot: the low half of the message's sequence number, and its granule.
#[inline]
pub(crate) fn slot_word(sequence: u64, granule: u32) -> u64 {
    sequence << 32 | (u64::from(granule) + 1)
}

/// Sequence (low half) and granule of a slot that is not empty.
#[inline]
pub(crate) fn slot_parts(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, (word as u32).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_node_local_is_whole_pages_and_nothing_else_lies_there() {
        for bytes in (SMALLEST_BYTES..16 << 20).step_by(64 << 10).chain([1 << 30, LARGEST_BYTES]) {
            let layout = Layout::node_local(bytes).expect("a layout");
            assert!(OPENS_NODE_AT + 8 <= MAILBOXES_AT && layout.spans().len() >= 2);
            let [clients, marks, owners] = layout.node_local_parts();
            for part in [&clients, &marks, &owners] {
                assert!(
                    part.start.is_multiple_of(PAGE_BYTES) && part.end.is_multiple_of(PAGE_BYTES)
                );
            }
            let (first, last) = (ClientId(1), ClientId(CLIENTS));
            assert_eq!(clients.start, layout.client(first) as u64);
            assert!(clients.end >= (layout.client(last) + CLIENT_BYTES) as u64);
            assert!(clients.end <= layout.mailbox(0).state() as u64);
            assert_eq!(marks.start, layout.marks(first, 0) as u64);
            assert!(marks.start >= layout.span(layout.end_span) as u64, "{bytes}");
            assert!(layout.lock(0) >= layout.marks(last, layout.mark_words()));
            assert_eq!(layout.intent(first), Some(layout.lock(LOCKS - 1) + LOCK_BYTES));
            let end = layout.intent(last).expect("an intent") + INTENT_BYTES;
            assert_eq!(marks.end, end as u64);
            assert!(marks.end <= layout.granule(first_granule(layout.first_span)), "{bytes}");
            assert_eq!(owners, layout.owner(0) as u64..bytes);
            assert!(owners.start >= layout.granule(first_granule(layout.end_span)));
        }
        assert_eq!(Layout::node_local(SMALLEST_BYTES + PAGE_BYTES), None);
    }

    #[test]
    fn tables_lie_as_drawn() {
        let layout = Layout::of(SMALLEST_BYTES).expect("a layout");
        let first = ClientId::new(1).expect("an id");
        let last = ClientId::new(CLIENTS).expect("an id");
        assert_eq!((layout.client(first), layout.client_pid(first)), (4096, 4104));
        assert!(layout.client(last) + CLIENT_BYTES <= MAILBOXES_AT);
        assert_eq!((layout.dying(first), layout.redo_count(first)), (4112, 4160));
        assert_eq!((layout.redo_entry(first, 0), layout.redo_entry(first, 11)), (4168, 4344));
        assert!(layout.redo_entry(first, 11) <= layout.client(first) + CLIENT_BYTES);
        let mailbox = layout.mailbox(0);
        assert_eq!((mailbox.state(), mailbox.slots(), mailbox.name(0)), (36_864, 36_872, 36_880));
        assert_eq!((mailbox.sender() - 36_864, mailbox.tail() - 36_864), (64, 72));
        assert_eq!((mailbox.receiver() - 36_864, mailbox.head() - 36_864), (128, 136));
        assert_eq!(
            (mailbox.receiver_sleeps() - 36_864, mailbox.receiver_wakes() - 36_864),
            (192, 200)
        );
        assert_eq!((mailbox.sender_sleeps() - 36_864, mailbox.sender_wakes() - 36_864), (208, 216));
        assert_eq!(mailbox.slot(0) - 36_864, 256);
        assert_eq!(mailbox.slot(MOST_SLOTS), layout.mailbox(1).state());
        assert_eq!(layout.mailbox(MAILBOXES - 1).slot(MOST_SLOTS), 307_200);
        let operation = layout.operation(0);
        assert_eq!((operation.state(), operation.version()), (307_200, 307_208));
        assert_eq!((operation.grace(), operation.completed()), (307_216, 307_224));
        assert_eq!((operation.abandoned(), operation.name(0)), (307_232, 307_264));
        assert_eq!(layout.operation(1).state(), 307_328);
        assert_eq!((layout.lock(0), layout.lock_sleepers(1)), (309_248, 309_320));
        assert_eq!(layout.operation(OPERATIONS - 1).state() + OPERATION_BYTES, layout.lock(0));
        assert_eq!(layout.lock(LOCKS - 1) + LOCK_BYTES, 313_344);
        assert_eq!((layout.guard(first), layout.span(0)), (4120, 315_392));
        assert_eq!(layout.marks(first, 0), layout.span(layout.end_span));
        assert_eq!(layout.marks(last, 0) - layout.marks(first, 0), 8 * 125);
        assert_eq!((layout.spans(), layout.owner(0)), (5..15, 983_040));
    }

    #[test]
    fn nothing_overlaps_whatever_the_size() {
        let sizes = (SMALLEST_BYTES..64 << 20).step_by(52 << 10).chain([1 << 30, LARGEST_BYTES]);
        for bytes in sizes.map(|bytes| bytes / PAGE_BYTES * PAGE_BYTES) {
            let layout = Layout::of(bytes).expect("a layout");
            let last = ClientId::new(CLIENTS).expect("an id");
            assert!(layout.span(layout.end_span) <= layout.marks_at, "{bytes}");
            let end_of_marks = layout.marks(last, layout.mark_words()) as u64;
            let begin = layout.granule(first_granule(layout.first_span));
            assert!(end_of_marks <= begin && begin < end_of_marks + SPAN_BYTES, "{bytes}");
            let end = layout.granule(first_granule(layout.end_span));
            assert!(end <= layout.owner(0) as u64 && end + SPAN_BYTES > layout.owner(0) as u64);
            assert!(layout.mark(last, layout.end_span - 1) < end_of_marks as usize, "{bytes}");
            // The owner bytes of the whole region, and not one more.
            assert_eq!(layout.owner_of_offset(bytes) as u64, bytes);
            assert_eq!(layout.owner_of_offset(bytes - GRANULE_BYTES) as u64, bytes - 1);
            for wrong in [bytes - 1, 1, bytes + 16, 0u64.wrapping_sub(16), u64::MAX, 1 << 63] {
                assert!(layout.owner_of_offset(wrong) as u64 >= bytes, "{bytes}, {wrong:#x}");
            }
            assert_eq!(layout.granule_at(begin), Some(first_granule(layout.first_span)));
            for wrong in [begin + 1, begin - GRANULE_BYTES, end, u64::MAX] {
                assert_eq!(layout.granule_at(wrong), None);
            }
        }
    }

    #[test]
    fn impossible_sizes_have_no_layout() {
        for bytes in [0, SMALLEST_BYTES - 1, SMALLEST_BYTES + 1, LARGEST_BYTES + PAGE_BYTES] {
            assert_eq!(Layout::of(bytes), None, "{bytes}");
        }
    }

    #[test]
    fn a_slot_holds_sequence_and_granule() {
        for (sequence, granule) in [(0, 0), (1 << 32 | 5, 7), (u64::MAX, u32::MAX - 1)] {
            let word = slot_word(sequence, granule);
            assert_ne!(word, 0);
            assert_eq!(slot_parts(word), (sequence as u32, granule));
        }
    }
}
