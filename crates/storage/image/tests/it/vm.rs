//! Snapshots of virtual machines: into a pool and back.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use farfork_image::error::ImageError;
use farfork_image::format::{DATA_AT, Image};
use farfork_image::header::Kind;
use farfork_image::tier;
use farfork_image::vm::{self, Extent, Imported, Metadata, Monitor, PageMap, Snapshot, VmError};
use farfork_pool::{Pool, PoolError, Quota};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use proptest::prelude::*;

const CID: Cid = Cid::from_bytes([7; 16]);

struct Bed {
    directory: tempfile::TempDir,
    pool: Pool,
}

impl Bed {
    fn new(chunks: u64) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::create(&directory.path().join("pool"), chunks * CHUNK_BYTES).unwrap();
        Bed { directory, pool }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A state, and a memory of which these pages have content.
    fn files(&self, pages: u64, stored: impl IntoIterator<Item = u64>) -> (PathBuf, PathBuf) {
        let (state, memory) = (self.path("state"), self.path("memory"));
        std::fs::write(&state, b"{\"cpus\": 1}").unwrap();
        let file = File::create(&memory).unwrap();
        file.set_len(pages * PAGE_BYTES).unwrap();
        for page in stored {
            file.write_all_at(&content(page), page * PAGE_BYTES).unwrap();
        }
        (state, memory)
    }

    fn import(&self, (state, memory): &(PathBuf, PathBuf)) -> Result<Imported, VmError> {
        vm::import(&self.pool, Some("a"), state, memory, None, &mut |_, _, _| ())
    }

    /// Imports on top of another snapshot.
    fn import_on(&self, base: Cid, memory: &Path) -> Result<Imported, VmError> {
        let file = self.pool.find(base).unwrap();
        let snapshot = Snapshot::read_from(&file).unwrap();
        let base = Some((&snapshot, &file));
        vm::import(&self.pool, Some("a"), &self.path("state"), memory, base, &mut |_, _, _| ())
    }

    fn export(&self, cid: Cid) -> Result<(Vec<u8>, File), VmError> {
        let file = self.pool.find(cid).unwrap();
        let snapshot = Snapshot::read_from(&file)?;
        let path = self.path("memory.out");
        let memory = File::create(&path).unwrap();
        let mut last = (0, 0);
        let progress = &mut |done, all| last = (done, all);
        vm::export(&snapshot, &file, (&path, &memory), progress)?;
        assert_eq!(last.0, last.1);
        Ok((snapshot.state, File::open(path).unwrap()))
    }

    fn is_empty(&self) -> bool {
        let info = self.pool.info().unwrap();
        let files = |name| std::fs::read_dir(self.path(name)).unwrap().count();
        info.used_bytes == 0 && files("pool/new") == 0 && info.images.is_empty()
    }
}

/// A page whose words differ, with zeros in most of it for every third.
fn content(page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES as usize];
    let filled = if page.is_multiple_of(3) { 1 } else { bytes.len() };
    for (at, byte) in bytes.iter_mut().rev().take(filled).enumerate() {
        *byte = (page as u8 ^ at as u8) | 1;
    }
    bytes
}

