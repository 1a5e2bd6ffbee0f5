//! Regions without a transport.

use std::io::Write;
use std::sync::Arc;

use farfork_fabric::{FileRegion, Refusal, RegionKey, Regions};
use proptest::prelude::*;

#[test]
fn a_file_stays_readable_when_its_name_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::File::create(&path).unwrap().write_all(b"0123456789").unwrap();
    let regions = Regions::new();
    let region = FileRegion::new(std::fs::File::open(&path).unwrap()).unwrap();
    let key = regions.register(Arc::new(region)).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut into = [0; 4];
    regions.read(&key, 3, &mut into).unwrap();
    assert_eq!(&into, b"3456");
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let regions = Regions::new();
    let region = FileRegion::new(file.try_clone().unwrap()).unwrap();
    let key = regions.register(Arc::new(region)).unwrap();
    file.set_len(4096).unwrap();
    let refusal = regions.read(&key, 4096, &mut [0; 10]).unwrap_err();
    assert!(matches!(refusal, Refusal::Failed { .. }), "{refusal}");
}

#[test]
fn keys_do_not_show_their_secret() {
    let regions = Regions::new();
    let key = regions.register(Arc::new(vec![0; 4])).unwrap();
    assert_eq!(RegionKey::from_bytes(&key.to_bytes()), key);
    let shown = format!("{key:?}");
    assert!(shown.ends_with("generation: 1, .. }"), "{shown}");
}

#[test]
fn a_removed_region_is_unknown() {
    let regions = Regions::new();
    let key = regions.register(Arc::new(vec![1, 2, 3])).unwrap();
    assert!(regions.remove(key.id));
    assert!(!regions.remove(key.id));
    assert!(regions.revoke(key.id).unwrap().is_none());
    assert_eq!(regions.read(&key, 0, &mut [0]).unwrap_err(), Refusal::UnknownRegion);
}

proptest! {
    #[test]
    fn bounds_are_those_of_the_region(bytes in 0_usize..100, offset in any::<u8>(), len in 0_usize..100) {
        let regions = Regions::new();
        let region: Vec<u8> = (0..bytes as u8).collect();
        let key = regions.register(Arc::new(region.clone())).unwrap();
        let mut into = vec![0xff; len];
        let from = usize::from(offset);
        match region.get(from..).and_then(|rest| rest.get(..len)) {
            Some(expected) => {
                regions.read(&key, offset.into(), &mut into).unwrap();
                prop_assert_eq!(into, expected);
            }
            None => {
                let refusal = regions.read(&key, offset.into(), &mut into).unwrap_err();
                prop_assert_eq!(refusal, Refusal::OutOfBounds { bytes: bytes as u64 });
                prop_assert!(into.iter().all(|byte| *byte == 0xff));
            }
        }
    }
}
