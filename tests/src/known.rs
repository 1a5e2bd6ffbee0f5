//! Records pages of an image as accessed, written or hot, as if clones had touched them.

use std::path::Path;

use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::format::Image;
use farfork_pool::{PageBits, Pool};
use farfork_types::{CHUNK_BYTES, PAGE_BYTES};

use crate::{Outcome, Trouble};

/// All pages, as bits of 64 that follow each other.
pub const ALL: u64 = u64::MAX;
/// Every other block of 64 KiB, so that what is known and what is not lie side by side.
pub const EVERY_OTHER_BLOCK: u64 = 0x0000_ffff_0000_ffff;

/// Records these pages of an image as accessed and written. Under the default policy, a clone that waits in
/// a ghost then gets copies before it starts, and the init of any other clone copies them ahead.
pub fn written(pool: &Path, image: &str, pages: u64) -> Outcome {
    known(pool, image, |count| {
        let words = vec![pages; count];
        PageBits { accessed: words.clone(), dirtied: words, hot: Vec::new() }
    })
}

/// Has all that clones map of an image from the pool be declared hot, as a user does by `farfork hot`.
pub fn hot(pool: &Path, image: &str) -> Outcome {
    known(pool, image, |count| PageBits { hot: vec![ALL; count], ..PageBits::default() })
}

/// Has it known what these bits say, of which there are so many words.
fn known(pool: &Path, image: &str, bits: impl Fn(usize) -> PageBits) -> Outcome {
    let failed = |error: &dyn std::error::Error| Trouble::during("telling of pages", error);
    let pool = Pool::open(pool).map_err(|error| failed(&error))?;
    let catalog = Catalog::of(&pool);
    let name: ImageName = image.parse().map_err(|error| failed(&error))?;
    let cid = catalog.get(&name).map_err(|error| failed(&error))?;
    let cid = cid.ok_or_else(|| Trouble::Failed(format!("no image {name}")))?;
    let image = Image::read(&pool, cid).map_err(|error| failed(&error))?;
    let count = image.sums.len() * (CHUNK_BYTES / PAGE_BYTES / 64) as usize;
    pool.add_users_bits(cid, &bits(count)).map_err(|error| failed(&error))
}