fn same(one: &Path, other: &File) -> bool {
    let bytes = |file: &File| {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    bytes(&File::open(one).unwrap()) == bytes(other)
}

#[test]
fn both_files_come_back_and_zeros_cost_nothing() {
    let bed = Bed::new(32);
    // Two whole windows, single pages, and a last window that is cut.
    let stored = (512..1536).chain([3, 5, 6, 2000, 4099]);
    let files = bed.files(4100, stored);
    let made = bed.import(&files).unwrap();
    assert_eq!((made.raw_bytes, made.stored_bytes), (4100 * 4096, 1029 * 4096));
    assert!(made.pool_bytes < made.stored_bytes + (64 << 10), "{made:?}");
    let (state, memory) = bed.export(made.cid).unwrap();
    assert_eq!(state, std::fs::read(&files.0).unwrap());
    assert!(same(&files.1, &memory));
    assert!(memory.metadata().unwrap().blocks() * 512 <= made.stored_bytes + (64 << 10));
    let file = bed.pool.find(made.cid).unwrap();
    let snapshot = Snapshot::read_from(&file).unwrap();
    assert_eq!((snapshot.monitor(), made.monitor), (Monitor::Unknown, Monitor::Unknown));
    assert_eq!(snapshot.damaged_chunks(&file).unwrap(), [0usize; 0]);
    let footprint = snapshot.footprint(&file, &[1 << 4 | 1 << 5, 0]).unwrap();
    assert_eq!(footprint.zero_bytes + made.stored_bytes, footprint.raw_bytes);
    // Page 4 is zeros.
    assert_eq!((footprint.hot_bytes, footprint.cold_bytes), (4096, 1028 * 4096));
    assert_eq!(footprint.pool_bytes, made.pool_bytes);
    // Windows without zeros can be mapped by huge pages.
    let Extent::Stored { place, bytes } = snapshot.map.at(CHUNK_BYTES) else { panic!() };
    assert_eq!((place % CHUNK_BYTES, bytes), (0, 2 * CHUNK_BYTES));
    assert_eq!(snapshot.map.at(7 * 4096), Extent::Zeros(505 * 4096));
}

/// Pages that changed, that became zeros, that were zeros, and neighbours of all of them, on top of a base.
#[test]
fn a_snapshot_of_changes_is_whole_with_its_base() {
    let bed = Bed::new(32);
    let files = bed.files(1600, (0..700).chain([900, 1100]));
    let base = bed.import(&files).unwrap();
    let (changes, merged) = (bed.path("changes"), bed.path("merged"));
    std::fs::copy(&files.1, &merged).unwrap();
    let [of_changes, whole] = [&changes, &merged].map(|path| {
        let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.set_len(1600 * PAGE_BYTES).unwrap();
        file
    });
    let write = |page: u64, bytes: &[u8]| {
        for file in [&of_changes, &whole] {
            file.write_all_at(bytes, page * PAGE_BYTES).unwrap();
        }
    };
    [5, 6, 512, 699, 700, 1500].iter().for_each(|page| write(*page, &content(page + 77)));
    [7, 100, 900, 1000].iter().for_each(|page| write(*page, &[0; PAGE_BYTES as usize]));
    let made = bed.import_on(base.cid, &changes).unwrap();
    // 702 pages, without three that became zeros, with two that were.
    assert_eq!(made.stored_bytes, (702 - 3 + 2) * PAGE_BYTES);
    // Without four that have other content, too.
    let alike = (702 - 3 - 4) * PAGE_BYTES;
    assert_eq!((base.base_bytes, made.base_bytes), (0, alike));
    let [one, other] = [base.cid, made.cid].map(|cid| Snapshot::read(&bed.pool, cid).unwrap());
    assert_eq!((one.same_bytes([&other]), other.same_bytes([&one, &one])), (alike, alike));
    bed.pool.remove(base.cid).unwrap();
    let (_, memory) = bed.export(made.cid).unwrap();
    assert!(same(&merged, &memory));
    // Again on top of that, with nothing changed.
    let nothing = File::create(&changes).unwrap();
    nothing.set_len(1600 * PAGE_BYTES).unwrap();
    let again = bed.import_on(made.cid, &changes).unwrap();
    assert!(same(&merged, &bed.export(again.cid).unwrap().1));
    nothing.set_len(1599 * PAGE_BYTES).unwrap();
    let refused = bed.import_on(made.cid, &changes).unwrap_err().to_string();
    assert!(
        refused.contains("on top of its base: it has 6549504 bytes and the base's"),
        "{refused}"
    );
}

/// Pages are the same at one offset, wherever they lie in the images and however large the memories are.
#[test]
fn what_snapshots_have_alike_is_counted_once() {
    let bed = Bed::new(48);
    let read = |pages, stored: &[u64]| {
        let made = bed.import(&bed.files(pages, stored.iter().copied())).unwrap();
        Snapshot::read(&bed.pool, made.cid).unwrap()
    };
    let whole: Vec<u64> = (0..1100).collect();
    let one = read(1100, &whole);
    let [few, small, none] = [read(3000, &[7, 8, 600, 2000]), read(8, &[6, 7]), read(900, &[])];
    let alike =
        |one: &Snapshot, others: &[&Snapshot]| one.same_bytes(others.iter().copied()) / PAGE_BYTES;
    assert_eq!((alike(&one, &[]), alike(&one, &[&none]), alike(&none, &[&one])), (0, 0, 0));
    assert_eq!((alike(&one, &[&few]), alike(&few, &[&one])), (3, 3));
    assert_eq!((alike(&one, &[&small]), alike(&small, &[&one])), (2, 2));
    assert_eq!(alike(&one, &[&few, &small, &few]), 4);
    let file = bed.pool.find(one.id.cid).unwrap();
    let packed = vm::repack(&bed.pool, None, (&one, &file), &[600, 3], &mut |_, _, _| ()).unwrap();
    let packed = Snapshot::read(&bed.pool, packed.cid).unwrap();
    assert_eq!((alike(&packed, &[&one]), alike(&packed, &[&few])), (1100, 3));
}

/// Each part of an import goes from its start to its end, also of a memory that ends in a hole.
#[test]
fn an_import_shows_how_far_it_is() {
    let bed = Bed::new(32);
    let (state, memory) = bed.files(4000, (3..1500).chain([2900]));
    let mut shown: Vec<(&str, u64, u64)> = Vec::new();
    let progress = &mut |doing, done, all| shown.push((doing, done, all));
    let made = vm::import(&bed.pool, None, &state, &memory, None, progress).unwrap();
    let ends = [("reading", made.raw_bytes), ("importing", made.stored_bytes)];
    for (doing, bytes) in ends {
        let part: Vec<_> = shown.iter().filter(|step| step.0 == doing).collect();
        assert!(part.len() > 2 && part.is_sorted() && part.iter().all(|step| step.2 == bytes));
        assert_eq!(part.last().map(|step| step.1), Some(bytes), "{doing}");
    }
    assert!(shown.is_sorted_by_key(|step| step.0 == "importing"), "{shown:?}");
    let file = bed.pool.find(made.cid).unwrap();
    let snapshot = Snapshot::read_from(&file).unwrap();
    shown.clear();
    let progress = &mut |doing, done, all| shown.push((doing, done, all));
    vm::repack(&bed.pool, None, (&snapshot, &file), &[5], progress).unwrap();
    assert!(shown.is_sorted());
    assert_eq!(shown.last(), Some(&("repacking", made.stored_bytes, made.stored_bytes)));
}

#[test]
fn a_memory_of_zeros_is_a_snapshot_too() {
    let bed = Bed::new(8);
    let files = bed.files(1000, []);
    let made = bed.import(&files).unwrap();
    assert_eq!((made.stored_bytes, made.pool_bytes), (0, 8192));
    assert!(same(&files.1, &bed.export(made.cid).unwrap().1));
}

/// The metadata of many single pages does not fit before the data.
#[test]
fn a_large_state_lies_behind_the_pages() {
    let bed = Bed::new(16);
    let files = bed.files(3000, (0..3000).step_by(2));
    std::fs::write(&files.0, vec![9; 3 << 20]).unwrap();
    let made = bed.import(&files).unwrap();
    let (state, memory) = bed.export(made.cid).unwrap();
    assert!(state == vec![9; 3 << 20] && same(&files.1, &memory));
}

#[test]
fn what_is_not_a_snapshot_is_refused_in_words() {
    let bed = Bed::new(8);
    let files = bed.files(16, [1]);
    let refused = |files: (&Path, &Path), words: &[&str]| {
        let error = bed.import(&(files.0.to_owned(), files.1.to_owned())).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "no {word:?} in: {error}");
        }
        assert!(bed.is_empty(), "{error}");
    };
    let (state, memory) = (files.0.as_path(), files.1.as_path());
    let other = bed.path("other");
    refused((&other, memory), &["other", "No such file"]);
    refused((state, bed.directory.path()), &["not a regular file"]);
    std::fs::write(&other, b"").unwrap();
    refused((&other, memory), &["is empty"]);
    refused((state, &other), &["is empty"]);
    std::fs::write(&other, [1; 5000]).unwrap();
    refused((state, &other), &["5000 bytes", "multiple of 4096"]);
    std::fs::write(&other, [0, 0, 0, 0x64, 0x86, 0x84, 0x19, 0x10, 7, 6, b'1']).unwrap();
    refused((&other, memory), &["truncated or damaged"]);
    File::create(&other).unwrap().set_len(65 << 20).unwrap();
    refused((&other, memory), &["state file first"]);
    assert!(bed.import(&files).is_ok());
}

