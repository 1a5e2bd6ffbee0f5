//! Which parts of an image other images own: those that the image is a clone of, and whose pages it has never
//! written.
//!
//! ```text
//!  file of a seed     ┌ header, metadata ┐┌ page 1 ┐┌ page 2 ┐┌ page 3 ┐┌ page 4 ┐
//!  read from            its own keeper     owner 0    itself    owner 1    owner 0
//! ```
//! MITOSIS (OSDI '23, §5.5) marks in each entry of a page table which ancestor has the page, with 4 bits. Here
//! a table of extents does it, so that the number of ancestors is not limited by bits.
//!
//! Invariants: extents are sorted, do not overlap, and are whole pages that lie in both images; an owner has
//! no owner: what an image has from another one, its clones have from that one, too.

use std::fmt;

use farfork_types::{Cid, PAGE_BYTES};
use serde::{Deserialize, Serialize};

/// The most extents of an image: they fit into one answer, and into memory.
pub const MOST_EXTENTS: usize = 1 << 19;
/// The most owners of an image.
pub const MOST_OWNERS: usize = 1 << 12;

/// An image that owns parts of another one, and where it is read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id.
    pub cid: [u8; 16],
    /// Length of its file.
    pub bytes: u64,
    /// When its file was written last, in nanoseconds since 1970.
    pub modified_unix_ns: u64,
    /// The node that serves it, as `ADDRESS:PORT`.
    pub address: String,
    /// Name of the key that this node demands.
    pub key_id: [u8; 16],
    /// The key. It is a secret.
    pub secret: [u8; 32],
}

impl fmt::Debug for Owner {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({} at {})", Cid::from_bytes(self.cid), self.address)
    }
}

/// A part of an image that an owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the image's file.
    pub at: u64,
    /// Length.
    pub bytes: u64,
    /// Which of the owners.
    pub owner: u32,
    /// Offset in the owner's file.
    pub offset: u64,
}

/// All parts of an image that others own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The owners.
    pub owners: Vec<Owner>,
    /// The parts, sorted by place.
    pub extents: Vec<Extent>,
}

/// A part of a range that is read at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the image's file.
    pub at: u64,
    /// Length.
    pub bytes: u64,
    /// The owner, and the offset in its file; `None` if the image itself has it.
    pub owner: Option<(usize, u64)>,
}

impl Extent {
    fn end(&self) -> u64 {
        self.at + self.bytes
    }
}

impl Lineage {
    /// The lineage of an image of a clone of `parent`, whose own lineage is `of_parent`. What the clone has from
    /// its parent is named by `taken`: offset in the new image's file, length, and offset in the parent's.
    /// There are no chains: the new image names the owners themselves. `None` if there are too many parts.
    pub fn of_clone(
        parent: &Owner,
        of_parent: &Lineage,
        taken: impl Iterator<Item = (u64, u64, u64)>,
    ) -> Option<Lineage> {
        let mut made = Lineage::default();
        // Index of an owner of the parent's lineage, or of the parent itself, among the new ones.
        let mut new_index = vec![None; of_parent.owners.len() + 1];
        for (at, bytes, offset) in taken {
            for piece in of_parent.pieces(offset, bytes) {
                let (known, from) = piece.owner.unwrap_or((of_parent.owners.len(), piece.at));
                let owner = *new_index[known].get_or_insert_with(|| {
                    made.owners.push(of_parent.owners.get(known).unwrap_or(parent).clone());
                    made.owners.len() as u32 - 1
                });
                let at = at + (piece.at - offset);
                made.add(Extent { at, bytes: piece.bytes, owner, offset: from });
            }
            if made.extents.len() > MOST_EXTENTS || made.owners.len() > MOST_OWNERS {
                return None;
            }
        }
        Some(made)
    }

    /// Adds a part behind all others.
    fn add(&mut self, extent: Extent) {
        match self.extents.last_mut() {
            Some(last)
                if last.end() == extent.at
                    && last.owner == extent.owner
                    && last.offset + last.bytes == extent.offset =>
            {
                last.bytes += extent.bytes;
            }
            _ => self.extents.push(extent),
        }
    }

    /// Whether all of the image is its own.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes that each of the owners has.
    pub fn owned_bytes(&self) -> Vec<u64> {
        let mut owned = vec![0; self.owners.len()];
        for extent in &self.extents {
            if let Some(owned) = owned.get_mut(extent.owner as usize) {
                *owned += extent.bytes;
            }
        }
        owned
    }

