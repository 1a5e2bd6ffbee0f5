//! Images of which parts lie on another node.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use farfork_pool::{PoolError, failpoint};
use farfork_types::CHUNK_BYTES;

use crate::child::{Kind, Orders};
use crate::common::{Place, bits, is_filled, publish, publish_for, used};

const C: u64 = CHUNK_BYTES;

/// What is at the image's place: `whole`, or `tiered`, which then reads as an error where it has no bytes.
fn seen(pool: &farfork_pool::Pool, cid: farfork_types::Cid) -> &'static str {
    let image = pool.find(cid).unwrap();
    assert_eq!(image.id.bytes, 3 * C);
    let Some(far) = image.far() else {
        assert!(is_filled(&image, 3, 7));
        return "whole";
    };
    assert_eq!((far.source.as_str(), far.bytes()), ("a:1", C));
    let refused = |offset, len| matches!(image.read(offset, len), Err(PoolError::FarBytes { .. }));
    assert!(refused(C, 1) && refused(2 * C - 1, 2) && refused(0, 3 * C) && refused(C - 1, 2));
    assert!(image.read(2 * C, C).unwrap().iter().all(|byte| *byte == 7));
    assert!(matches!(image.read(3 * C - 1, 2), Err(PoolError::TruncatedImage { .. })));
    assert!(image.file().metadata().unwrap().blocks() * 512 < 2 * C + C / 2);
    "tiered"
}

#[test]
fn a_replacement_that_dies_leaves_the_image_whole_or_replaced() {
    for kind in [Kind::Usual, Kind::Named] {
        let place = Place::new();
        let pool = kind.applied_to(place.pool());
        let mut all = Vec::new();
        for step in 0.. {
            let cid = publish_for(Some("amy"), &pool, 3, 7).unwrap();
            pool.add_users_bits(cid, &bits(&[], &[], &[1])).unwrap();
            let is_killed =
                Orders { role: "replace", kind, pool: pool.path(), cid }.is_killed_at(step);
            all.push(seen(&pool, cid));
            assert!(pool.check().unwrap().is_sound());
            assert_eq!(place.list("new"), [""; 0], "{kind:?}, step {step}");
            assert_eq!(pool.access(cid).unwrap().hot, [1]);
            assert_eq!(pool.user_info("amy").unwrap().images, 1);
            pool.remove(cid).unwrap();
            if !is_killed {
                break;
            }
        }
        all.dedup();
        assert_eq!(all, ["whole", "tiered"], "{kind:?}");
    }
}

#[test]
fn what_was_removed_meanwhile_does_not_come_back() {
    let place = Place::new();
    let pool = place.pool();
    let before = used(&pool);
    let cid = publish(&pool, 1, 7);
    let mut writer = pool.begin_as(cid, None).unwrap();
    writer.reserve_parts(C, std::slice::from_ref(&(0..C))).unwrap();
    let again = farfork_pool::Pool::open(pool.path()).unwrap();
    failpoint::happen_after(0, Some(Box::new(move || again.remove(cid).unwrap())));
    assert!(matches!(writer.replace(), Err(PoolError::NoImage { .. })));
    assert!(pool.images().unwrap().is_empty() && place.list("new").is_empty());
    crate::common::await_used(&pool, before);
}

#[test]
fn far_parts_are_read_from_the_far_file() {
    let place = Place::new();
    let pool = place.pool();
    let cid = publish(&pool, 3, 7);
    let kept = File::open(place.file(&format!("images/{cid}"))).unwrap();
    Orders { role: "replace", kind: Kind::Usual, pool: pool.path(), cid }.is_killed_at(u64::MAX);
    let image = pool.find(cid).unwrap();
    let far = tempfile::tempfile().unwrap();
    far.set_len(3 * C).unwrap();
    far.write_all_at(&[9; 2], C).unwrap();
    far.write_all_at(&[8; 2], 2 * C - 1).unwrap();
    let image = image.with_far_file(far).unwrap();
    assert_eq!(image.read(C - 1, 4).unwrap(), [7, 9, 9, 0]);
    assert_eq!(image.read(2 * C - 2, 4).unwrap(), [0, 8, 7, 7]);
    // Who has the replaced file open goes on with it.
    let replaced = farfork_pool::ImageFile::handed_over(kept, cid).unwrap();
    assert!(is_filled(&replaced, 3, 7));
}

#[test]
fn a_medium_of_several_kernels_keeps_its_images_whole() {
    let place = Place::new();
    let pool = place.shared_pool();
    let cid = publish(&pool, 1, 7);
    let mut writer = pool.begin_as(cid, None).unwrap();
    let refused = writer.reserve_parts(C, std::slice::from_ref(&(0..C)));
    assert!(matches!(refused, Err(PoolError::SharedImage { .. })));
    writer.reserve(C).unwrap();
    assert!(matches!(writer.replace(), Err(PoolError::SharedImage { .. })));
    assert!(is_filled(&pool.find(cid).unwrap(), 1, 7));
}
