//! The file of an image: what it takes, what it holds, and what is damaged in it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use farfork_image::error::ImageError;
use farfork_image::format::{self, DATA_AT, Image};
use farfork_image::layout;
use farfork_image::model::*;
use farfork_image::store::Draft;
use farfork_pool::{Pool, mount_tmpfs, unmount_tmpfs};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};

use crate::common::{fill_and_publish, model, publish, stored_bytes};
use crate::hostile::small_pool;

// The file's header.
const HEADER_BYTES: u64 = 80;
const CHECKSUM: usize = 12;
const CID: u64 = 16;
const KIND: u64 = 32;
const META_OFFSET: u64 = 40;
const META_BYTES: u64 = 48;
const DATA_OFFSET: u64 = 56;
const DATA_CHUNKS: u64 = 64;
const FILE_BYTES: u64 = 72;
/// Where small metadata begins.
const META_AT: u64 = PAGE_BYTES;

fn path_of(pool: &Pool, cid: Cid) -> PathBuf {
    pool.path().join(format!("images/{cid}"))
}

/// Opens the file of a published image for writing, which nothing else does.
fn opened(pool: &Pool, cid: Cid) -> File {
    let path = path_of(pool, cid);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    file
}

/// Changes bytes of a published image.
pub fn write_at(pool: &Pool, cid: Cid, offset: u64, bytes: &[u8]) {
    opened(pool, cid).write_all_at(bytes, offset).unwrap();
}

fn word_at(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).unwrap();
    u64::from_le_bytes(bytes)
}

/// Makes the checksum of the file's header right again.
fn seal_header(file: &File) {
    let mut header = [0; HEADER_BYTES as usize];
    file.read_exact_at(&mut header, 0).unwrap();
    header[CHECKSUM..CHECKSUM + 4].fill(0);
    let sum = crc32c::crc32c(&header);
    file.write_all_at(&sum.to_le_bytes(), CHECKSUM as u64).unwrap();
}

fn damage(pool: &Pool, cid: Cid) -> String {
    let error = Image::read(pool, cid).unwrap_err().to_string();
    assert!(error.contains(&cid.to_string()), "{error}");
    error
}

fn region(start: u64, pages: u64, backing: Backing) -> Region {
    let traits = RegionTraits::default();
    Region { start, end: start + pages * PAGE_BYTES, prot: 3, backing, traits }
}

/// A process of `windows` windows, each with a few stored pages, and a chunk of its own: mappings lead
/// from one to the next.
fn sparse_model(windows: u64) -> Model {
    const BASE: u64 = 0x5555_5540_0000;
    let mut model = model();
    model.members[0].descriptors.clear();
    (model.objects, model.files, model.content) = Default::default();
    let edges = (0..windows / 2).map(|pair| BASE + (3 * pair + 1) * CHUNK_BYTES);
    let memory = &mut model.members[0].memory;
    memory.regions =
        edges.clone().map(|edge| region(edge - 2 * PAGE_BYTES, 5, Backing::Anonymous)).collect();
    let window = |address, first: usize| StoredWindow {
        address,
        pages: std::array::from_fn(
            |word| if word == first / 64 { 3u64 << (first % 64) } else { 0 },
        ),
    };
    memory.stored.windows =
        edges.flat_map(|edge| [window(edge - CHUNK_BYTES, 510), window(edge, 0)]).collect();
    memory.stored.segments = layout::segments(&memory.regions, &memory.stored.windows, 0);
    assert_eq!((model.validate(), model.chunks() as u64), (Ok(()), windows));
    model
}

/// The room of a draft is an estimate until it fits: it may be too much, or too little.
#[test]
fn an_image_takes_what_it_needs_whatever_was_reserved() {
    for reserved in [0, 1, 2, 5] {
        let directory = tempfile::tempdir().unwrap();
        let pool = small_pool(&directory);
        let mut draft = Draft::begin(&pool, None).unwrap();
        draft.reserve(reserved).unwrap();
        let model = model();
        draft.fit(&model).unwrap();
        let made = fill_and_publish(draft, &model);
        let file = pool.find(made.cid).unwrap();
        let image = Image::read_from(&file).unwrap();
        let least = stored_bytes(&model) + image.plan_bytes;
        assert!(
            (least..least + (64 << 10)).contains(&made.pool_bytes),
            "{reserved} reserved, {made:?}"
        );
        assert_eq!(pool.info().unwrap().used_bytes, made.pool_bytes);
        assert_eq!((&image.model, image.damaged_chunks(&file).unwrap()), (&model, vec![]));
        assert_eq!(file.read(format::chunk_offset(0) + 509 * 4096, 1).unwrap(), [253]);
    }
}

