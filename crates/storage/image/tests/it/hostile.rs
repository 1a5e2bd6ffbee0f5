//! Bytes that were damaged by chance or on purpose: reading them ends in an error.

use farfork_image::archive::{self, ArchiveError, Reader};
use farfork_image::format::{self, DATA_AT, Image, Metadata};
use farfork_image::model::*;
use farfork_pool::{ImageFile, PageBits, Pool};
use farfork_types::{CHUNK_BYTES, Cid};
use proptest::prelude::*;

const CID: Cid = Cid::from_bytes([7; 16]);

pub fn metadata(model: &Model) -> Vec<u8> {
    let chunks = model.chunks();
    format::encode(model, CID, &vec![0; chunks])
}

/// Reads an archive without a pool, as far as it goes.
fn read_archive(bytes: &[u8]) -> Result<(), ArchiveError> {
    let mut reader = Reader::open(bytes)?;
    let chunks = reader.model().chunk_pages();
    for stored in &chunks {
        reader.chunk(stored, &mut vec![0; CHUNK_BYTES as usize])?;
    }
    reader.finish().map(drop)
}

pub fn small_pool(directory: &tempfile::TempDir) -> Pool {
    Pool::create(&directory.path().join("pool"), 12 * CHUNK_BYTES).unwrap()
}

/// What is known of the use of an image's pages.
fn access() -> PageBits {
    PageBits { accessed: vec![7, 0, 1], dirtied: vec![3], hot: vec![0, 1 << 63] }
}

/// A pool with one image, and that image as an archive.
fn exported(pool: &Pool) -> (Cid, Vec<u8>) {
    let cid = crate::common::publish(pool, &crate::common::model());
    pool.add_users_bits(cid, &access()).unwrap();
    let file = pool.find(cid).unwrap();
    let image = Image::read_from(&file).unwrap();
    let mut bytes = Vec::new();
    archive::write(pool, &file, &image, &mut bytes, &mut |_, _| ()).unwrap();
    (cid, bytes)
}

#[test]
fn an_archive_brings_back_every_byte() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let (old, bytes) = exported(&pool);
    let mut steps = Vec::new();
    let mut progress = |done, all| steps.push((done, all));
    let (new, _held) = archive::read(&pool, None, bytes.as_slice(), &mut progress).unwrap();
    assert_ne!(old, new);
    assert_eq!(steps, [(1, 3), (2, 3), (3, 3)]);
    let [old_file, new_file] = [old, new].map(|cid| pool.find(cid).unwrap());
    let [a, b] = [&old_file, &new_file].map(|file| Image::read_from(file).unwrap());
    assert_eq!((&a.model, &a.sums), (&b.model, &b.sums));
    assert_eq!(b.damaged_chunks(&new_file).unwrap(), [0usize; 0]);
    assert_eq!(old_file.id.bytes, new_file.id.bytes);
    let data = |file: &ImageFile| file.read(DATA_AT, file.id.bytes - DATA_AT).unwrap();
    assert!(data(&old_file) == data(&new_file));
    let kept = pool.access(new).unwrap();
    assert_eq!(kept, pool.access(old).unwrap());
    assert!(kept.accessed.starts_with(&access().accessed) && kept.hot.starts_with(&access().hot));
    // What little stands in the pages and a model, not two chunks of 2 MiB.
    assert!(bytes.len() < 64 << 10, "{} bytes", bytes.len());
}

#[test]
fn an_archive_that_is_cut_off_or_changed_anywhere_leaves_nothing_in_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let (cid, bytes) = exported(&pool);
    pool.remove(cid).unwrap();
    let import = |bytes: &[u8]| archive::read(&pool, None, bytes, &mut |_, _| ());
    for at in (0..bytes.len()).step_by(61).chain(bytes.len() - 20..bytes.len()) {
        let cut = import(&bytes[..at]);
        assert!(
            matches!(cut, Err(ArchiveError::CutOff | ArchiveError::NotAnArchive)),
            "cut at {at}"
        );
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(import(&changed).is_err(), "bit at {at}");
        assert_eq!(pool.info().unwrap().used_bytes, 0, "byte {at}");
    }
    assert!(import(&[bytes.as_slice(), b"x"].concat()).is_err());
    assert_eq!(pool.check().unwrap().findings, []);
}

#[test]
fn an_image_whose_chunk_changed_is_not_exported() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let file = pool.find(crate::common::publish(&pool, &crate::common::model())).unwrap();
    let image = Image::read_from(&file).unwrap();
    crate::file::write_at(&pool, file.id.cid, format::chunk_offset(1) + 9, b"!");
    let result = archive::write(&pool, &file, &image, std::io::sink(), &mut |_, _| ());
    assert!(result.unwrap_err().to_string().contains("does not match its sum"));
    assert_eq!(image.damaged_chunks(&file).unwrap(), [1]);
}

