//! The serving node: images of its pools as regions, found by name or id.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use farfork_fabric::tcp::{Server, ServerSettings};
use farfork_fabric::{Region, RegionKey, Regions, SharedKey};
use farfork_image::catalog::Catalog;
use farfork_pool::{ImageId, Pool, PoolError};
use farfork_types::Cid;

use crate::error::FarError;
use crate::protocol::{self, Found, PageRange, Question};

/// A running server of far memory. It stops when it is dropped.
pub struct FarServer(Server);

impl FarServer {
    /// Serves the images of the pools at `pools` to nodes that have `key`.
    ///
    /// # Errors
    /// A pool cannot be opened, or `listen` is not an address of this machine or is taken.
    pub fn start(listen: &str, pools: &[&Path], key: SharedKey) -> Result<FarServer, FarError> {
        let pools = pools.iter().map(|path| Pool::open(path)).collect::<Result<Vec<_>, _>>()?;
        let regions = Arc::new(Regions::new());
        let shelf = Shelf { pools, regions: Arc::clone(&regions), served: Mutex::default() };
        let failed = || FarError::io("listen on", listen);
        let listener = TcpListener::bind(listen).map_err(failed())?;
        let mut settings = ServerSettings::new(regions, key.alone());
        settings.service = Arc::new(move |request| shelf.answer(request));
        Ok(FarServer(Server::start(listener, settings).map_err(failed())?))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Bytes of images that were sent so far.
    pub fn served_bytes(&self) -> u64 {
        self.0.served_bytes()
    }
}

/// The images that can be found.
struct Shelf {
    pools: Vec<Pool>,
    regions: Arc<Regions>,
    /// Images that were asked for. Their files stay open: a removed image is served to nodes that have its key.
    served: Mutex<HashMap<Cid, (ImageId, RegionKey)>>,
}

impl Shelf {
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        match protocol::decode(request) {
            Some(Question::Find { image }) => {
                let found = self.find(&image).map_err(|error| error.to_string())?;
                let found = found.ok_or_else(|| format!("it has no image {image}"))?;
                Ok(protocol::encode(&found))
            }
            Some(Question::Pages { cid }) => {
                let cid = Cid::from_bytes(cid);
                let pages = self.pages(cid).map_err(|error| error.to_string())?;
                Ok(protocol::encode(&pages))
            }
            None => {
                Err("it does not know this call: use one version of farfork on both sides"
                    .to_owned())
            }
        }
    }

    fn find(&self, image: &str) -> Result<Option<Found>, PoolError> {
        for pool in &self.pools {
            let cid = match (image.parse::<Cid>(), image.parse()) {
                (Ok(cid), _) => Some(cid),
                (_, Ok(name)) => Catalog::of(pool).get(&name)?,
                _ => None,
            };
            match cid.map(|cid| self.serve(pool, cid)) {
                None | Some(Err(PoolError::NoImage { .. })) => {}
                Some(found) => return found.map(Some),
            }
        }
        Ok(None)
    }

    /// Registers an image, unless it is registered.
    fn serve(&self, pool: &Pool, cid: Cid) -> Result<Found, PoolError> {
        let file = pool.find(cid)?;
        if let Some(far) = file.far() {
            // In the file there are holes.
            return Err(PoolError::FarBytes { cid, node: far.source.clone() });
        }
        let id = file.id;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| PoolError::ReadImage { cid, source };
        let region = file.file().try_clone().and_then(ImageRegion::new).map_err(failed)?;
        let modified_unix_ns = region.modified_unix_ns();
        let found = |key| Found::new(cid, id.bytes, modified_unix_ns, key);
        if let Some((_, key)) = served.get(&cid).filter(|(known, _)| *known == id) {
            return Ok(found(*key));
        }
        let key = self.regions.register(Arc::new(region)).map_err(failed)?;
        if let Some((_, old)) = served.insert(cid, (id, key)) {
            self.regions.remove(old.id);
        }
        Ok(found(key))
    }

    /// Pages that clones were seen to touch, or that were declared hot.
    fn pages(&self, cid: Cid) -> Result<Vec<PageRange>, PoolError> {
        for pool in &self.pools {
            match pool.access(cid) {
                Ok(bits) => {
                    let sets = [&bits.hot, &bits.accessed, &bits.dirtied];
                    let words = sets.iter().map(|set| set.len()).max().unwrap_or(0);
                    let word = |at: usize| {
                        sets.iter().fold(0, |all, set| all | set.get(at).copied().unwrap_or(0))
                    };
                    return Ok(ranges((0..words).map(word)));
                }
                Err(PoolError::NoImage { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Vec::new())
    }
}

/// The set bits of words, side by side.
fn ranges(words: impl Iterator<Item = u64>) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = Vec::new();
    for (index, word) in words.enumerate() {
        for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
            let page = index as u64 * 64 + bit;
            match ranges.last_mut() {
                Some((start, count)) if *start + *count == page => *count += 1,
                _ => ranges.push((page, 1)),
            }
        }
    }
    ranges
}

/// The file of an image. Images do not change; should one, its bytes are not served any more.
struct ImageRegion {
    file: File,
    bytes: u64,
    modified: (i64, i64),
}

impl ImageRegion {
    fn new(file: File) -> io::Result<ImageRegion> {
        let found = file.metadata()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Ok(ImageRegion { file, bytes: found.len(), modified })
    }

    fn modified_unix_ns(&self) -> u64 {
        (self.modified.0 * 1_000_000_000 + self.modified.1) as u64
    }

    fn check(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        let is_same = (now.len(), (now.mtime(), now.mtime_nsec())) == (self.bytes, self.modified);
        let changed = || io::Error::other("the image's file was changed, which images never are");
        is_same.then_some(()).ok_or_else(changed)
    }
}

impl Region for ImageRegion {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)?;
        // After the read: bytes that were read before a change are right.
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn set_bits_are_ranges() {
        let words = [0b1011, 1 << 63, 1, 0];
        assert_eq!(ranges(words.into_iter()), [(0, 2), (3, 1), (127, 2)]);
        assert_eq!(ranges([u64::MAX, u64::MAX].into_iter()), [(0, 128)]);
        assert_eq!(ranges([].into_iter()), []);
    }

    #[test]
    fn a_changed_file_is_not_served() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100]).unwrap();
        let region = ImageRegion::new(file.try_clone().unwrap()).unwrap();
        let mut into = [0; 10];
        region.read(90, &mut into).unwrap();
        assert_eq!(into, [1; 10]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.write_all_at(&[2; 100], 0).unwrap();
        assert!(region.read(90, &mut into).is_err());
    }
}
