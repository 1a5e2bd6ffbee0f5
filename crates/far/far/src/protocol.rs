//! Calls about images, beside the reads of their bytes: one byte of version, then postcard.

use farfork_fabric::RegionKey;
use farfork_types::Cid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 2;

/// What a node asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The image with this name or id.
    Find {
        /// It.
        image: String,
    },
    /// The pages of an image that clones need, in the order in which they should come.
    Pages {
        /// The image.
        cid: [u8; 16],
    },
    /// The image with this id, for a node that has it already, or that has a clone of it: also when no clone
    /// may start any more.
    Again {
        /// The image.
        cid: [u8; 16],
    },
    /// Which parts of an image others own; the answer is a [`Lineage`](crate::lineage::Lineage).
    Sources {
        /// The image.
        cid: [u8; 16],
    },
    /// That the image stays, because another pool has not all its bytes.
    Hold {
        /// The image.
        cid: [u8; 16],
        /// The other pool.
        holder: String,
    },
    /// That it need not stay any more for that pool.
    Release {
        /// The image.
        cid: [u8; 16],
        /// The other pool.
        holder: String,
    },
    /// That clones of a node needed these pages, in this order. The answer has no bytes.
    Touched {
        /// The image.
        cid: [u8; 16],
        /// Numbers of pages, as in side tables.
        pages: Vec<u32>,
    },
    /// That so many clones at a node may fetch pages of the image, for the next seconds. The answer has no bytes.
    Clones {
        /// The image.
        cid: [u8; 16],
        /// The node: any number that no other one has.
        node: [u8; 16],
        /// How many.
        clones: u32,
    },
    /// The pages of a virtual machine's memory that its machines are known to need, in the order in which they
    /// needed them.
    Record {
        /// The image.
        cid: [u8; 16],
    },
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its id.
    pub cid: [u8; 16],
    /// Length of its file.
    pub bytes: u64,
    /// When its file was written last, in nanoseconds since 1970. Images are never written to again.
    pub modified_unix_ns: u64,
    /// How many parts of it others own, which [`Question::Sources`] names.
    pub owned_elsewhere: u64,
    /// Whether no clone of it starts any more, and its node waits for those that run.
    pub is_closing: bool,
    /// [`RegionKey::to_bytes`].
    key: Vec<u8>,
}

/// Pages side by side: the first, and how many.
pub type PageRange = (u64, u64);

impl Found {
    /// An image, whose region has this key.
    pub fn new(cid: Cid, bytes: u64, modified_unix_ns: u64, key: RegionKey) -> Found {
        let (cid, key) = (cid.to_bytes(), key.to_bytes().to_vec());
        Found { cid, bytes, modified_unix_ns, owned_elsewhere: 0, is_closing: false, key }
    }

    /// The same, of which others own so many parts.
    pub fn with_owners(self, owned_elsewhere: u64) -> Found {
        Found { owned_elsewhere, ..self }
    }

    /// The same, as it closes.
    pub fn closing(self) -> Found {
        Found { is_closing: true, ..self }
    }

    /// Key of its region.
    pub fn key(&self) -> Option<RegionKey> {
        Some(RegionKey::from_bytes(self.key.as_slice().try_into().ok()?))
    }
}

/// A message as bytes; empty if it is too long for the format, which no message is.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(message, vec![VERSION]).unwrap_or_default()
}

/// The message that these bytes are; `None` if they are not, or of another version.
pub fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    let (version, message) = bytes.split_first()?;
    let (message, rest) = postcard::take_from_bytes(message).ok()?;
    (*version == VERSION && rest.is_empty()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineage::{Extent, Lineage, Owner};

    #[test]
    fn messages_keep_their_layout() {
        let find = Question::Find { image: "u/f".to_owned() };
        assert_eq!(encode(&find), b"\x02\x00\x03u/f");
        let pages = Question::Pages { cid: [7; 16] };
        assert_eq!(encode(&pages), [&[2, 1][..], &[7; 16]].concat());
        let (again, sources) =
            (Question::Again { cid: [7; 16] }, Question::Sources { cid: [7; 16] });
        assert_eq!(encode(&again), [&[2, 2][..], &[7; 16]].concat());
        assert_eq!(encode(&sources), [&[2, 3][..], &[7; 16]].concat());
        let hold = Question::Hold { cid: [7; 16], holder: "ab".to_owned() };
        assert_eq!(encode(&hold), [&[2, 4][..], &[7; 16], b"\x02ab"].concat());
        let release = Question::Release { cid: [7; 16], holder: "ab".to_owned() };
        assert_eq!(encode(&release), [&[2, 5][..], &[7; 16], b"\x02ab"].concat());
        let touched = Question::Touched { cid: [7; 16], pages: vec![300, 2] };
        assert_eq!(encode(&touched), [&[2, 6][..], &[7; 16], b"\x02\xac\x02\x02"].concat());
        let clones = Question::Clones { cid: [7; 16], node: [8; 16], clones: 300 };
        assert_eq!(encode(&clones), [&[2, 7][..], &[7; 16], &[8; 16], b"\xac\x02"].concat());
        let record = Question::Record { cid: [7; 16] };
        assert_eq!(encode(&record), [&[2, 8][..], &[7; 16]].concat());
        for question in [find, pages, again, sources, hold, release, touched, clones, record] {
            assert_eq!(decode(&encode(&question)), Some(question));
        }
    }

    #[test]
    fn an_image_keeps_its_layout() {
        let key = RegionKey::from_bytes(&[9; RegionKey::BYTES]);
        let found = Found::new(Cid::from_bytes([1; 16]), 300, 5, key).with_owners(2).closing();
        let mut bytes = vec![2];
        bytes.extend([1; 16]);
        bytes.extend(b"\xac\x02\x05\x02\x01\x24");
        bytes.extend([9; RegionKey::BYTES]);
        assert_eq!(encode(&found), bytes);
        assert_eq!(decode(&bytes), Some(found));
    }

    #[test]
    fn a_lineage_keeps_its_layout() {
        let (key_id, secret) = ([2; 16], [3; 32]);
        let (cid, address) = ([1; 16], "h:1".to_owned());
        let owner = Owner { cid, bytes: 300, modified_unix_ns: 5, address, key_id, secret };
        let extent = Extent { at: 4096, bytes: 8192, owner: 0, offset: 1 };
        let lineage = Lineage { owners: vec![owner], extents: vec![extent] };
        let mut bytes = vec![2, 1];
        bytes.extend([1; 16]);
        bytes.extend(b"\xac\x02\x05\x03h:1");
        bytes.extend([2; 16]);
        bytes.extend([3; 32]);
        bytes.extend(b"\x01\x80\x20\x80\x40\x00\x01");
        assert_eq!(encode(&lineage), bytes);
        assert_eq!(decode(&bytes), Some(lineage));
    }

    #[test]
    fn other_bytes_are_not_messages() {
        let bytes = encode(&Question::Pages { cid: [7; 16] });
        let longer = [&bytes[..], &[0]].concat();
        let [older, newer] = [1, 3].map(|version| [&[version], &bytes[1..]].concat());
        for wrong in [&[][..], &bytes[..5], &longer, &older, &newer] {
            assert_eq!(decode::<Question>(wrong), None);
        }
    }
}
