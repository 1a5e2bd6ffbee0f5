//! The images that a mount has, in a file beside it: a far process that takes over must know them, because the
//! kernel names them by inode.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_types::{Cid, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::keyfile::key_at;
use crate::lineage::{Lineage, Owner};
use crate::place::Place;
use crate::protocol;
use crate::source::{FarImage, SourceAt};
use crate::sources::Sources;
use crate::split::SplitImage;

/// An image and its inode: one JSON document a line.
#[derive(Serialize, Deserialize)]
struct Record {
    inode: u64,
    cid: String,
    bytes: u64,
    modified_unix_ns: u64,
    /// Base64.
    first_page: String,
    /// The serving node, if it is not that of all images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<SourceAt>,
    /// Which parts others own: as on the wire, in base64. It has their keys: this file is for its owner alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lineage: Option<String>,
}

/// An image, its inode, and the node that was named for it.
pub type Noted = (u64, Option<SourceAt>, SplitImage);

/// Notes an image before the kernel hears of it.
pub fn note(
    path: &Path,
    inode: u64,
    named: Option<&SourceAt>,
    image: &SplitImage,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    file.write_all(line(inode, named, image)?.as_bytes())
}

/// Notes these images and no others.
pub fn note_all<'i>(
    path: &Path,
    images: impl Iterator<Item = (u64, Option<&'i SourceAt>, &'i SplitImage)>,
) -> io::Result<()> {
    let lines = images.map(|(inode, named, image)| line(inode, named, image));
    let text = lines.collect::<io::Result<String>>()?;
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

fn line(inode: u64, named: Option<&SourceAt>, split: &SplitImage) -> io::Result<String> {
    let SplitImage { image, lineage, .. } = split;
    let record = Record {
        inode,
        cid: image.cid.to_string(),
        bytes: image.bytes,
        modified_unix_ns: image.modified_unix_ns,
        first_page: STANDARD.encode(image.first_page()),
        source: named.cloned(),
        lineage: (!lineage.is_empty()).then(|| STANDARD.encode(protocol::encode(lineage))),
    };
    Ok(serde_json::to_string(&record)? + "\n")
}

/// Id, length and first page of the images of a mount, perhaps another one.
pub fn beginnings(path: &Path) -> Vec<(Cid, u64, Vec<u8>)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let beginning = |line: &str| {
        let record: Record = serde_json::from_str(line).ok()?;
        Some((record.cid.parse().ok()?, record.bytes, STANDARD.decode(record.first_page).ok()?))
    };
    text.lines().filter_map(beginning).collect()
}

/// The images of a mount. A line that is not whole was never answered by. Keys of owners of parts lie in `keys`, once
/// they are written.
pub fn all(path: &Path, sources: &Sources, keys: &Path) -> Vec<Noted> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| image(line, sources, keys)).collect()
}

fn image(line: &str, sources: &Sources, keys: &Path) -> Option<Noted> {
    let record: Record = serde_json::from_str(line).ok()?;
    let lineage = record.lineage()?;
    let Record { inode, cid, bytes, modified_unix_ns, first_page, source, .. } = record;
    let (first_page, cid) = (STANDARD.decode(first_page).ok()?, cid.parse().ok()?);
    let from = sources.of(source.as_ref()).ok()?;
    let image = FarImage::known(from, cid, bytes, modified_unix_ns, first_page);
    Some((inode, source, SplitImage::new(image, lineage, sources, keys).ok()?))
}

impl Record {
    fn lineage(&self) -> Option<Lineage> {
        let Some(text) = &self.lineage else { return Some(Lineage::default()) };
        let lineage: Lineage = protocol::decode(&STANDARD.decode(text).ok()?)?;
        lineage.check(self.bytes).is_ok().then_some(lineage)
    }
}

