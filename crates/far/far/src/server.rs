//! The serving node: images of its pools as regions, found by name or id.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use farfork_fabric::rdma::{Device, lanes};
use farfork_fabric::tcp::{SOCKET_EXTENSION, Server, ServerSettings};
use farfork_fabric::{Region, RegionKey, Regions, SharedKey};
use farfork_image::catalog::{Catalog, discard};
use farfork_image::holds::{self, HoldError};
use farfork_pool::{ImageId, Pool, PoolError};
use farfork_sys::sync::locked;
use farfork_types::{Cid, TlsFiles};

use crate::certificates::renewed;
use crate::error::FarError;
use crate::lineage::Lineage;
use crate::protocol::{self, Found, PageRange, Question};
use crate::wanted;

/// Ways to a server beside TCP.
#[derive(Debug, Default)]
pub struct Offers<'o> {
    /// Directory for the socket at which far processes of this host find it. They read through shared memory.
    pub local: Option<&'o Path>,
    /// Device by which others may read, and how many bytes of images are pinned for it at most. What it carries is not
    /// encrypted.
    pub rdma: Option<(Device, u64)>,
}

/// A running server of far memory. It stops when it is dropped.
pub struct FarServer(Server);

impl FarServer {
    /// Serves the images of the pools at `pools` to nodes that have `key` and, with `tls`, a certificate of the
    /// authority there. They use the best of the ways that are offered.
    ///
    /// # Errors
    /// A pool cannot be opened, files of `tls` cannot be used, or `listen` is not an address of this machine or is taken.
    pub fn start(
        listen: &str,
        pools: &[&Path],
        key: SharedKey,
        tls: Option<&TlsFiles>,
        offers: Offers<'_>,
    ) -> Result<FarServer, FarError> {
        let certificates = tls.map(renewed).transpose()?;
        let pools = pools.iter().map(|path| Pool::open(path)).collect::<Result<Vec<_>, _>>()?;
        let regions = Arc::new(Regions::new());
        let shelf = Shelf { pools, regions: Arc::clone(&regions), served: Mutex::default() };
        let failed = || FarError::io("listen on", listen);
        let listener = TcpListener::bind(listen).map_err(failed())?;
        let lanes = offers.rdma.map(|(device, most_bytes)| lanes(device, &regions, most_bytes));
        let mut settings = ServerSettings::new(regions, key.alone());
        settings.lanes = lanes;
        settings.certificates = certificates;
        settings.service = Arc::new(move |request| shelf.answer(request));
        let port = listener.local_addr().map_err(failed())?.port();
        settings.local =
            offers.local.map(|local| local.join(format!("far-{port}.{SOCKET_EXTENSION}")));
        Ok(FarServer(Server::start(listener, settings).map_err(failed())?))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The socket of this host at which shared memory is offered; `None` if it is not.
    pub fn local(&self) -> Option<&Path> {
        self.0.local()
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
            Some(Question::Record { cid }) => {
                let record =
                    self.record(Cid::from_bytes(cid)).map_err(|error| error.to_string())?;
                Ok(protocol::encode(&record))
            }
            Some(Question::Hold { cid, holder }) => {
                self.hold(Cid::from_bytes(cid), &holder)?;
                Ok(Vec::new())
            }
            Some(Question::Release { cid, holder }) => {
                self.release(Cid::from_bytes(cid), &holder)?;
                Ok(Vec::new())
            }
            Some(Question::Again { cid }) => {
                let image = Cid::from_bytes(cid).to_string();
                let found = self.find(&image).map_err(|error| error.to_string())?;
                let found = found.ok_or_else(|| format!("it has no image {image}"))?;
                Ok(protocol::encode(&found))
            }
            // The agents of this machine note it.
            Some(Question::Touched { .. } | Question::Clones { .. }) => Ok(Vec::new()),
            Some(Question::Sources { .. }) => Ok(protocol::encode(&Lineage::default())),
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
        let mut served = locked(&self.served);
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

    /// Keeps an image for a pool of another node.
    fn hold(&self, cid: Cid, holder: &str) -> Result<(), String> {
        let mut refused = format!("it has no image {cid}");
        for pool in &self.pools {
            match holds::hold(pool, cid, holder) {
                Ok(()) => return Ok(()),
                Err(HoldError::Pool(PoolError::NoImage { .. })) => {}
                Err(error) => refused = error.to_string(),
            }
        }
        Err(refused)
    }

    /// An image without a name is removed, as by the command that takes the last one away.
    fn release(&self, cid: Cid, holder: &str) -> Result<(), String> {
        for pool in &self.pools {
            let was_held = holds::release(pool, cid, holder).map_err(|error| error.to_string())?;
            if was_held {
                discard(pool, cid).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// What was recorded of a virtual machine.
    fn record(&self, cid: Cid) -> Result<Vec<PageRange>, PoolError> {
        for pool in &self.pools {
            match wanted::record(pool, cid) {
                Err(PoolError::NoImage { .. }) => {}
                found => return found,
            }
        }
        Ok(Vec::new())
    }

    /// Pages that clones are known to need.
    fn pages(&self, cid: Cid) -> Result<Vec<PageRange>, PoolError> {
        for pool in &self.pools {
            match wanted::pages(pool, cid) {
                Err(PoolError::NoImage { .. }) => {}
                found => return found,
            }
        }
        Ok(Vec::new())
    }
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

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
