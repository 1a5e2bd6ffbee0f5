//! What lies in objects.
#![allow(unsafe_code)] // reason: the objects' bytes are in the hands of their owners

use std::ptr::NonNull;

/// The number in an object, which is in all its words.
pub fn number(object: NonNull<u8>) -> u64 {
    // SAFETY: an object of 64 bytes, mapped as long as its client lives.
    let words = unsafe { object.cast::<[u64; 8]>().read_volatile() };
    if words.iter().all(|word| *word == words[0]) { words[0] } else { u64::MAX - 1 }
}

/// The first word of an object.
pub fn first(object: NonNull<u8>) -> u64 {
    // SAFETY: an object of 64 bytes, mapped as long as its client lives.
    unsafe { object.cast::<u64>().read_volatile() }
}

/// Puts a number into all words of an object.
pub fn set_number(object: NonNull<u8>, number: u64) {
    // SAFETY: as above.
    unsafe { object.cast::<[u64; 8]>().write_volatile([number; 8]) }
}

/// Puts words into an object that has room for them.
pub fn set_words(object: NonNull<u8>, words: &[u64]) {
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the caller's object has so many words.
        unsafe { object.cast::<u64>().add(index).write_volatile(*word) }
    }
}

/// A reference of an object that can be linked, as it is stored.
pub fn field(object: NonNull<u8>, field: usize) -> u64 {
    // SAFETY: an object of 24 bytes: two references and a number.
    unsafe { object.cast::<u64>().add(field).read_volatile() }
}

/// The number in such an object.
pub fn node_number(object: NonNull<u8>) -> u64 {
    field(object, 2)
}

/// Puts a number into such an object.
pub fn set_node_number(object: NonNull<u8>, number: u64) {
    // SAFETY: as above.
    unsafe { object.cast::<u64>().add(2).write_volatile(number) }
}
