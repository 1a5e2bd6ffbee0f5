//! A pool whose tables, catalog and image metadata hold words that nobody wrote: everything that
//! reads them, and what repairs them.
//!
//! The input is a byte of flags and records of eleven bytes: an area, a word of it, a value. Each
//! run begins with the same sound pool of one image.
#![no_main]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use farfork_image::archive;
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::format::{Image, reseal};
use farfork_pool::{PinFile, Pool};
use farfork_types::{CHUNK_BYTES, Cid};
use libfuzzer_sys::fuzz_target;

/// Superblock, nodes, images, pins, chunks, catalog, metadata of the image: where, and how many
/// words, as the pool's layout has it.
const AREAS: [(u64, u64); 7] = [
    (0, 6),
    (0x1000, 1024),
    (0x3000, 8192),
    (0x13000, 65536),
    (0x93000, 2 * CHUNKS),
    (CHUNK_BYTES, 512),
    (2 * CHUNK_BYTES, 2048),
];
const CHUNKS: u64 = 12;
/// Bytes at the start of each chunk that a run may change.
const CHANGED: usize = 64 << 10;
const TABLES: usize = 0x94000;

// Flags: which checksums are made right again.
const SUPERBLOCK: u8 = 1;
const IMAGE: u8 = 2;
const ENTRY: u8 = 4;
const METADATA: u8 = 8;
/// Reads the pages, too.
const CONTENT: u8 = 16;

struct Pristine {
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
    /// The same, up to the changes of a run.
    changed: Mutex<Vec<u8>>,
    cid: Cid,
}

fn pristine() -> &'static Pristine {
    static PRISTINE: OnceLock<Pristine> = OnceLock::new();
    PRISTINE.get_or_init(|| make().expect("cannot make a pool; are the seeds there?"))
}

fn make() -> Result<Pristine, Box<dyn std::error::Error>> {
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/archive/whole");
    let path = std::env::temp_dir().join(format!("farfork-fuzz-{}", std::process::id()));
    let pool = Pool::create(&path, CHUNKS * CHUNK_BYTES)?;
    let (cid, held) = archive::read(&pool, std::fs::read(seed)?.as_slice(), &mut |_, _| ())?;
    drop(held);
    Catalog::open(&pool)?.set(&"a/b".parse()?, cid)?;
    let bytes = std::fs::read(&path)?;
    drop(pool);
    Pool::destroy(&path)?; // with its cgroup
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    file.write_all_at(&bytes, 0)?;
    let changed = Mutex::new(bytes.clone());
    Ok(Pristine { path, file, bytes, changed, cid })
}

fuzz_target!(|input: &[u8]| {
    let pristine = pristine();
    let Some((flags, records)) = input.split_first() else { return };
    let mut bytes = pristine.changed.lock().unwrap_or_else(PoisonError::into_inner);
    for part in parts(&bytes) {
        bytes[part.clone()].copy_from_slice(&pristine.bytes[part]);
    }
    for record in records.chunks_exact(11).take(64) {
        let (start, words) = AREAS[usize::from(record[0]) % AREAS.len()];
        let word = u64::from(u16::from_le_bytes([record[1], record[2]])) % words;
        let at = (start + word * 8) as usize;
        bytes[at..at + 8].copy_from_slice(&record[3..]);
    }
    seal(*flags, &mut bytes);
    let file = &pristine.file;
    for part in parts(&bytes) {
        file.write_all_at(&bytes[part.clone()], part.start as u64).expect("the file is there");
    }
    let _ = read(pristine, flags & CONTENT != 0);
});

/// What a run may change: the tables, and the start of every chunk.
fn parts(bytes: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let starts = (CHUNK_BYTES as usize..bytes.len()).step_by(CHUNK_BYTES as usize);
    std::iter::once(0..TABLES).chain(starts.map(|start| start..start + CHANGED))
}

