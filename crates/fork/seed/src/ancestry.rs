//! What a seed has from the seeds that its process descends from.
//!
//! ```text
//!  first seed ◄─────── pages that only the first has written ───────────┐
//!      ▲                                                                │
//!      └ clone, prepared: second seed ◄─ pages that the second wrote ─ node with a clone of the third
//!                             ▲                                         │
//!                             └ clone, prepared: third seed ◄─ the rest ┘
//! ```
//! A clone has never written most of what it got from its parent. Such pages stay with the seed that owns them:
//! the new seed names it, with the key to it, and nodes fetch them there (MITOSIS, OSDI '23, §5.5).

use std::io;
use std::time::Duration;

use farfork_checkpoint::{AncestorImage, Part, PartSource};
use farfork_far::lineage::{Lineage, Owner};
use farfork_far::owner_and_lineage;
use farfork_image::layout::DATA_AT;
use farfork_types::{Cid, PAGE_BYTES, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::client;

/// A seed that owns part of another one's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerShare {
    /// Its name.
    pub id: String,
    /// Where its keeper listens.
    pub address: String,
    /// Bytes that it owns.
    pub bytes: u64,
}

/// Where the parts of a seed are that its process has never written.
pub enum Ancestry {
    /// The process is not a clone, or has nothing in common with its image.
    None,
    /// In an image that only this node can read: the keeper serves them.
    Image(AncestorImage),
    /// At the keepers of other seeds. This one does not have them.
    Seeds(Lineage),
}

/// Seeds that have to live as long as another one, and what proves this node to them beside their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptOwners {
    owners: Vec<Owner>,
    tls: Option<TlsFiles>,
}

impl Ancestry {
    /// Looks where the image lies that the process is a clone of, and which seeds have to live for that. Nodes prove
    /// themselves to owners as to the seed, which is proved with `tls`. Where its parent is proved with certificates and the
    /// seed is not, or the other way round, they could reach one of both alone: this node serves those pages itself.
    pub fn of(
        image: Option<AncestorImage>,
        parts: &[Part],
        tls: Option<&TlsFiles>,
    ) -> (Ancestry, KeptOwners) {
        let Some(image) = image else { return (Ancestry::None, KeptOwners::default()) };
        let id = image.file.id;
        let known = owner_and_lineage(&image.pool, id.inode, id.cid);
        let Some((parent, of_parent, parent_tls)) = known else {
            return (Ancestry::Image(image), KeptOwners::default());
        };
        let is_alike = parent_tls.is_some() == tls.is_some();
        match lineage(&parent, &of_parent, parts).filter(|_| is_alike) {
            Some(lineage) => {
                let kept = KeptOwners { owners: lineage.owners.clone(), tls: tls.cloned() };
                (Ancestry::Seeds(lineage), kept)
            }
            None => {
                let owners = [vec![parent], of_parent.owners].concat();
                (Ancestry::Image(image), KeptOwners { owners, tls: parent_tls })
            }
        }
    }

    /// What others own.
    pub fn lineage(&self) -> Lineage {
        match self {
            Ancestry::Seeds(lineage) => lineage.clone(),
            Ancestry::None | Ancestry::Image(_) => Lineage::default(),
        }
    }

    /// Fills `into` from `offset` of the image that the process is a clone of.
    ///
    /// # Errors
    /// Others own that.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Ancestry::Image(image) => image.file.read_to(offset, into).map_err(io::Error::other),
            Ancestry::Seeds(_) | Ancestry::None => {
                Err(io::Error::other("these pages belong to a seed that it descends from"))
            }
        }
    }
}

/// Who owns which part, as people read it.
pub fn shares(lineage: &Lineage) -> Vec<OwnerShare> {
    let share = |(owner, bytes): (&Owner, u64)| OwnerShare {
        id: Cid::from_bytes(owner.cid).to_string(),
        address: owner.address.clone(),
        bytes,
    };
    lineage.owners.iter().zip(lineage.owned_bytes()).map(share).collect()
}

impl KeptOwners {
    /// Has them live at least so long, in the background. One that cannot be reached, or that closes already, is an error of
    /// those clones that need a page of it.
    pub fn outlive(&self, expires: Duration) {
        let KeptOwners { owners, tls } = self.clone();
        if owners.is_empty() {
            return;
        }
        let keep = move || {
            for owner in &owners {
                let _ = client::outlive(owner, tls.as_ref(), expires);
            }
        };
        let _ = std::thread::Builder::new().name("seed-owners".to_owned()).spawn(keep);
    }
}

/// The lineage of a clone of `parent` with these parts; `None` if it has too many.
fn lineage(parent: &Owner, of_parent: &Lineage, parts: &[Part]) -> Option<Lineage> {
    let end = parent.bytes / PAGE_BYTES * PAGE_BYTES;
    let taken = parts.iter().filter_map(|part| {
        let PartSource::Ancestor(offset) = part.source else { return None };
        // Behind the parent's end there is nothing.
        let bytes = part.bytes.min(end.saturating_sub(offset));
        (bytes > 0).then_some((DATA_AT + part.place, bytes, offset))
    });
    Lineage::of_clone(parent, of_parent, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_clone_has_not_written_is_its_ancestors() {
        let (key_id, secret) = ([1; 16], [1; 32]);
        let address = "10.0.0.1:7".to_owned();
        let bytes = DATA_AT + 5 * PAGE_BYTES + 9;
        let owner = Owner { cid: [1; 16], bytes, modified_unix_ns: 0, address, key_id, secret };
        let part = |page: u64, pages: u64, source| Part {
            place: page * PAGE_BYTES,
            bytes: pages * PAGE_BYTES,
            source,
        };
        let parts = [
            part(0, 1, PartSource::Shadow(1 << 30)),
            part(1, 2, PartSource::Ancestor(DATA_AT)),
            part(3, 1, PartSource::Copied(0)),
            part(4, 4, PartSource::Ancestor(DATA_AT + 3 * PAGE_BYTES)),
            part(9, 1, PartSource::Ancestor(DATA_AT + 70 * PAGE_BYTES)),
        ];
        let lineage = lineage(&owner, &Lineage::default(), &parts).unwrap();
        let extents: Vec<_> = lineage
            .extents
            .iter()
            .map(|extent| ((extent.at - DATA_AT) / PAGE_BYTES, extent.bytes / PAGE_BYTES))
            .collect();
        // What would lie beyond the parent's end is an error at the keeper.
        assert_eq!(extents, [(1, 2), (4, 2)]);
        let shares = shares(&lineage);
        assert_eq!((shares.len(), shares[0].bytes), (1, 4 * PAGE_BYTES));
        let of = Ancestry::Seeds(lineage);
        assert!(of.read(0, &mut [0; 8]).unwrap_err().to_string().contains("descends from"));
    }
}
