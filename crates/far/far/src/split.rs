//! An image of which others own parts: reads of it go to where each part is.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use farfork_fabric::SharedKey;
use farfork_handle::fingerprint_of;
use farfork_sys::words;
use farfork_types::{Cid, PAGE_BYTES, TlsFiles};

use crate::keyfile::write_key_at;
use crate::lineage::{Lineage, Owner, Piece};
use crate::source::{Cause, FarImage, SourceAt};
use crate::sources::Sources;

/// An image, and those that own parts of it.
pub struct SplitImage {
    pub image: FarImage,
    pub lineage: Lineage,
    /// In the order of the lineage's owners.
    pub owners: Vec<OwnerImage>,
}

/// An image that owns parts of another one.
pub struct OwnerImage {
    pub image: FarImage,
    /// Where it is, and the file of the key that proves the right to read it.
    pub at: SourceAt,
}

/// A read that failed: from where on, at which node, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    pub page: u64,
    pub source: String,
    pub cause: Cause,
}

impl SplitImage {
    /// An image that is all its own.
    pub fn whole(image: FarImage) -> SplitImage {
        SplitImage { image, lineage: Lineage::default(), owners: Vec::new() }
    }

    /// An image with this lineage. The sources look for the keys of owners in files in `keys`, which
    /// [`SplitImage::write_keys`] makes. If this node proves itself to the image's own node by certificates, so it
    /// does to all owners.
    ///
    /// # Errors
    /// As with [`Sources::of`].
    pub fn new(
        image: FarImage,
        lineage: Lineage,
        sources: &Sources,
        keys: &Path,
    ) -> Result<SplitImage, Cause> {
        let tls = image.source.tls();
        let owners = lineage.owners.iter().map(|owner| OwnerImage::new(owner, sources, keys, tls));
        let owners = owners.collect::<Result<_, _>>()?;
        Ok(SplitImage { image, lineage, owners })
    }

    /// Writes the keys of owners that are not there.
    ///
    /// # Errors
    /// A key cannot be written.
    pub fn write_keys(&self) -> Result<(), Cause> {
        let failed = |why: String| format!("cannot note the key of an owner of pages: {why}");
        for (owner, OwnerImage { at, .. }) in self.lineage.owners.iter().zip(&self.owners) {
            let Some(directory) = at.key.parent().filter(|_| !at.key.exists()) else { continue };
            let made = std::fs::create_dir_all(directory);
            made.map_err(|error| failed(words::of(&error)))?;
            let key = SharedKey::new(owner.key_id, owner.secret);
            write_key_at(&at.key, &key).map_err(|error| failed(error.to_string()))?;
        }
        Ok(())
    }

    /// Connects to the owners in the background: as long as this node is connected, an owner that ends waits for
    /// it. One that cannot be reached is an error of those clones that need a page of it.
    pub fn connect_owners(&self) {
        let sources: Vec<_> =
            self.owners.iter().map(|owner| Arc::clone(&owner.image.source)).collect();
        if sources.is_empty() {
            return;
        }
        let connect = move || sources.iter().for_each(|source| drop(source.connect()));
        let _ = std::thread::Builder::new().name("far-owners".to_owned()).spawn(connect);
    }

    /// Bytes of the image. Each part is read where it is, all parts of one place at once.
    ///
    /// # Errors
    /// The place that has a part does not give it. Nothing stands for a part that is missing.
    pub fn read(&self, offset: u64, bytes: u32) -> Result<Vec<u8>, Missing> {
        let pieces = self.lineage.pieces(offset, u64::from(bytes));
        let mut into = vec![0; bytes as usize];
        let mut places: Vec<Option<usize>> = pieces.iter().map(owner_of).collect();
        places.sort_unstable();
        places.dedup();
        // One for all: the kernel ends the file system if a request takes much longer.
        let deadline = self.image.source.deadline();
        for place in places {
            let here: Vec<&Piece> =
                pieces.iter().filter(|piece| owner_of(piece) == place).collect();
            self.read_at(deadline, place, &here, offset, &mut into)?;
        }
        Ok(into)
    }

