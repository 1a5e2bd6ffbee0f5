//! In which order clones needed the far parts of images: kept beside the images, and used to fetch them in advance.

use std::io;

use farfork_far::place::Place;
use farfork_far::{orders, prefetch, wanted};
use farfork_image::layout::DATA_AT;
use farfork_pool::{FarParts, ImageFile, Pool};
use farfork_sys::words;
use farfork_types::PAGE_BYTES;

use crate::paths;

/// Adds what far processes have noted to the orders beside the images of `pool`. What cannot be added is lost: it
/// serves speed alone.
pub fn learn(pool: &Pool) {
    let run = paths::run_directory();
    for place in Place::all(&run) {
        let directory = place.orders();
        for cid in orders::noted(&directory) {
            let file = pool.find(cid).ok();
            let is_here =
                |far: &&FarParts| Place::of(&run, &far.source).directory() == place.directory();
            let Some(far) = file.as_ref().and_then(ImageFile::far).filter(is_here) else {
                continue;
            };
            let mut pages = orders::take(&directory, cid);
            pages.retain(|page| lies_in(far, *page));
            if let Err(why) = pool.add_access_order(cid, &pages) {
                eprintln!("farfork: cannot note how clones use image {cid}: {why}");
            }
        }
    }
}

/// Has the far parts of an image fetched in the order in which clones needed them, in the background. Without such an
/// order nothing is: they are far because no clone was seen to use them.
pub fn prefetch_parts(pool: &Pool, file: &ImageFile) {
    let (cid, Some(far)) = (file.id.cid, file.far()) else { return };
    learn(pool);
    let mut order = pool.access_order(cid).unwrap_or_default();
    order.retain(|page| lies_in(far, *page));
    if order.is_empty() {
        return;
    }
    if let Err(error) = start(far, file, &order) {
        eprintln!("farfork: cannot prefetch parts of image {cid}: {}", words::of(&error));
    }
}

fn start(far: &FarParts, file: &ImageFile, order: &[u32]) -> io::Result<()> {
    let command = [std::env::current_exe()?, "far".into(), "prefetch".into()];
    let place = Place::of(&paths::run_directory(), &far.source);
    prefetch::start(&command, &place, file.id.cid, wanted::in_order(order))
}

/// Whether a page of the side tables lies far.
fn lies_in(far: &FarParts, page: u32) -> bool {
    let at = DATA_AT + u64::from(page) * PAGE_BYTES;
    let next = far.parts.partition_point(|part| part.end <= at);
    far.parts.get(next).is_some_and(|part| part.contains(&at))
}
