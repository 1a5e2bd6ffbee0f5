//! What agent and client say to each other, and the names and ids that people type. What is
//! understood means the same when it is said again.

use farfork_image::catalog::ImageName;
use farfork_types::Cid;
use farfork_types::wire::{Call, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One run.
pub fn run(bytes: &[u8]) {
    repeats::<Call>(bytes);
    repeats::<Reply>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(name) = text.parse::<ImageName>() {
            assert_eq!(name.to_string().parse::<ImageName>().ok(), Some(name));
        }
        if let Ok(cid) = text.parse::<Cid>() {
            assert_eq!(cid.to_string().parse::<Cid>().ok(), Some(cid));
        }
    }
}

fn repeats<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(document) = serde_json::from_slice::<T>(bytes) else { return };
    let said = serde_json::to_vec(&document).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<T>(&said).ok(), Some(document));
}
