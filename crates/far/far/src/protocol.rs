//! Calls about images, beside the reads of their bytes: one byte of version, then postcard.

use farfork_fabric::RegionKey;
use farfork_types::Cid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

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
    /// [`RegionKey::to_bytes`].
    key: Vec<u8>,
}

/// Pages side by side: the first, and how many.
pub type PageRange = (u64, u64);

impl Found {
    /// An image, whose region has this key.
    pub fn new(cid: Cid, bytes: u64, modified_unix_ns: u64, key: RegionKey) -> Found {
        Found { cid: cid.to_bytes(), bytes, modified_unix_ns, key: key.to_bytes().to_vec() }
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

    #[test]
    fn messages_keep_their_layout() {
        let find = Question::Find { image: "u/f".to_owned() };
        assert_eq!(encode(&find), b"\x01\x00\x03u/f");
        let pages = Question::Pages { cid: [7; 16] };
        assert_eq!(encode(&pages), [&[1, 1][..], &[7; 16]].concat());
        for question in [find, pages] {
            assert_eq!(decode(&encode(&question)), Some(question));
        }
    }

    #[test]
    fn other_bytes_are_not_messages() {
        let bytes = encode(&Question::Pages { cid: [7; 16] });
        let longer = [&bytes[..], &[0]].concat();
        let newer = [&[2], &bytes[1..]].concat();
        for wrong in [&[][..], &bytes[..5], &longer, &newer] {
            assert_eq!(decode::<Question>(wrong), None);
        }
    }
}