    /// The pieces of one place, to where they belong in `into`, which begins at `offset`.
    fn read_at(
        &self,
        deadline: Instant,
        place: Option<usize>,
        pieces: &[&Piece],
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Missing> {
        let image = place.map_or(&self.image, |place| &self.owners[place].image);
        let range = |piece: &&Piece| {
            (piece.owner.map_or(piece.at, |(_, offset)| offset), piece.bytes as u32)
        };
        let missing = |cause: Cause| Missing {
            page: pieces.first().map_or(offset, |piece| piece.at) / PAGE_BYTES,
            source: image.source.name(),
            cause: match place {
                Some(_) => format!("seed {}, which owns the page: {cause}", image.cid),
                None => cause,
            },
        };
        let ranges: Vec<_> = pieces.iter().map(range).collect();
        let read = image.source.read(deadline, image, &ranges).map_err(missing)?;
        for (piece, bytes) in pieces.iter().zip(&read) {
            let at = (piece.at - offset) as usize;
            let to = into.get_mut(at..at + piece.bytes as usize);
            let to = to.filter(|to| to.len() == bytes.len());
            to.ok_or_else(|| missing("it gave too few bytes".to_owned()))?.copy_from_slice(bytes);
        }
        Ok(())
    }
}

fn owner_of(piece: &Piece) -> Option<usize> {
    piece.owner.map(|(owner, _)| owner)
}

impl OwnerImage {
    fn new(
        owner: &Owner,
        sources: &Sources,
        keys: &Path,
        tls: Option<&TlsFiles>,
    ) -> Result<OwnerImage, Cause> {
        let path = keys.join(fingerprint_of(&owner.secret));
        let at = SourceAt { address: owner.address.clone(), key: path, tls: tls.cloned() };
        let (cid, source) = (Cid::from_bytes(owner.cid), sources.of(Some(&at))?);
        // Its key is its own: no other seed answers to it.
        let image = FarImage::known(source, cid, owner.bytes, owner.modified_unix_ns, Vec::new());
        Ok(OwnerImage { image, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineage::Extent;
    use crate::protocol::{self, Found, Question};
    use farfork_fabric::Regions;
    use farfork_fabric::tcp::{Server, ServerSettings};
    use std::net::TcpListener;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    const P: u64 = PAGE_BYTES;

    /// A node that serves one image of four pages, each filled with its own number and that of the image.
    struct Node {
        server: Server,
        owner: Owner,
    }

    impl Node {
        fn start(n: u8) -> Node {
            let cid = Cid::from_bytes([n; 16]);
            let bytes: Vec<u8> = (0..4 * P).map(|at| (at / P) as u8 * 16 + n).collect();
            let regions = Arc::new(Regions::new());
            let key = regions.register(Arc::new(bytes)).unwrap();
            let shared = SharedKey::new([n; 16], [n; 32]);
            let mut settings = ServerSettings::new(regions, shared.alone());
            settings.service = Arc::new(move |request| match protocol::decode(request) {
                Some(Question::Find { .. } | Question::Again { .. }) => {
                    Ok(protocol::encode(&Found::new(cid, 4 * P, 9, key)))
                }
                _ => Err("it has ended".to_owned()),
            });
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let server = Server::start(listener, settings).unwrap();
            let (key_id, secret) = ([n; 16], [n; 32]);
            let owner =
                Owner { cid: [n; 16], bytes: 4 * P, modified_unix_ns: 9, address, key_id, secret };
            Node { server, owner }
        }
    }

    /// Page 0 is the image's own, page 1 is page 3 of the first owner, page 2 is page 0 of the second.
    fn split(own: &Node, owners: &[&Node], keys: &Path) -> SplitImage {
        let sources = Sources::new(None, Duration::from_secs(5));
        let at = OwnerImage::new(&own.owner, &sources, keys, None).unwrap();
        write_key_at(&at.at.key, &SharedKey::new([1; 16], [1; 32])).unwrap();
        let image = at.image.source.find(&Cid::from_bytes([1; 16]).to_string()).unwrap().image;
        let extents = vec![
            Extent { at: P, bytes: P, owner: 0, offset: 3 * P },
            Extent { at: 2 * P, bytes: P, owner: 1, offset: 0 },
        ];
        let owners = owners.iter().map(|node| node.owner.clone()).collect();
        let lineage = Lineage { owners, extents };
        lineage.check(4 * P).unwrap();
        let split = SplitImage::new(image, lineage, &sources, keys).unwrap();
        split.write_keys().unwrap();
        split
    }

    fn pages(read: &[u8]) -> Vec<u8> {
        assert!(read.chunks(P as usize).all(|page| page.iter().all(|byte| *byte == page[0])));
        read.chunks(P as usize).map(|page| page[0]).collect()
    }

    #[test]
    fn each_page_comes_from_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = [1, 2, 3].map(Node::start);
        let image = split(&nodes[0], &[&nodes[1], &nodes[2]], folder.path());
        assert_eq!(pages(&image.read(0, 4 * P as u32).unwrap()), [0x01, 0x32, 0x03, 0x31]);
        assert_eq!(pages(&image.read(P, P as u32).unwrap()), [0x32]);
        let fetched = |image: &FarImage| image.fetched_bytes.load(Ordering::Relaxed);
        assert_eq!(
            image.owners.iter().map(|owner| fetched(&owner.image)).collect::<Vec<_>>(),
            [2 * P, P]
        );
        assert_eq!([1, 2].map(|n: usize| nodes[n].server.served_bytes()), [2 * P, P]);
    }

    #[test]
    fn a_lost_owner_is_an_error_for_its_own_pages_only() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, three] = [1, 2, 3].map(Node::start);
        let image = split(&one, &[&two, &three], folder.path());
        let address = three.owner.address.clone();
        drop(three);
        let missing = image.read(0, 4 * P as u32).unwrap_err();
        assert_eq!((missing.page, &missing.source), (2, &format!("tcp://{address}")));
        let named = format!("seed {}, which owns the page: ", Cid::from_bytes([3; 16]));
        assert!(missing.cause.starts_with(&named), "{}", missing.cause);
        assert_eq!(pages(&image.read(0, 2 * P as u32).unwrap()), [0x01, 0x32]);
        assert_eq!(pages(&image.read(3 * P, P as u32).unwrap()), [0x31]);
    }

    #[test]
    fn a_wrong_key_of_an_owner_is_refused_without_a_read() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, mut three] = [1, 2, 3].map(Node::start);
        three.owner.secret[0] ^= 1;
        let image = split(&one, &[&two, &three], folder.path());
        assert!(image.read(2 * P, P as u32).is_err());
        assert_eq!(three.server.served_bytes(), 0);
        assert_eq!(pages(&image.read(P, P as u32).unwrap()), [0x32]);
    }

    #[test]
    fn an_owner_with_another_image_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, mut three] = [1, 2, 3].map(Node::start);
        three.owner.modified_unix_ns += 1;
        let image = split(&one, &[&two, &three], folder.path());
        let missing = image.read(2 * P, P as u32).unwrap_err();
        assert!(missing.cause.contains("another image"), "{}", missing.cause);
        assert_eq!(three.server.served_bytes(), 0);
    }
}