/// What is broken, and how.
type Break = (&'static str, fn(&mut Model));

fn object_backing(object: u32, offset: u64) -> Backing {
    Backing::Object { object, offset, is_shared: true, is_writable: true }
}

fn segment(id: u32) -> ObjectKind {
    let (is_removed, is_locked) = (false, false);
    ObjectKind::SystemV(SystemVSegment { id, key: 0, creator: (0, 0), is_removed, is_locked })
}

/// Each breaks one invariant.
fn broken() -> Vec<Break> {
    vec![
        ("no process", |m| m.members.clear()),
        ("content below its area", |m| {
            m.content.windows[0].address = 1 << 30;
            m.content.segments[0].address = 1 << 30;
        }),
        ("content on a process's", |m| m.content.segments[0].place = 0),
        ("no threads", |m| m.members[0].threads.clear()),
        ("an ended root", |m| m.members[0].kinship.ended = Some(0)),
        ("an ended process with threads", |m| {
            let mut ended = m.members[0].clone();
            (ended.kinship.parent, ended.kinship.ended) = (Some(0), Some(9));
            ended.descriptors.clear();
            ended.memory = Default::default();
            m.members.push(ended);
        }),
        ("registers", |m| m.members[0].threads[0].registers.truncate(26)),
        ("vector registers", |m| m.members[0].threads[0].xstate.truncate(500)),
        ("comm", |m| m.members[0].threads[0].comm = vec![b'a'; 16]),
        ("pending", |m| m.members[0].threads[0].pending.push(vec![1, 2])),
        ("process pending", |m| m.members[0].signals.pending.push(Vec::new())),
        ("signal", |m| m.members[0].signals.actions.push((65, [0; 4]))),
        ("relative exe", |m| m.members[0].process.exe = "a".into()),
        ("NUL in cwd", |m| m.members[0].process.cwd = "/a\0b".into()),
        ("region order", |m| m.members[0].memory.regions.reverse()),
        ("region overlap", |m| {
            m.members[0].memory.regions[0].end = m.members[0].memory.regions[1].start + 4096
        }),
        ("region alignment", |m| m.members[0].memory.regions[0].start += 1),
        ("huge pages that are cut", |m| m.members[0].memory.regions[0].traits.page_shift = 40),
        ("huge pages of no size", |m| m.members[0].memory.regions[0].traits.page_shift = 64),
        ("region end", |m| m.members[0].memory.regions[1].end = !0xfff),
        ("empty region", |m| {
            m.members[0].memory.regions[0].end = m.members[0].memory.regions[0].start
        }),
        ("window order", |m| m.members[0].memory.stored.windows.reverse()),
        ("object of a mapping", |m| m.members[0].memory.regions[3].backing = object_backing(1, 0)),
        ("object offset", |m| m.members[0].memory.regions[3].backing = object_backing(0, 1)),
        ("object of a file", |m| m.files[4] = OpenFile::Object { object: 9, flags: 0, offset: 0 }),
        ("object name", |m| m.objects[0].kind = ObjectKind::Memfd(vec![b'a'; 250])),
        ("object size", |m| m.objects[0].size = 1 << 60),
        ("empty anonymous object", |m| {
            m.objects[0].extents.clear();
            m.objects[0].kind = ObjectKind::Anonymous { no_reserve: false };
            m.objects[0].size = 0;
        }),
        ("a segment in the node's namespace", |m| m.objects[0].kind = segment(7)),
        ("segment id", |m| {
            (m.has_own_ipc, m.objects[0].kind) = (true, segment(1 << 31));
        }),
        ("empty segment", |m| {
            (m.has_own_ipc, m.objects[0].kind) = (true, segment(7));
            m.objects[0].extents.clear();
            m.objects[0].size = 0;
        }),
        ("a queue in the node's namespace", |m| m.queues = vec![MessageQueue::default()]),
        ("queue id", |m| {
            m.has_own_ipc = true;
            m.queues = vec![MessageQueue::default()];
            m.queues[0].identity.id = 1 << 31;
        }),
        ("empty set of semaphores", |m| {
            m.has_own_ipc = true;
            m.semaphores = vec![SemaphoreSet::default()];
        }),
        ("extent outside", |m| m.objects[0].extents[0].offset = 8192),
        ("extent alignment", |m| m.objects[0].extents[0].offset = 4097),
        ("extent length", |m| m.objects[0].extents[0].bytes = 1 << 21 | 4096),
        ("extent place", |m| m.objects[0].extents[0].stored = 0x5555_5540_0000),
        ("extent not stored", |m| m.objects[0].extents[0].stored += 1 << 21),
        ("protection keys", |m| m.members[0].memory.protection_keys = 1 << 16),
        ("empty filter", |m| {
            m.members[0].threads[0].filters =
                vec![SeccompFilter { instructions: Vec::new(), logs: false, by_prctl: false }];
        }),
        ("filters without end", |m| {
            let filter =
                SeccompFilter { instructions: vec![6; 4092], logs: false, by_prctl: false };
            m.members[0].threads[0].filters = vec![filter; 9];
        }),
        ("window alignment", |m| m.members[0].memory.stored.windows[0].address += 4096),
        ("window address", |m| m.members[0].memory.stored.windows[1].address = u64::MAX << 21),
        ("segment order", |m| m.members[0].memory.stored.segments.reverse()),
        ("segment overlap", |m| {
            m.members[0].memory.stored.segments[1].address =
                m.members[0].memory.stored.segments[0].address
        }),
        ("segment alignment", |m| m.members[0].memory.stored.segments[0].place += 1),
        ("segment place", |m| {
            // Its one stored page lies where nothing is, the one before on another's.
            let first = &mut m.members[0].memory.stored.segments[0];
            (first.bytes, first.place) = (3 * 4096, 509 * 4096);
        }),
        ("segment beyond", |m| m.members[0].memory.stored.segments[0].place += CHUNK_BYTES),
        ("segment across", |m| m.members[0].memory.stored.segments[0].place = CHUNK_BYTES - 4096),
        ("segment end", |m| m.members[0].memory.stored.segments[0].bytes = u64::MAX << 12),
        ("page without a segment", |m| m.members[0].memory.stored.windows[0].pages[5] = 1),
        ("guard", |m| m.members[0].memory.guards.push((8192, 4096))),
        ("vdso", |m| m.members[0].memory.vdso = (u64::MAX - 4095, 8192)),
        ("auxv", |m| m.members[0].memory.auxv = vec![0; 4096]),
        ("file index", |m| m.members[0].descriptors[0].file = 9),
        ("fd", |m| m.members[0].descriptors[0].fd = u32::MAX),
        ("watch of a missing process", |m| {
            let watches = vec![EpollWatch { member: 1, fd: 1, events: 1, data: 2 }];
            m.files[3] = OpenFile::Epoll { flags: 2, watches };
        }),
        ("handle of a missing process", |m| {
            m.files[3] = OpenFile::ProcessHandle { member: 1, flags: 2 }
        }),
        ("parent after child", |m| {
            m.members.push(m.members[0].clone());
            m.members[1].kinship.parent = Some(1);
        }),
        ("second without a parent", |m| m.members.push(m.members[0].clone())),
        ("fd order", |m| m.members[0].descriptors.reverse()),
        ("file offset", |m| {
            let file = FileStamp { path: "/a".into(), ..FileStamp::default() };
            m.members[0].memory.regions[0].backing = Backing::PrivateFile(file, !0xfff);
        }),
    ]
}

#[test]
fn a_model_that_breaks_an_invariant_is_damaged() {
    assert_eq!(crate::common::model().validate(), Ok(()));
    let whole = metadata(&crate::common::model());
    assert!(Metadata::parse(&whole, CID).is_ok());
    for (what, change) in broken() {
        let mut model = crate::common::model();
        change(&mut model);
        assert!(model.validate().is_err(), "{what}");
        // As it would stand in an image, with every checksum right.
        let mut bytes = metadata(&crate::common::model());
        assert!(crate::common::replace_model(&mut bytes, &model), "{what}");
        let error = Metadata::parse(&bytes, CID).unwrap_err().to_string();
        assert!(error.contains("is damaged"), "{what}: {error}");
    }
}

#[test]
fn a_model_that_is_large_only_in_words_is_compiled_at_once() {
    let mut model = crate::common::model();
    model.members[0].memory.regions.truncate(2);
    let all = Region { start: 1 << 47, end: 1 << 56, ..model.members[0].memory.regions[0].clone() };
    let traits = RegionTraits { wipe_on_fork: true, ..RegionTraits::default() };
    model.members[0].memory.regions.push(Region { traits, ..all });
    // Instances that all watch each other.
    let fds = 5..400u32;
    let watches: Vec<_> =
        fds.clone().map(|fd| EpollWatch { member: 0, fd, events: 1, data: 0 }).collect();
    for fd in fds {
        model.members[0].descriptors.push(Descriptor { fd, file: fd, cloexec: false });
        model.files.push(OpenFile::Epoll { flags: 2, watches: watches.clone() });
    }
    assert_eq!(model.validate(), Ok(()));
    let begun = std::time::Instant::now();
    metadata(&model);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if long() { 200_000 } else { 3_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn metadata_with_changed_bytes_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        sealed in any::<bool>(),
    ) {
        let mut bytes = metadata(&crate::common::model());
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        for (at, value) in changes.iter().take(bytes.len()) {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if sealed {
            format::reseal(&mut bytes);
        }
        if let Ok(read) = Metadata::parse(&bytes, CID) {
            // What is read can be compiled: that is what an import does with it.
            let _ = metadata(&read.model);
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_image(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(Metadata::parse(&bytes, CID).is_err());
        prop_assert!(read_archive(&bytes).is_err());
    }

    #[test]
    fn a_changed_archive_is_refused(at in any::<prop::sample::Index>(), bits in 1..=255u8) {
        let mut bytes = crate::common::archive().clone();
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        prop_assert!(read_archive(&bytes).is_err(), "byte {}", at);
    }
}

fn long() -> bool {
    std::env::var_os("FARFORK_TEST_LONG").is_some()
}
