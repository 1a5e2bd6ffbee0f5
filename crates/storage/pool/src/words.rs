//! Byte strings in atomic words, as they stand in the pool: little-endian, the rest zero.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Stores `bytes` in the first words and zeros in the rest of the last one. The caller publishes
/// them with a releasing store elsewhere.
///
/// # Panics
/// If the words are too few.
pub fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let words = &words[..bytes.len().div_ceil(8)];
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut value = [0; 8];
        value[..part.len()].copy_from_slice(part);
        word.store(u64::from_le_bytes(value), Relaxed);
    }
}

/// Loads `len` bytes that [`store_bytes`] stored; fewer if the words hold fewer.
pub fn load_bytes(words: &[AtomicU64], len: usize) -> Vec<u8> {
    let used = &words[..len.div_ceil(8).min(words.len())];
    let mut bytes: Vec<u8> =
        used.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let words: [AtomicU64; 8] = Default::default();
            store_bytes(&words, &bytes);
            prop_assert_eq!(load_bytes(&words, bytes.len()), bytes);
        }
    }
}