fn demand_little_room(pool: &Pool, windows: u64) {
    let model = sparse_model(windows);
    let mut draft = Draft::begin(pool, None).unwrap();
    draft.fit(&model).unwrap();
    let made = fill_and_publish(draft, &model);
    let file = pool.find(made.cid).unwrap();
    assert!(file.id.bytes > (windows - 1) * CHUNK_BYTES);
    let metadata = word_at(file.file(), META_BYTES);
    let most = stored_bytes(&model) + metadata + windows * (64 << 10);
    assert!(made.pool_bytes < most, "{} bytes of {most}", made.pool_bytes);
    assert_eq!(made.pool_bytes, file.file().metadata().unwrap().blocks() * 512);
    assert_eq!(pool.info().unwrap().images[0].bytes, made.pool_bytes);
    let image = Image::read_from(&file).unwrap();
    assert_eq!(image.damaged_chunks(&file).unwrap(), [0usize; 0]);
}

#[test]
fn an_image_of_sparse_windows_takes_little_more_than_what_it_stores() {
    let directory = tempfile::tempdir().unwrap();
    demand_little_room(&small_pool(&directory), 10);
}

/// The kernel takes a huge page for every chunk, and splits it when parts are given back.
#[test]
fn sparse_windows_take_little_where_huge_pages_are_the_rule() {
    let directory = tempfile::tempdir().unwrap();
    if let Err(error) = mount_tmpfs(directory.path(), 64 << 20) {
        println!("nothing to do: {error}");
        return;
    }
    let _mounted = Mounted(directory.path().to_owned());
    let pool = Pool::create(directory.path(), 32 * CHUNK_BYTES).unwrap();
    demand_little_room(&pool, 10);
}

/// Unmounts a pool's tmpfs when dropped, also when the test has failed.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Pool::destroy_used(&self.0);
        let _ = unmount_tmpfs(&self.0);
    }
}

#[test]
fn holes_read_as_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let model = sparse_model(4);
    let file = pool.find(publish(&pool, &model)).unwrap();
    let image = Image::read_from(&file).unwrap();
    let mut chunk = vec![0xaa; CHUNK_BYTES as usize];
    for (index, pages) in model.chunk_pages().iter().enumerate() {
        assert!(image.read_chunk(&file, index, &mut chunk).unwrap(), "chunk {index}");
        for (page, bytes) in chunk.chunks(PAGE_BYTES as usize).enumerate() {
            let is_stored = pages[page / 64] >> (page % 64) & 1 != 0;
            let expected = if is_stored { page as u8 | 1 } else { 0 };
            assert!(bytes.iter().all(|byte| *byte == expected), "chunk {index}, page {page}");
        }
    }
}

#[test]
fn the_file_ends_with_the_last_segment_within_its_chunk() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let mut model = model();
    // The last chunk has a window of four pages.
    (model.objects, model.content) = Default::default();
    model.files.truncate(4);
    model.members[0].descriptors.truncate(4);
    model.members[0].memory.regions.truncate(3);
    let file = pool.find(publish(&pool, &model)).unwrap();
    let image = Image::read_from(&file).unwrap();
    assert_eq!(file.id.bytes, format::chunk_offset(1) + 4 * PAGE_BYTES);
    let mut chunk = vec![0xaa; CHUNK_BYTES as usize];
    assert!(image.read_chunk(&file, 1, &mut chunk).unwrap());
    assert!(chunk[4 * PAGE_BYTES as usize..].iter().all(|byte| *byte == 0));
    assert_eq!(chunk[PAGE_BYTES as usize], 1);
}

#[test]
fn metadata_that_does_not_fit_before_the_data_lies_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let mut model = model();
    let one = region(0x6000_0000_0000, 1, Backing::Anonymous);
    let many = (0..60_000).map(|index| Region {
        start: one.start + 2 * index * PAGE_BYTES,
        end: one.end + 2 * index * PAGE_BYTES,
        ..one.clone()
    });
    model.members[0].memory.regions.extend(many);
    let file = pool.find(publish(&pool, &model)).unwrap();
    let image = Image::read_from(&file).unwrap();
    let data_end = DATA_AT + model.chunks() as u64 * CHUNK_BYTES;
    assert!(word_at(file.file(), META_BYTES) > DATA_AT - META_AT);
    assert_eq!(word_at(file.file(), META_OFFSET), data_end);
    assert!(image.plan_offset > data_end);
    assert_eq!(image.model, model);
    assert_eq!(image.damaged_chunks(&file).unwrap(), [0usize; 0]);
    let plan = file.read(image.plan_offset, image.plan_bytes).unwrap();
    assert!(plan == image.plan);

    // A place before the data, where other metadata would be.
    let written = opened(&pool, file.id.cid);
    written.write_all_at(&META_AT.to_le_bytes(), META_OFFSET).unwrap();
    seal_header(&written);
    let error = damage(&pool, file.id.cid);
    assert!(error.contains("its metadata is not where it should be"), "{error}");
}

#[test]
fn a_changed_byte_of_the_header_or_of_the_metadata_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let cid = publish(&pool, &model());
    let file = opened(&pool, cid);
    let end = META_AT + word_at(&file, META_BYTES);
    for at in (0..HEADER_BYTES).chain(META_AT..end) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << (at % 8)], at).unwrap();
        match Image::read(&pool, cid) {
            Err(ImageError::Damaged { .. } | ImageError::Version { .. }) => {}
            other => panic!("byte {at}: {:?}", other.map(|_| "read")),
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert_eq!(Image::read(&pool, cid).unwrap().model, model());
}

