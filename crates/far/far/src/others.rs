//! Images of other serving nodes with the same id: they must be the same image.
//!
//! An id is random, so two images with one id are one image and a forged or damaged copy of it. Which of the two is
//! right cannot be known here, so the second is refused before a page of it is read.

use std::fs;
use std::path::Path;

use farfork_types::Cid;

use crate::known;
use crate::source::{Cause, FarImage};

/// What the format of images has at their beginning: the checksum of all metadata, in which those of all chunks are.
const HEADER_BYTES: usize = 2048;

/// Demands that no other mount of this machine, beside the one whose list of images is `own`, has another image with
/// the id of `image`.
///
/// # Errors
/// One has: the reason.
pub fn demand_same(own: &Path, image: &FarImage) -> Result<(), Cause> {
    let header = |page: &[u8]| page[..page.len().min(HEADER_BYTES)].to_vec();
    let own_place = own.parent();
    let places = own_place.and_then(Path::parent).and_then(|far| fs::read_dir(far).ok());
    for place in places.into_iter().flatten().flatten().map(|place| place.path()) {
        // One that was unmounted does not count.
        if Some(&*place) == own_place || !place.join("socket").exists() {
            continue;
        }
        for (cid, bytes, first_page) in known::beginnings(&place.join("known")) {
            let is_same = (bytes, header(&first_page)) == (image.bytes, header(image.first_page()));
            if cid == image.cid && !is_same {
                return Err(words(image.cid, &image.source.name(), &place));
            }
        }
    }
    Ok(())
}

fn words(cid: Cid, source: &str, place: &Path) -> Cause {
    // Addresses stand in the names of places.
    let name = place.file_name().unwrap_or_default().to_string_lossy().replace("+3a+", ":");
    format!(
        "the image {cid} of {source} is not the image {cid} of {name}, which is mounted here: one of the two is forged \
         or damaged; run \"farfork far unmount {name}\" if that one is"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::source::{Source, SourceAt};
    use crate::split::SplitImage;

    #[test]
    fn another_image_of_the_same_id_is_seen_while_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = folder.path().join("far").join(name);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("socket"), "").unwrap();
            place.join("known")
        };
        let at = SourceAt { address: "10.0.0.2:7".into(), key: "key".into(), tls: None };
        let source = Arc::new(Source::new(&at, Duration::from_secs(1)));
        let image = |n: u8, first: Vec<u8>, modified| {
            FarImage::known(Arc::clone(&source), Cid::from_bytes([n; 16]), 9000, modified, first)
        };
        let mut page = vec![5; 4096];
        let (one, two) = (place("10.0.0.1+3a+7"), place("10.0.0.2+3a+7"));
        let first = SplitImage::whole(image(1, page.clone(), 1));
        known::note(&one, 70, None, &first).unwrap();
        // A copy has a time of its own, and what follows the header is not the image's.
        page[4000] = 0;
        demand_same(&two, &image(1, page.clone(), 2)).unwrap();
        page[100] = 0;
        demand_same(&two, &image(2, page.clone(), 2)).unwrap();
        demand_same(&one, &image(1, page.clone(), 2)).unwrap();
        let why = demand_same(&two, &image(1, page.clone(), 2)).unwrap_err();
        assert!(why.contains("of tcp://10.0.0.2:7 is not"), "{why}");
        assert!(why.contains("far unmount 10.0.0.1:7"), "{why}");
        fs::remove_file(one.parent().unwrap().join("socket")).unwrap();
        demand_same(&two, &image(1, page, 2)).unwrap();
    }
}
