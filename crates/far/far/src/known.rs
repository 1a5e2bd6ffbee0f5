//! The images that a mount has, in a file beside it: a far process that takes over must know them, because the
//! kernel names them by inode.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::source::{FarImage, SourceAt};
use crate::sources::Sources;

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
}

/// An image, its inode, and the node that was named for it.
pub type Noted = (u64, Option<SourceAt>, FarImage);

/// Notes an image before the kernel hears of it.
pub fn note(path: &Path, inode: u64, named: Option<&SourceAt>, image: &FarImage) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    file.write_all(line(inode, named, image)?.as_bytes())
}

/// Notes these images and no others.
pub fn note_all<'i>(
    path: &Path,
    images: impl Iterator<Item = (u64, Option<&'i SourceAt>, &'i FarImage)>,
) -> io::Result<()> {
    let lines = images.map(|(inode, named, image)| line(inode, named, image));
    let text = lines.collect::<io::Result<String>>()?;
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

fn line(inode: u64, named: Option<&SourceAt>, image: &FarImage) -> io::Result<String> {
    let record = Record {
        inode,
        cid: image.cid.to_string(),
        bytes: image.bytes,
        modified_unix_ns: image.modified_unix_ns,
        first_page: STANDARD.encode(image.first_page()),
        source: named.cloned(),
    };
    Ok(serde_json::to_string(&record)? + "\n")
}

/// The images of a mount. A line that is not whole was never answered by.
pub fn all(path: &Path, sources: &Sources) -> Vec<Noted> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| image(line, sources)).collect()
}

fn image(line: &str, sources: &Sources) -> Option<Noted> {
    let Record { inode, cid, bytes, modified_unix_ns, first_page, source } =
        serde_json::from_str(line).ok()?;
    let (first_page, cid) = (STANDARD.decode(first_page).ok()?, cid.parse().ok()?);
    let from = sources.of(source.as_ref()).ok()?;
    Some((inode, source, FarImage::known(from, cid, bytes, modified_unix_ns, first_page)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_types::Cid;
    use std::time::Duration;

    #[test]
    fn images_survive_their_far_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known");
        let at = |key: &str| SourceAt { address: "10.0.0.1:7".into(), key: key.into() };
        let sources = Sources::new(Some(&at("common")), Duration::from_secs(1));
        assert!(all(&path, &sources).is_empty());
        let image = |named: Option<&SourceAt>, n: u8| {
            let source = sources.of(named).unwrap();
            FarImage::known(source, Cid::from_bytes([n; 16]), 5, 9, vec![n; 4096])
        };
        let own = at("own");
        note(&path, 70, None, &image(None, 1)).unwrap();
        note(&path, 71, Some(&own), &image(Some(&own), 2)).unwrap();
        // A process that was killed may have written half a line.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"inode\":72,\"cid\":").unwrap();
        let read = all(&path, &sources);
        assert_eq!(read.iter().map(|(inode, ..)| *inode).collect::<Vec<_>>(), [70, 71]);
        assert_eq!((&read[0].1, &read[1].1), (&None, &Some(own)));
        assert_eq!(read[1].2.source.at().key, Path::new("own"));
        let (one, two) = (image(None, 1), image(None, 2));
        assert!(read[1].2.is_same(&two) && !read[1].2.is_same(&one));
        note_all(&path, [(70, None, &read[0].2)].into_iter()).unwrap();
        assert_eq!(all(&path, &sources).len(), 1);
    }
}