/// What is in a file that no other user can have written. A pool may lie where others may create files beside it.
fn read_own(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if !found.is_file() || !is_own {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// An image of the far pool in the directory `pool`, which has this inode, as an owner of parts of other images,
/// and its own lineage. `None` if it is not an image with a node of its own: then no other node can be given
/// its key.
pub fn owner_and_lineage(
    pool: &Path,
    inode: u64,
    cid: Cid,
) -> Option<(Owner, Lineage, Option<TlsFiles>)> {
    let text = read_own(&Place::at(pool.parent()?).known()).ok()?;
    let records = text.lines().filter_map(|line| serde_json::from_str::<Record>(line).ok());
    let mut same = records.filter(|record| record.inode == inode && record.cid == cid.to_string());
    let record = same.next_back()?;
    let SourceAt { address, key, tls } = record.source.as_ref()?;
    let key = key_at(key).ok()?;
    let owner = Owner {
        cid: cid.to_bytes(),
        bytes: record.bytes,
        modified_unix_ns: record.modified_unix_ns,
        address: address.clone(),
        key_id: key.id(),
        secret: *key.secret(),
    };
    Some((owner, record.lineage()?, tls.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyfile::write_key_at;
    use crate::lineage::Extent;
    use farfork_fabric::SharedKey;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn images_survive_their_far_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known");
        let at = |key: &str| SourceAt { address: "10.0.0.1:7".into(), key: key.into(), tls: None };
        let sources = Sources::new(Some(&at("common")), Duration::from_secs(1));
        let keys = folder.path().join("keys");
        assert!(all(&path, &sources, &keys).is_empty());
        let image = |named: Option<&SourceAt>, n: u8| {
            let source = sources.of(named).unwrap();
            let cid = Cid::from_bytes([n; 16]);
            SplitImage::whole(FarImage::known(source, cid, 5, 9, vec![n; 4096]))
        };
        let own = at("own");
        note(&path, 70, None, &image(None, 1)).unwrap();
        note(&path, 71, Some(&own), &image(Some(&own), 2)).unwrap();
        // A process that was killed may have written half a line.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"inode\":72,\"cid\":").unwrap();
        let read = all(&path, &sources, &keys);
        assert_eq!(read.iter().map(|(inode, ..)| *inode).collect::<Vec<_>>(), [70, 71]);
        assert_eq!((&read[0].1, &read[1].1), (&None, &Some(own)));
        assert_eq!(read[1].2.image.source.at().key, Path::new("own"));
        let (one, two) = (image(None, 1), image(None, 2));
        let found = &read[1].2.image;
        assert!(found.is_same(&two.image) && !found.is_same(&one.image));
        note_all(&path, [(70, None, &read[0].2)].into_iter()).unwrap();
        assert_eq!(all(&path, &sources, &keys).len(), 1);
    }

    /// Anyone can put a file beside a pool in a directory like `/dev/shm`.
    #[test]
    fn files_of_others_name_no_owner() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::at(folder.path());
        let (key, pool, cid) = (folder.path().join("key"), place.pool(), Cid::from_bytes([1; 16]));
        write_key_at(&key, &SharedKey::new([1; 16], [1; 32])).unwrap();
        let at = SourceAt { address: "10.0.0.1:7".into(), key, tls: None };
        let source = Sources::new(None, Duration::from_secs(1)).of(Some(&at)).unwrap();
        let image = SplitImage::whole(FarImage::known(source, cid, 5, 9, vec![1; 4096]));
        let allow = |mode| fs::Permissions::from_mode(mode);
        note(&place.known(), 70, Some(&at), &image).unwrap();
        assert!(owner_and_lineage(&pool, 70, cid).is_some());
        fs::set_permissions(place.known(), allow(0o644)).unwrap();
        assert!(owner_and_lineage(&pool, 70, cid).is_none(), "others can read the addresses");
        fs::set_permissions(place.known(), allow(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(place.known(), Some(1), None).unwrap();
            assert!(owner_and_lineage(&pool, 70, cid).is_none(), "another user's");
        }
        fs::remove_file(place.known()).unwrap();
        // Opened to be read, it would wait for a writer.
        rustix::fs::mkfifoat(rustix::fs::CWD, place.known(), 0o600.into()).unwrap();
        assert!(owner_and_lineage(&pool, 70, cid).is_none());
    }

    #[test]
    fn owners_survive_with_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::at(folder.path());
        let own =
            SourceAt { address: "10.0.0.1:7".into(), key: place.keys().join("own"), tls: None };
        fs::create_dir(place.keys()).unwrap();
        write_key_at(&own.key, &SharedKey::new([1; 16], [1; 32])).unwrap();
        let owner = Owner {
            cid: [2; 16],
            bytes: 8192,
            modified_unix_ns: 3,
            address: "10.0.0.2:7".into(),
            key_id: [2; 16],
            secret: [2; 32],
        };
        let extents = vec![Extent { at: 4096, bytes: 4096, owner: 0, offset: 0 }];
        let lineage = Lineage { owners: vec![owner], extents };
        let sources = Sources::new(None, Duration::from_secs(1));
        let cid = Cid::from_bytes([1; 16]);
        let source = sources.of(Some(&own)).unwrap();
        let image = FarImage::known(source, cid, 8192, 9, vec![1; 4096]);
        let image = SplitImage::new(image, lineage.clone(), &sources, &place.keys()).unwrap();
        note(&place.known(), 70, Some(&own), &image).unwrap();
        let read = all(&place.known(), &sources, &place.keys());
        assert_eq!(read[0].2.lineage, lineage);
        read[0].2.write_keys().unwrap();
        let key = key_at(&read[0].2.owners[0].at.key).unwrap();
        assert_eq!((key.id(), key.secret()), ([2; 16], &[2; 32]));
        let (known, of_known, _) = owner_and_lineage(&place.pool(), 70, cid).unwrap();
        assert_eq!((known.cid, known.secret, &*known.address), ([1; 16], [1; 32], "10.0.0.1:7"));
        assert_eq!(of_known, lineage);
        for (inode, cid) in [(71, cid), (70, Cid::from_bytes([9; 16]))] {
            assert_eq!(owner_and_lineage(&place.pool(), inode, cid), None);
        }
    }
}
