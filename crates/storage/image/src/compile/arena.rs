//! The bytes of a plan while it is being laid out.

use farfork_plan::{Op, PlanHeader, Table, window};
use farfork_types::{PAGE_BYTES, align_up};

/// Grows towards higher addresses; whatever is put in gets its final address at once, since a
/// plan is always mapped at [`window::PLAN`].
pub struct Arena {
    bytes: Vec<u8>,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

impl Arena {
    /// An arena that starts with room for the header.
    pub fn new() -> Arena {
        Arena { bytes: vec![0; size_of::<PlanHeader>()] }
    }

    /// Puts `bytes` in at a multiple of `align` and returns their address in the clone.
    pub fn put(&mut self, bytes: &[u8], align: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(align);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(bytes);
        window::PLAN + start as u64
    }

    /// Goes on at the start of a page, and returns its address.
    pub fn page(&mut self) -> u64 {
        self.put(&[], PAGE_BYTES as usize)
    }

    /// Puts in a text with its NUL and returns its address.
    pub fn text(&mut self, text: &[u8]) -> u64 {
        let with_nul = [text, b"\0"].concat();
        self.put(&with_nul, 1)
    }

    /// Puts in a text that names an object in messages; the result fits [`Op::detail`].
    pub fn detail(&mut self, text: &str) -> u32 {
        (self.text(text.as_bytes()) - window::PLAN) as u32
    }

    /// Puts in words of the machine's order.
    pub fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(&bytes, 8)
    }

    /// Puts in a table of elements that are `repr(C)` without padding.
    pub fn table<T: zerocopy::IntoBytes + zerocopy::Immutable>(&mut self, elements: &[T]) -> Table {
        let bytes: Vec<u8> = elements.iter().flat_map(|e| e.as_bytes().to_vec()).collect();
        Table { address: self.put(&bytes, 64), count: elements.len() as u64 }
    }

    /// Puts in a table of ops.
    pub fn ops(&mut self, ops: &[Op]) -> Table {
        self.table(ops)
    }

    /// The finished plan, a whole number of pages, with its header in place.
    pub fn finish(mut self, mut header: PlanHeader) -> Vec<u8> {
        let bytes = align_up(self.bytes.len() as u64, PAGE_BYTES);
        self.bytes.resize(bytes as usize, 0);
        header.bytes = bytes;
        let head = zerocopy::IntoBytes::as_bytes(&header);
        self.bytes[..head.len()].copy_from_slice(head);
        self.bytes
    }
}