#[test]
fn a_pool_or_a_user_without_room_takes_nothing() {
    let bed = Bed::new(8);
    let files = bed.files(4096, 0..3600);
    let error = bed.import(&files).unwrap_err();
    assert!(matches!(error, VmError::Image(ImageError::Pool(PoolError::Full { .. }))), "{error}");
    assert!(bed.is_empty());
    let files = bed.files(4096, 0..1000);
    bed.pool.set_quota("a", Quota { bytes: 1 << 20, images: 9 }).unwrap();
    let error = bed.import(&files).unwrap_err();
    assert!(matches!(error, VmError::Image(ImageError::Pool(PoolError::OverQuota { .. }))));
    assert!(bed.is_empty());
    bed.pool.set_quota("a", Quota { bytes: 1 << 30, images: 1 }).unwrap();
    bed.import(&files).unwrap();
    assert!(bed.import(&files).is_err());
    assert_eq!(bed.pool.images().unwrap().len(), 1);
}

#[test]
fn each_kind_is_refused_where_the_other_is_needed() {
    let bed = Bed::new(32);
    let virtual_machine = bed.import(&bed.files(16, [1])).unwrap().cid;
    let processes = crate::common::publish(&bed.pool, &crate::common::model());
    let [vm_file, process_file] =
        [virtual_machine, processes].map(|cid| bed.pool.find(cid).unwrap());
    assert_eq!(Kind::of(&vm_file).unwrap(), Kind::VirtualMachine);
    assert_eq!(Kind::of(&process_file).unwrap(), Kind::Processes);
    let refused = Image::read_from(&vm_file).unwrap_err().to_string();
    assert!(refused.contains("farfork vm serve"), "{refused}");
    let refused = Snapshot::read_from(&process_file).unwrap_err().to_string();
    assert!(refused.contains("farfork restore"), "{refused}");
    assert!(Snapshot::read(&bed.pool, virtual_machine).is_ok());
}