    /// Looks at a lineage that another node has sent, for an image of so many bytes.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn check(&self, image_bytes: u64) -> Result<(), &'static str> {
        if self.extents.len() > MOST_EXTENTS || self.owners.len() > MOST_OWNERS {
            return Err("it has too many parts");
        }
        let mut end = 0;
        for extent in &self.extents {
            let Extent { at, bytes, owner, offset } = *extent;
            if bytes == 0 || [at, bytes, offset].iter().any(|number| number % PAGE_BYTES != 0) {
                return Err("a part of it is not whole pages");
            }
            if at < end {
                return Err("parts of it overlap");
            }
            end = at
                .checked_add(bytes)
                .filter(|end| *end <= image_bytes)
                .ok_or("a part of it lies beyond its end")?;
            let owner = self.owners.get(owner as usize).ok_or("a part of it has no owner")?;
            let last = offset.checked_add(bytes).filter(|last| *last <= owner.bytes);
            last.ok_or("a part of it lies beyond the end of its owner")?;
        }
        Ok(())
    }

    /// What of so many bytes from `offset` on is read where, in order and without gaps.
    pub fn pieces(&self, offset: u64, bytes: u64) -> Vec<Piece> {
        let end = offset + bytes;
        let (mut at, mut pieces) = (offset, Vec::new());
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        for extent in self.extents[first..].iter().take_while(|extent| extent.at < end) {
            let from = extent.at.max(offset);
            if at < from {
                pieces.push(Piece { at, bytes: from - at, owner: None });
            }
            let to = extent.end().min(end);
            let owner = Some((extent.owner as usize, extent.offset + (from - extent.at)));
            pieces.push(Piece { at: from, bytes: to - from, owner });
            at = to;
        }
        if at < end {
            pieces.push(Piece { at, bytes: end - at, owner: None });
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = PAGE_BYTES;

    fn owner(n: u8) -> Owner {
        let (key_id, secret) = ([n; 16], [n; 32]);
        let address = format!("10.0.0.{n}:7");
        Owner { cid: [n; 16], bytes: 100 * P, modified_unix_ns: 9, address, key_id, secret }
    }

    fn extent(at: u64, pages: u64, owner: u32, offset: u64) -> Extent {
        Extent { at: at * P, bytes: pages * P, owner, offset: offset * P }
    }

    fn lineage() -> Lineage {
        let extents = vec![extent(2, 3, 0, 10), extent(5, 1, 1, 4), extent(8, 2, 0, 20)];
        Lineage { owners: vec![owner(1), owner(2)], extents }
    }

    #[test]
    fn a_range_is_read_where_each_part_of_it_is() {
        let shown = |from: u64, pages: u64| -> Vec<_> {
            let pieces = lineage().pieces(from * P, pages * P);
            pieces
                .iter()
                .map(|piece| {
                    let owner = piece.owner.map(|(owner, offset)| (owner, offset / P));
                    (piece.at / P, piece.bytes / P, owner)
                })
                .collect()
        };
        assert_eq!(shown(0, 2), [(0, 2, None)]);
        assert_eq!(
            shown(1, 8),
            [
                (1, 1, None),
                (2, 3, Some((0, 10))),
                (5, 1, Some((1, 4))),
                (6, 2, None),
                (8, 1, Some((0, 20))),
            ]
        );
        assert_eq!(shown(3, 1), [(3, 1, Some((0, 11)))]);
        assert_eq!(shown(9, 3), [(9, 1, Some((0, 21))), (10, 2, None)]);
        assert_eq!(Lineage::default().pieces(7, 9), [Piece { at: 7, bytes: 9, owner: None }]);
    }

    #[test]
    fn a_clone_of_a_clone_names_the_owners_themselves() {
        let (parent, of_parent) = (owner(3), lineage());
        // Pages 1 to 6 of the parent, and its page 8, lie at 40 and at 50 of the clone's image.
        let taken = [(40 * P, 6 * P, P), (50 * P, P, 8 * P)];
        let made = Lineage::of_clone(&parent, &of_parent, taken.into_iter()).unwrap();
        assert_eq!(made.owners, [owner(3), owner(1), owner(2)]);
        assert_eq!(
            made.extents,
            [
                extent(40, 1, 0, 1),
                extent(41, 3, 1, 10),
                extent(44, 1, 2, 4),
                extent(45, 1, 0, 6),
                extent(50, 1, 1, 20),
            ]
        );
        assert_eq!(made.owned_bytes(), [2 * P, 4 * P, P]);
        assert_eq!(made.check(51 * P), Ok(()));
        // Neighbours in both are one part, and owners of which nothing is left are not named.
        let taken = [(0, P, 2 * P), (P, P, 3 * P)];
        let made = Lineage::of_clone(&parent, &of_parent, taken.into_iter()).unwrap();
        assert_eq!((made.owners, made.extents), (vec![owner(1)], vec![extent(0, 2, 0, 10)]));
    }

    #[test]
    fn a_wrong_lineage_is_refused() {
        assert_eq!(lineage().check(10 * P), Ok(()));
        assert!(lineage().check(9 * P).unwrap_err().contains("beyond its end"));
        for (wrong, why) in [
            (extent(9, 1, 0, 0), "overlap"),
            (extent(10, 1, 2, 0), "no owner"),
            (extent(10, 0, 0, 0), "whole pages"),
            (Extent { at: 10 * P, bytes: P, owner: 0, offset: 1 }, "whole pages"),
            (extent(10, 1, 0, 100), "end of its owner"),
            (
                Extent { at: 10 * P, bytes: P, owner: 0, offset: u64::MAX - P + 1 },
                "end of its owner",
            ),
            (Extent { at: u64::MAX - P + 1, bytes: P, owner: 0, offset: 0 }, "beyond its end"),
        ] {
            let mut lineage = lineage();
            lineage.extents.push(wrong);
            let said = lineage.check(40 * P).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn too_many_parts_are_known_before_they_are_sent() {
        // Every other page.
        let taken = (0..MOST_EXTENTS as u64 + 1).map(|n| (2 * n * P, P, 2 * n * P));
        assert_eq!(Lineage::of_clone(&owner(1), &Lineage::default(), taken), None);
    }

    #[test]
    fn the_key_does_not_show() {
        assert_eq!(format!("{:?}", owner(7)).matches("7, 7").count(), 0);
    }
}
