//! How many clones may fetch pages of a seed, as their nodes say.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farfork_sys::sync::locked;

/// How long what a node has said holds: it says it each half second.
const HOLDS: Duration = Duration::from_secs(3);
/// More nodes than may be connected.
const MOST_NODES: usize = 1024;

/// Clones by node.
#[derive(Default)]
pub struct Census(Mutex<HashMap<[u8; 16], (u32, Instant)>>);

impl Census {
    /// A node has so many now.
    pub fn note(&self, node: [u8; 16], clones: u32, now: Instant) {
        let mut nodes = locked(&self.0);
        nodes.retain(|_, (clones, said)| *clones > 0 && now < *said + HOLDS);
        if nodes.len() < MOST_NODES {
            nodes.insert(node, (clones, now));
        }
    }

    /// Those of all nodes.
    pub fn clones(&self, now: Instant) -> u32 {
        let nodes = locked(&self.0);
        let new = nodes.values().filter(|(_, said)| now < *said + HOLDS);
        new.fold(0, |all, (clones, _)| all.saturating_add(*clones))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_each_node_counts_while_it_holds() {
        let (census, now) = (Census::default(), Instant::now());
        let later = |ms| now + Duration::from_millis(ms);
        census.note([1; 16], 7, now);
        census.note([2; 16], 5, later(2000));
        assert_eq!((census.clones(later(2000)), census.clones(later(4000))), (12, 5));
        census.note([2; 16], u32::MAX, later(2500));
        assert_eq!(census.clones(later(2500)), u32::MAX);
        census.note([2; 16], 0, later(2600));
        assert_eq!(census.clones(later(2600)), 7);
        for node in 0..4000u32 {
            let name = [node.to_ne_bytes(); 4].concat().try_into().unwrap();
            census.note(name, 1, later(4000));
        }
        assert_eq!(census.clones(later(4000)), MOST_NODES as u32);
    }
}
