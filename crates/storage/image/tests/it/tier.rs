//! Images of which chunks lie on another node.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use farfork_image::error::ImageError;
use farfork_image::format::{Image, chunk_offset, far_chunks};
use farfork_image::tier::{FarNode, pull, retier};
use farfork_pool::{ImageFile, Pool, PoolError};
use farfork_types::{CHUNK_BYTES, Cid};

use crate::common::{model, publish};

/// Two pools, of which the second has a copy of the image of the first.
struct Scene {
    directory: tempfile::TempDir,
    near: Pool,
    far: Pool,
    cid: Cid,
    whole: Vec<u8>,
}

fn scene() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let pool = |name: &str| Pool::create(&directory.path().join(name), 24 * CHUNK_BYTES).unwrap();
    let (near, far) = (pool("near"), pool("far"));
    let cid = publish(&near, &model());
    let file = near.find(cid).unwrap();
    let whole = file.read(0, file.id.bytes).unwrap();
    pull(&far, Some("amy"), &file, &mut |_, _| ()).unwrap();
    Scene { directory, near, far, cid, whole }
}

fn node(address: &str) -> FarNode {
    FarNode { address: address.to_owned(), key: "/key".into(), tls: None, deadline_ms: 5000 }
}

impl Scene {
    fn far_path(&self) -> std::path::PathBuf {
        self.directory.path().join(format!("far/images/{}", self.cid))
    }

    fn image(&self) -> ImageFile {
        let far_file = File::open(self.far_path()).unwrap();
        self.near.find(self.cid).unwrap().with_far_file(far_file).unwrap()
    }

    fn tier(&self, chunks: &[usize], address: &str) -> Result<(), ImageError> {
        let chunks: BTreeSet<usize> = chunks.iter().copied().collect();
        retier(&self.near, &self.image(), &chunks, &node(address), &mut |_, _| ())
    }

    /// Demands that the pool has exactly the chunks that are not far, and that all bytes are to be had.
    fn check(&self, far: &[usize]) {
        let file = self.near.find(self.cid).unwrap();
        assert_eq!(far_chunks(&file).into_iter().collect::<Vec<_>>(), far);
        assert_eq!(self.image().read(0, self.whole.len() as u64).unwrap().len(), self.whole.len());
        let all = self.image().read(0, self.whole.len() as u64).unwrap();
        let start = CHUNK_BYTES as usize;
        assert!(all[start..] == self.whole[start..], "other bytes, far {far:?}");
        let image = Image::read_from(&file).unwrap();
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        for chunk in 0..image.sums.len() {
            let near = image.read_chunk(&file, chunk, &mut buffer);
            match far.contains(&chunk) {
                true => assert!(matches!(near, Err(ImageError::Pool(PoolError::FarBytes { .. })))),
                false => assert!(near.unwrap()),
            }
            assert!(image.read_chunk(&self.image(), chunk, &mut buffer).unwrap());
        }
    }

    fn spoil_far(&self, offset: u64) {
        let path = self.far_path();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    }
}

#[test]
fn a_pulled_image_has_the_same_bytes() {
    let scene = scene();
    assert_eq!(fs::read(scene.far_path()).unwrap(), scene.whole);
    let blocks =
        |pool: &Pool| pool.find(scene.cid).unwrap().file().metadata().unwrap().blocks() / 8;
    assert!(blocks(&scene.far) <= blocks(&scene.near));
    assert_eq!(scene.far.user_info("amy").unwrap().images, 1);
    let again = pull(&scene.far, None, &scene.near.find(scene.cid).unwrap(), &mut |_, _| ());
    assert!(again.is_err(), "it is there already");
    assert!(scene.far.check().unwrap().is_sound());
}

#[test]
fn chunks_go_and_come_back_with_the_same_bytes() {
    let scene = scene();
    let all = Image::read(&scene.near, scene.cid).unwrap().sums.len();
    assert!(all >= 2);
    let everything: Vec<usize> = (0..all).collect();
    let taken = || scene.near.find(scene.cid).unwrap().file().metadata().unwrap().blocks() * 512;
    let before = taken();
    for far in [&[0][..], &[all - 1], &everything, &[1], &[], &everything, &[]] {
        scene.tier(far, "a:1").unwrap();
        scene.check(far);
        assert!(scene.near.check().unwrap().is_sound());
    }
    assert!(
        fs::read(scene.directory.path().join(format!("near/images/{}", scene.cid))).unwrap()
            == scene.whole
    );
    assert_eq!(taken(), before);
    scene.tier(&everything, "a:1").unwrap();
    assert!(taken() < before / 2, "{} of {before}", taken());
}

#[test]
fn another_image_is_refused_before_anything_goes() {
    let last = model().chunks() - 1;
    let table = [(chunk_offset(0) + 4097, "a chunk"), (5000, "its metadata"), (20, "its header")];
    for (offset, what) in table {
        let scene = scene();
        scene.spoil_far(offset);
        let refused = scene.tier(&[0, last], "a:1");
        let Err(ImageError::OtherFar { what: found, .. }) = refused else {
            panic!("{what}: {refused:?}");
        };
        assert_eq!(found, what);
        assert_eq!(scene.near.find(scene.cid).unwrap().far(), None);
    }
    let scene = scene();
    fs::set_permissions(scene.far_path(), Permissions::from_mode(0o600)).unwrap();
    let longer = OpenOptions::new().write(true).open(scene.far_path()).unwrap();
    longer.set_len(scene.whole.len() as u64 + 4096).unwrap();
    assert!(matches!(
        scene.tier(&[0], "a:1"),
        Err(ImageError::OtherFar { what: "its length", .. })
    ));
}

#[test]
fn a_chunk_that_comes_back_is_verified() {
    let scene = scene();
    scene.tier(&[0], "a:1").unwrap();
    scene.spoil_far(chunk_offset(0) + 4097);
    assert!(matches!(scene.tier(&[], "a:1"), Err(ImageError::Damaged { .. })));
    // So is one that goes on to another node.
    assert!(matches!(scene.tier(&[0], "b:1"), Err(ImageError::Damaged { .. })));
    assert_eq!(far_chunks(&scene.near.find(scene.cid).unwrap()).len(), 1);
}

#[test]
fn without_its_table_a_tiered_image_is_refused() {
    let scene = scene();
    scene.tier(&[0], "a:1").unwrap();
    let path = scene.directory.path().join(format!("near/images/{}", scene.cid));
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 56], 2048).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    let read = Image::read(&scene.near, scene.cid);
    assert!(matches!(read, Err(ImageError::Damaged { .. })), "{read:?}");
}