#[test]
fn a_damaged_page_is_found_wherever_it_is_read() {
    let bed = Bed::new(16);
    let made = bed.import(&bed.files(2048, 0..1100)).unwrap();
    let path = bed.path(&format!("pool/images/{}", made.cid));
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0xaa], DATA_AT + CHUNK_BYTES + 4096 * 70 + 9).unwrap();
    let file = bed.pool.find(made.cid).unwrap();
    let snapshot = Snapshot::read_from(&file).unwrap();
    assert_eq!(snapshot.damaged_chunks(&file).unwrap(), [1]);
    assert!(bed.export(made.cid).unwrap_err().to_string().contains("does not match"));
    let mut page = vec![0; 4096];
    let read = |place: u64, page: &mut [u8]| snapshot.read_pages(&file, place, page);
    assert!(read(CHUNK_BYTES + 4096 * 69, &mut page).is_ok());
    assert!(read(CHUNK_BYTES + 4096 * 70, &mut page).is_err());
}

/// Sound metadata of a few runs.
pub fn metadata() -> Vec<u8> {
    static METADATA: OnceLock<Vec<u8>> = OnceLock::new();
    METADATA.get_or_init(make_metadata).clone()
}

fn make_metadata() -> Vec<u8> {
    let bed = Bed::new(16);
    let made = bed.import(&bed.files(1024, [0, 1, 5, 700])).unwrap();
    let snapshot = Snapshot::read(&bed.pool, made.cid).unwrap();
    let sums = vec![1; 4];
    vm::encode(&Metadata { map: snapshot.map, sums, state: snapshot.state }, CID)
}

#[test]
fn every_bit_of_the_metadata_is_checked() {
    let sound = metadata();
    let parsed = Metadata::parse(&sound, CID).unwrap();
    assert_eq!(vm::encode(&parsed, CID), sound);
    assert!(Metadata::parse(&sound, Cid::from_bytes([8; 16])).is_err());
    for at in 0..sound.len() {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        assert!(Metadata::parse(&changed, CID).is_err(), "byte {at}");
        assert!(Metadata::parse(&sound[..at], CID).is_err(), "{at} bytes");
    }
    // With right checksums, numbers that lie lead nowhere.
    for at in (32..96).step_by(8) {
        for value in [0, 1, 4095, 1 << 40, u64::MAX / 4 + 1, u64::MAX] {
            let mut changed = sound.clone();
            changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
            vm::reseal(&mut changed);
            if let Ok(read) = Metadata::parse(&changed, CID) {
                assert_eq!(read.sums.len() as u64 * PAGE_BYTES, read.map.stored_bytes());
            }
        }
    }
}

