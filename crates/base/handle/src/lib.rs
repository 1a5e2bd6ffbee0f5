//! The handle of a seed: one word that names it and proves the right to fork from it.
//!
//! ```text
//!  ff1-  base64url of   version 1 · family 1 · address 4 or 16 · port 2 · id 16 · key 16 · CRC-32C 4
//! ```
//! Numbers are little-endian. By the checksum, over all before it, a handle that was cut off or mistyped
//! is known without asking a keeper. The handle is a secret, as its key is.
//!
//! C has 64 bits each for id and key ([`Handle::short`]): the other half of both is zero then. With a recorded
//! exchange, 2^64 keys could be tried: all other handles have 128 random bits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use farfork_types::Cid;
use sha2::{Digest, Sha256};

const PREFIX: &str = "ff1-";
const VERSION: u8 = 1;
const SUM_BYTES: usize = 4;

/// Names a seed. With MITOSIS (§5, API) these are the three arguments of `fork_resume`.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    /// Where its keeper listens.
    pub address: SocketAddr,
    /// Its name, which is the id of the image that it looks like.
    pub id: Cid,
    key: [u8; 16],
}

/// Why a text is not a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// It begins with something else.
    #[error(
        "a handle of a seed begins with {PREFIX}; copy the whole word that \"farfork prepare\" has printed"
    )]
    Prefix,
    /// It was cut off, or something was added to it.
    #[error("the handle is not complete; copy the whole word that \"farfork prepare\" has printed")]
    Damaged,
    /// It is of another version.
    #[error(
        "the handle is of version {found}, and this farfork knows version {VERSION}; use the same farfork on both nodes"
    )]
    Version {
        /// Its version.
        found: u8,
    },
}

impl Handle {
    /// A handle with a new random key.
    ///
    /// # Errors
    /// The kernel's source of random bytes failed.
    pub fn new(address: SocketAddr, id: Cid) -> Result<Handle, getrandom::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Handle { address, id, key })
    }

    /// A handle with 64 random bits each as id and key.
    ///
    /// # Errors
    /// The kernel's source of random bytes failed.
    pub fn new_short(address: SocketAddr) -> Result<Handle, getrandom::Error> {
        let mut random = [[0; 8]; 2];
        random.iter_mut().try_for_each(|half| getrandom::fill(half))?;
        let [id, key] = random.map(u64::from_le_bytes);
        Ok(Handle::of_short(address, id, key))
    }

    /// The handle with these halves.
    pub fn of_short(address: SocketAddr, id: u64, key: u64) -> Handle {
        let wide = |half: u64| u128::from(half).to_le_bytes();
        Handle { address, id: Cid::from_bytes(wide(id)), key: wide(key) }
    }

    /// Id and key, if each fits into 64 bits.
    pub fn short(&self) -> Option<(u64, u64)> {
        let half = |bytes: [u8; 16]| u64::try_from(u128::from_le_bytes(bytes)).ok();
        half(self.id.to_bytes()).zip(half(self.key))
    }

    /// A name that no other handle has, and that may be shown: neither another key nor another seed.
    pub fn fingerprint(&self) -> String {
        fingerprint_of(&self.connection_key())
    }

    /// The key of the connections to the keeper, derived from the handle's.
    pub fn connection_key(&self) -> [u8; 32] {
        let parts: [&[u8]; 3] = [b"farfork seed 1", &self.id.to_bytes(), &self.key];
        let digest = parts.into_iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
        digest.finalize().into()
    }
}

/// The [fingerprint](Handle::fingerprint) of the handle with this key of connections.
pub fn fingerprint_of(connection_key: &[u8; 32]) -> String {
    let parts: [&[u8]; 2] = [b"farfork seed 1 fingerprint", connection_key];
    let digest = parts.into_iter().fold(Sha256::new(), |hash, part| hash.chain_update(part));
    digest.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        match self.address.ip() {
            IpAddr::V4(ip) => {
                bytes.push(4);
                bytes.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes.push(6);
                bytes.extend(ip.octets());
            }
        }
        bytes.extend(self.address.port().to_le_bytes());
        bytes.extend(self.id.to_bytes());
        bytes.extend(self.key);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl fmt::Debug for Handle {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({} at {})", self.id, self.address)
    }
}

