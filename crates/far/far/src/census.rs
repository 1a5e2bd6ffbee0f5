//! How many clones at this node may fetch pages of which image: the keepers of seeds wait for them before they end.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use farfork_sys::sync::locked;
use farfork_types::Cid;

use crate::source::Source;
use crate::split::SplitImage;

/// Counts the clones of this machine, by image.
pub type CountClones = Box<dyn Fn() -> HashMap<Cid, u32> + Send + Sync>;

/// An image at the node that has it.
type Place = (*const Source, Cid);

/// What the nodes of images were made to know last.
pub struct Census {
    count: CountClones,
    /// What names this node.
    node: [u8; 16],
    last: Mutex<Vec<(Arc<Source>, Cid)>>,
}

impl Census {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn new(count: CountClones) -> io::Result<Census> {
        let mut node = [0; 16];
        getrandom::fill(&mut node)?;
        Ok(Census { count, node, last: Mutex::default() })
    }

    /// Has the nodes of these images, and of the owners of their parts, know how many clones run here. Those of which
    /// none runs any more hear it once.
    pub fn say(&self, images: &[Arc<SplitImage>]) {
        let mut last = locked(&self.last);
        if images.is_empty() && last.is_empty() {
            return;
        }
        let counts = if images.is_empty() { HashMap::new() } else { (self.count)() };
        let all = sums(images, &counts);
        for (source, cid) in last.drain(..) {
            if !all.contains_key(&(Arc::as_ptr(&source), cid)) {
                source.say_clones(cid, self.node, 0);
            }
        }
        for ((_, cid), (source, clones)) in all {
            source.say_clones(cid, self.node, clones);
            last.push((source, cid));
        }
    }
}

/// How many clones need each place. A clone needs its image's, and those of all owners of its parts.
fn sums(
    images: &[Arc<SplitImage>],
    counts: &HashMap<Cid, u32>,
) -> HashMap<Place, (Arc<Source>, u32)> {
    let mut sums: HashMap<Place, (Arc<Source>, u32)> = HashMap::new();
    for split in images {
        let clones = counts.get(&split.image.cid).copied().unwrap_or_default();
        let owners = split.owners.iter().map(|owner| &owner.image);
        for image in std::iter::once(&split.image).chain(owners).filter(|_| clones > 0) {
            let place = (Arc::as_ptr(&image.source), image.cid);
            sums.entry(place).or_insert_with(|| (Arc::clone(&image.source), 0)).1 += clones;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{FarImage, SourceAt};
    use crate::split::OwnerImage;
    use std::time::Duration;

    #[test]
    fn a_clone_counts_for_its_seed_and_all_owners() {
        let at =
            |n: u8| SourceAt { address: format!("10.0.0.{n}:7"), key: "key".into(), tls: None };
        let sources = [1, 2, 3].map(|n| Arc::new(Source::new(&at(n), Duration::from_secs(1))));
        let cid = |n: u8| Cid::from_bytes([n; 16]);
        let image = |n: u8| {
            FarImage::known(Arc::clone(&sources[usize::from(n) - 1]), cid(n), 9, 9, Vec::new())
        };
        let owner = |n: u8| OwnerImage { image: image(n), at: at(n) };
        let mut third = SplitImage::whole(image(3));
        third.owners = vec![owner(1), owner(2)];
        let images =
            [SplitImage::whole(image(1)), SplitImage::whole(image(2)), third].map(Arc::new);
        let counts = HashMap::from([(cid(1), 5), (cid(3), 2)]);
        let mut of: Vec<_> = sums(&images, &counts)
            .into_iter()
            .map(|((_, cid), (_, clones))| (cid, clones))
            .collect();
        of.sort_by_key(|(cid, _)| cid.to_bytes());
        assert_eq!(of, [(cid(1), 7), (cid(2), 2), (cid(3), 2)]);
    }
}