/// Numbers with a right checksum that are not those of the file.
#[test]
fn a_header_that_fits_its_checksum_and_not_its_file_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let cid = publish(&pool, &model());
    let file = opened(&pool, cid);
    let [metadata, bytes] = [META_BYTES, FILE_BYTES].map(|at| word_at(&file, at));
    let cases = [
        (0, 1, "its magic number is wrong"),
        (CID, 5, "that of another image"),
        (KIND, 2, "is a virtual machine snapshot"),
        (KIND, 3, "a kind that this farfork does not know"),
        (KIND, 0, "a kind that this farfork does not know"),
        (META_OFFSET, 2 * META_AT, "its metadata is not where it should be"),
        (META_OFFSET, u64::MAX, "its metadata is not where it should be"),
        (META_BYTES, metadata - PAGE_BYTES, "its header is that of another image"),
        (META_BYTES, metadata + PAGE_BYTES, "its header is that of another image"),
        (META_BYTES, 0, "its metadata is too short for a header"),
        (META_BYTES, DATA_AT, "its metadata is not where it should be"),
        (META_BYTES, u64::MAX, "its metadata is not where it should be"),
        (DATA_OFFSET, 0, "that of another image"),
        (DATA_CHUNKS, 0, "its number of chunks"),
        (DATA_CHUNKS, 4, "its number of chunks"),
        (DATA_CHUNKS, u64::MAX, "its number of chunks"),
        (FILE_BYTES, bytes - PAGE_BYTES, "its file is not as long as it was"),
        (FILE_BYTES, u64::MAX, "its file is not as long as it was"),
    ];
    for (at, value, expected) in cases {
        let before = word_at(&file, at);
        file.write_all_at(&value.to_le_bytes(), at).unwrap();
        seal_header(&file);
        let error = damage(&pool, cid);
        assert!(error.contains(expected), "{value:#x} at {at}: {error}");
        file.write_all_at(&before.to_le_bytes(), at).unwrap();
        seal_header(&file);
    }
    assert_eq!(Image::read(&pool, cid).unwrap().model, model());
    // Beyond any file, and as far as a product of chunks could lead around.
    let cases = [(u64::MAX, u64::MAX), (u64::MAX, 1 << 43), (DATA_AT, u64::MAX), (1 << 63, 1)];
    for (metadata, chunks) in cases {
        let offset = format::meta_offset(metadata, chunks);
        for (at, value) in [(META_BYTES, metadata), (DATA_CHUNKS, chunks), (META_OFFSET, offset)] {
            file.write_all_at(&value.to_le_bytes(), at).unwrap();
        }
        seal_header(&file);
        let error = damage(&pool, cid);
        assert!(error.contains("is truncated"), "{metadata:#x} {chunks:#x}: {error}");
    }
}

#[test]
fn a_file_of_another_version_is_an_error_with_both_versions() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let cid = publish(&pool, &model());
    write_at(&pool, cid, 8, &99u32.to_le_bytes());
    let expected = format!("format version 99, this farfork reads {}", format::VERSION);
    assert!(damage(&pool, cid).contains(&expected));
}

#[test]
fn a_file_of_another_length_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let cid = publish(&pool, &model());
    let file = opened(&pool, cid);
    let length = file.metadata().unwrap().len();
    for other in [0, 1, 79, 80, META_AT, META_AT + 88, DATA_AT, length - 1, length + 1] {
        let changed = pool_copy(&pool, cid);
        opened(&changed.1, cid).set_len(other).unwrap();
        damage(&changed.1, cid);
        if other >= HEADER_BYTES {
            // As if it had been made with that length.
            let file = opened(&changed.1, cid);
            file.write_all_at(&other.to_le_bytes(), FILE_BYTES).unwrap();
            seal_header(&file);
            match Image::read(&changed.1, cid) {
                Err(_) => assert!(other < length),
                Ok(image) => assert_eq!((image.model, other), (model(), length + 1)),
            }
        }
    }
}

/// Another pool, which has a copy of the image.
fn pool_copy(pool: &Pool, cid: Cid) -> (tempfile::TempDir, Pool) {
    let directory = tempfile::tempdir().unwrap();
    let copy = small_pool(&directory);
    fs::copy(path_of(pool, cid), path_of(&copy, cid)).unwrap();
    (directory, copy)
}

#[test]
fn the_file_of_one_image_under_the_id_of_another_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let cid = publish(&pool, &model());
    let other = Cid::from_bytes([9; 16]);
    fs::rename(path_of(&pool, cid), path_of(&pool, other)).unwrap();
    let error = damage(&pool, other);
    assert!(error.contains("its header is that of another image"), "{error}");
}

#[test]
fn an_image_is_read_to_its_end_after_it_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    let pool = small_pool(&directory);
    let file = pool.find(publish(&pool, &model())).unwrap();
    pool.remove(file.id.cid).unwrap();
    assert!(Image::read(&pool, file.id.cid).is_err());
    let image = Image::read_from(&file).unwrap();
    assert_eq!((&image.model, image.damaged_chunks(&file).unwrap()), (&model(), vec![]));
}