#[test]
fn another_version_is_named() {
    let mut other = metadata();
    other[8] = 9;
    vm::reseal(&mut other);
    let error = Metadata::parse(&other, CID).unwrap_err().to_string();
    assert!(error.contains("version 9"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_memory_comes_back(
        pages in 1u64..1500,
        stored in prop::collection::vec((any::<prop::sample::Index>(), 1u64..600), 0..6),
        written_zeros in any::<prop::sample::Index>(),
    ) {
        let bed = Bed::new(16);
        let stored: Vec<u64> = stored
            .iter()
            .flat_map(|(at, count)| {
                let first = at.index(pages as usize) as u64;
                first..(first + count).min(pages)
            })
            .collect();
        let files = bed.files(pages, stored.iter().copied());
        let zeros = written_zeros.index(pages as usize) as u64;
        let file = File::options().write(true).open(&files.1).unwrap();
        file.write_all_at(&[0; 4096], zeros * PAGE_BYTES).unwrap();
        drop(file);
        let made = bed.import(&files).unwrap();
        let distinct: std::collections::BTreeSet<u64> =
            stored.into_iter().filter(|page| *page != zeros).collect();
        prop_assert_eq!(made.stored_bytes, distinct.len() as u64 * PAGE_BYTES);
        prop_assert!(same(&files.1, &bed.export(made.cid).unwrap().1));
        let snapshot = Snapshot::read(&bed.pool, made.cid).unwrap();
        let map: &PageMap = &snapshot.map;
        prop_assert_eq!(map.runs().iter().map(|run| run.bytes).sum::<u64>(), map.stored_bytes());
    }
}

/// Hot pages come to lie together, the others may lie on another node, and nothing changes what is exported.
#[test]
fn a_repacked_snapshot_has_its_cold_chunks_far() {
    let bed = Bed::new(48);
    // One hot page in each window, which are all stored but for one page each.
    let files = bed.files(4096, (0..4096).filter(|page| page % 512 != 7));
    let made = bed.import(&files).unwrap();
    let hot: Vec<u32> = (0..8).rev().map(|window| window * 512 + 9).chain([7, 9999]).collect();
    let mut bits = vec![0u64; 64];
    hot.iter().filter(|page| **page < 4096).for_each(|page| {
        bits[*page as usize / 64] |= 1 << (page % 64);
    });
    let file = bed.pool.find(made.cid).unwrap();
    let before = Snapshot::read_from(&file).unwrap();
    assert!(before.cold_chunks(&bits).is_empty() && before.map.chunks() == 8);
    let packed = vm::repack(&bed.pool, Some("a"), (&before, &file), &hot, &mut |_, _, _| ());
    let cid = packed.unwrap().cid;
    let file = bed.pool.find(cid).unwrap();
    let snapshot = Snapshot::read_from(&file).unwrap();
    let cold = snapshot.cold_chunks(&bits);
    assert_eq!(cold, (1..8).collect());
    let Extent::Stored { place, .. } = snapshot.map.at((7 * 512 + 9) * PAGE_BYTES) else {
        panic!()
    };
    assert_eq!(place, 0);
    assert!(same(&files.1, &bed.export(cid).unwrap().1));
    // The other node has the same file.
    let other = Pool::create(&bed.path("other"), 48 * CHUNK_BYTES).unwrap();
    tier::pull(&other, None, &file, &mut |_, _| ()).unwrap();
    let side = || File::open(bed.path(&format!("other/images/{cid}"))).unwrap();
    let whole = bed.pool.find(cid).unwrap().with_far_file(side()).unwrap();
    let node =
        tier::FarNode { address: "a:1".into(), key: "/key".into(), tls: None, deadline_ms: 5000 };
    tier::retier(&bed.pool, &whole, &cold, &node, &mut |_, _| ()).unwrap();
    let file = bed.pool.find(cid).unwrap();
    let footprint = snapshot.footprint(&file, &bits).unwrap();
    assert_eq!(footprint.far_bytes, snapshot.map.stored_bytes() - CHUNK_BYTES);
    assert!(footprint.pool_bytes < CHUNK_BYTES + (200 << 10), "{footprint:?}");
    assert_eq!(snapshot.damaged_chunks(&file).unwrap(), [0usize; 0]);
    assert!(bed.export(cid).is_err(), "far bytes were made up");
    let mut page = vec![0; PAGE_BYTES as usize];
    snapshot.read_memory(&file, (7 * 512 + 9) * PAGE_BYTES, &mut page).unwrap();
    assert_eq!(page, content(7 * 512 + 9));
    assert!(snapshot.read_memory(&file, 512 * PAGE_BYTES, &mut page).is_err());
    let whole = file.with_far_file(side()).unwrap();
    snapshot.read_memory(&whole, 512 * PAGE_BYTES, &mut page).unwrap();
    assert_eq!(page, content(512));
    tier::retier(&bed.pool, &whole, &Default::default(), &node, &mut |_, _| ()).unwrap();
    assert!(same(&files.1, &bed.export(cid).unwrap().1));
}