impl FromStr for Handle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Handle, HandleError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(HandleError::Prefix)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| HandleError::Damaged)?;
        let end = bytes.len().checked_sub(SUM_BYTES).ok_or(HandleError::Damaged)?;
        let (body, sum) = bytes.split_at(end);
        if sum != crc32c::crc32c(body).to_le_bytes() {
            return Err(HandleError::Damaged);
        }
        let mut left = body;
        let [found] = take(&mut left)?;
        if found != VERSION {
            return Err(HandleError::Version { found });
        }
        let ip = match take(&mut left)? {
            [4u8] => IpAddr::V4(Ipv4Addr::from(take::<4>(&mut left)?)),
            [6u8] => IpAddr::V6(Ipv6Addr::from(take::<16>(&mut left)?)),
            _ => return Err(HandleError::Damaged),
        };
        let port = u16::from_le_bytes(take(&mut left)?);
        let (id, key) = (Cid::from_bytes(take(&mut left)?), take(&mut left)?);
        match left {
            [] => Ok(Handle { address: SocketAddr::new(ip, port), id, key }),
            _ => Err(HandleError::Damaged),
        }
    }
}

fn take<const N: usize>(left: &mut &[u8]) -> Result<[u8; N], HandleError> {
    let (first, rest) = left.split_first_chunk().ok_or(HandleError::Damaged)?;
    *left = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle(address: &str) -> Handle {
        let (address, id) = (address.parse().unwrap(), Cid::from_bytes([7; 16]));
        Handle { address, id, key: [9; 16] }
    }

    #[test]
    fn a_handle_is_one_word_and_reads_back() {
        for address in ["10.0.0.1:4711", "[fd00::1]:65535"] {
            let handle = handle(address);
            let word = handle.to_string();
            let is_of_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            assert!(word.starts_with("ff1-") && word.bytes().all(is_of_word), "{word}");
            assert_eq!(word.parse::<Handle>().unwrap(), handle);
        }
        // The layout, byte by byte: handles are kept in other programs.
        let word = handle("10.0.0.1:4711").to_string();
        let bytes = URL_SAFE_NO_PAD.decode(&word[4..]).unwrap();
        assert_eq!(bytes[..8], [1, 4, 10, 0, 0, 1, 0x67, 0x12]);
        assert_eq!((&bytes[8..24], &bytes[24..40], bytes.len()), (&[7; 16][..], &[9; 16][..], 44));
    }

    #[test]
    fn other_versions_and_other_words_are_refused_in_words() {
        let sealed = |mut bytes: Vec<u8>| {
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            format!("ff1-{}", URL_SAFE_NO_PAD.encode(bytes)).parse::<Handle>()
        };
        assert_eq!(sealed(vec![2, 4]), Err(HandleError::Version { found: 2 }));
        assert_eq!(sealed(vec![1, 5, 0, 0]), Err(HandleError::Damaged));
        assert_eq!("demo/hello".parse::<Handle>(), Err(HandleError::Prefix));
        let word = handle("10.0.0.1:1").to_string();
        assert_eq!(word[..word.len() - 1].parse::<Handle>(), Err(HandleError::Damaged));
    }

    #[test]
    fn short_handles_are_handles_with_halves() {
        let at = "10.0.0.1:1".parse().unwrap();
        let short = Handle::of_short(at, 0x0102, 0x0304);
        let read: Handle = short.to_string().parse().unwrap();
        assert_eq!((read.short(), &read), (Some((0x0102, 0x0304)), &short));
        assert_eq!(
            (short.id.to_bytes()[..3].to_vec(), short.key[..3].to_vec()),
            (vec![2, 1, 0], vec![4, 3, 0])
        );
        assert_eq!(handle("10.0.0.1:1").short(), None);
        let (one, other) = (Handle::new_short(at).unwrap(), Handle::new_short(at).unwrap());
        assert!(one.short().is_some() && one != other);
    }

    #[test]
    fn the_key_is_not_printed_and_decides_about_connections() {
        let (one, mut other) = (handle("10.0.0.1:1"), handle("10.0.0.1:1"));
        assert!(!format!("{one:?}").contains("9, 9"));
        assert_eq!(one.connection_key(), other.connection_key());
        other.key[0] ^= 1;
        assert_ne!(one.connection_key(), other.connection_key());
        assert_ne!(one.fingerprint(), other.fingerprint());
    }

    proptest! {
        #[test]
        fn a_changed_letter_is_noticed(at in 4usize..62, letter in "[A-Za-z0-9_-]") {
            let word = handle("10.0.0.1:4711").to_string();
            prop_assume!(at < word.len() && !word[at..].starts_with(&letter));
            let changed = format!("{}{letter}{}", &word[..at], &word[at + 1..]);
            prop_assert!(changed.parse::<Handle>().is_err());
        }
    }
}
