//! The images that a mount has, in a file beside it: a far process that takes over must know them, because the
//! kernel names them by inode.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::source::FarImage;

/// An image and its inode: one JSON document a line.
#[derive(Serialize, Deserialize)]
struct Record {
    inode: u64,
    cid: String,
    bytes: u64,
    modified_unix_ns: u64,
    /// Base64.
    first_page: String,
}

/// Notes an image before the kernel hears of it.
pub fn note(path: &Path, inode: u64, image: &FarImage) -> io::Result<()> {
    let record = Record {
        inode,
        cid: image.cid.to_string(),
        bytes: image.bytes,
        modified_unix_ns: image.modified_unix_ns,
        first_page: STANDARD.encode(image.first_page()),
    };
    let mut options = OpenOptions::new();
    let mut file = options.append(true).create(true).mode(0o600).open(path)?;
    file.write_all((serde_json::to_string(&record)? + "\n").as_bytes())
}

/// The images of a mount, and their inodes. A line that is not whole was never answered by.
pub fn all(path: &Path) -> Vec<(u64, FarImage)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(image).collect()
}

fn image(line: &str) -> Option<(u64, FarImage)> {
    let Record { inode, cid, bytes, modified_unix_ns, first_page } =
        serde_json::from_str(line).ok()?;
    let first_page = STANDARD.decode(first_page).ok()?;
    Some((inode, FarImage::known(cid.parse().ok()?, bytes, modified_unix_ns, first_page)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farfork_types::Cid;

    #[test]
    fn images_survive_their_far_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known");
        assert!(all(&path).is_empty());
        let image = |n: u8| FarImage::known(Cid::from_bytes([n; 16]), 5, 9, vec![n; 4096]);
        note(&path, 70, &image(1)).unwrap();
        note(&path, 71, &image(2)).unwrap();
        // A process that was killed may have written half a line.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"inode\":72,\"cid\":").unwrap();
        let read = all(&path);
        assert_eq!(read.iter().map(|(inode, _)| *inode).collect::<Vec<_>>(), [70, 71]);
        assert!(read[1].1.is_same(&image(2)) && !read[1].1.is_same(&image(1)));
    }
}