/// Everything that looks at a pool, then everything that changes it.
fn read(pristine: &Pristine, with_content: bool) -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::open(&pristine.path)?;
    let name: ImageName = "a/b".parse()?;
    let info = pool.info()?;
    let cids = info.images.iter().filter_map(|image| image.cid.parse::<Cid>().ok());
    for cid in cids.chain([pristine.cid]) {
        if let Ok(image) = Image::read(&pool, cid)
            && with_content
        {
            let _ = image.damaged_chunks(&pool);
            let _ = archive::write(&pool, &image, std::io::sink(), &mut |_, _| ());
        }
    }
    for chunk in 0..CHUNKS {
        let _ = pool.image_at(chunk * CHUNK_BYTES)?.map(|extents| Image::read_at(&pool, extents));
    }
    if let Ok(catalog) = Catalog::open(&pool) {
        let _ = (catalog.get(&name), catalog.list(), catalog.names_of(pristine.cid));
        let _ = (catalog.repair(), catalog.remove(&name), catalog.set(&name, pristine.cid));
    }
    let pins = PinFile::open(&pristine.path.with_extension("pins"))?;
    if let Ok(row) = pool.register_node("n", &pins) {
        let _ = (pool.pin(row.slot(), pristine.cid), pool.remove(pristine.cid));
        let _ = (pool.reconcile(row.slot(), &pins), pool.unpin(row.slot(), pristine.cid));
    }
    let _ = pool.forget_node("n", Some(&pins));
    pool.check()?;
    let again = pool.check()?;
    // What is given back or emptied is so at once.
    let is_new = |finding: &farfork_pool::Finding| {
        use farfork_pool::Finding::*;
        matches!(finding, Orphan { .. } | UncleanFree { .. } | LeftByRemoval { .. })
    };
    assert!(!again.findings.iter().any(is_new), "{:?}", again.findings);
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn seal(flags: u8, bytes: &mut [u8]) {
    if flags & METADATA != 0 {
        let start = 2 * CHUNK_BYTES as usize;
        let length = word(bytes, start + 32).min(CHUNK_BYTES) as usize;
        reseal(&mut bytes[start..start + length]);
    }
    if flags & SUPERBLOCK != 0 {
        bytes[12..16].fill(0);
        let sum = crc32c::crc32c(&bytes[..48]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    if flags & IMAGE != 0 {
        seal_image(bytes);
    }
    if flags & ENTRY != 0 {
        seal_entry(bytes);
    }
}

/// As the records of the first image say that it lies.
fn seal_image(bytes: &mut [u8]) {
    let at = 0x3000;
    let mut sum = crc32c::crc32c(&bytes[at + 8..at + 24]);
    let mut add = |word: u64| sum = crc32c::crc32c_append(sum, &word.to_le_bytes());
    [0, word(bytes, at + 24), word(bytes, at + 32)].into_iter().for_each(&mut add);
    let mut chunk = half(bytes, at + 40);
    for _ in 0..half(bytes, at + 52).min(64) {
        let record = 0x93000 + chunk as usize * 16;
        if u64::from(chunk) >= CHUNKS {
            return;
        }
        [u64::from(chunk) * CHUNK_BYTES, half(bytes, record + 8).into()]
            .into_iter()
            .for_each(&mut add);
        chunk = half(bytes, record + 12);
    }
    bytes[at + 48..at + 52].copy_from_slice(&sum.to_le_bytes());
}

/// The catalog's first entry.
fn seal_entry(bytes: &mut [u8]) {
    let at = CHUNK_BYTES as usize + 64;
    let name = at + 40..at + 40 + (word(bytes, at + 39 * 8) as usize).min(34 * 8);
    let tag = crc32c::crc32c(&bytes[name.clone()]);
    let parts = [at..at + 8, at + 16..at + 32, at + 32..at + 40, name];
    let sum = parts.into_iter().fold(0, |sum, part| crc32c::crc32c_append(sum, &bytes[part]));
    let both = u64::from(tag) << 32 | u64::from(sum);
    bytes[at + 8..at + 16].copy_from_slice(&both.to_le_bytes());
}
