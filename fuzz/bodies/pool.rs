//! A pool whose files hold bytes that nobody wrote: everything that reads them, and what repairs them.
//!
//! The input is a byte of flags and records of eleven bytes: a file, a word of it, a value. Each run begins
//! with the same sound pool of one image, which counts towards a user, has a name, and is pinned by a node.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use farfork_image::archive;
use farfork_image::catalog::{Catalog, ImageName};
use farfork_image::format::{Image, reseal};
use farfork_pool::{Finding, NodeRow, PageBits, PinFile, Pool, Quota};
use farfork_types::{CHUNK_BYTES, Cid};

// Flags.
/// Makes the checksums of headers right again.
const SEALED: u8 = 1;
/// Makes the checksum of the image's metadata right again.
const METADATA: u8 = 2;
/// Reads the pages, too.
const CONTENT: u8 = 4;

/// In a record's number of a file: the file ends at that word.
const CUT: u8 = 0x80;

/// Where the metadata of an image begins, and where its length stands in it.
const META_AT: usize = 4096;
const META_BYTES: usize = 32;

/// A file of the sound pool.
struct Piece {
    path: String,
    bytes: Vec<u8>,
    mode: u32,
    /// Bytes of it that its checksum is of; all if there are not so many.
    sealed: usize,
}

struct Sound {
    path: PathBuf,
    /// Superblock, image, node, the users' table, the node's table, limits.
    pieces: Vec<Piece>,
    /// The name's link.
    link: (String, PathBuf),
    cid: Cid,
    /// One run at a time.
    running: Mutex<()>,
}

/// One run; `seed` is an archive of the image.
pub fn run(input: &[u8], seed: impl Fn() -> Vec<u8>) {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    let sound = SOUND.get_or_init(|| make(&seed()).expect("a pool of one image can be made"));
    let Some((flags, records)) = input.split_first() else { return };
    let _running = sound.running.lock().unwrap_or_else(PoisonError::into_inner);
    let mut files: Vec<Vec<u8>> = sound.pieces.iter().map(|piece| piece.bytes.clone()).collect();
    let mut target = sound.link.1.clone();
    for record in records.chunks_exact(11).take(64) {
        let at = usize::from(u16::from_le_bytes([record[1], record[2]])) * 8;
        let value = &record[3..];
        match files.get_mut(usize::from(record[0] & !CUT) % (sound.pieces.len() + 1)) {
            None => target = Path::new(std::ffi::OsStr::from_bytes(value)).to_owned(),
            Some(file) if record[0] & CUT != 0 => file.truncate(at),
            Some(file) if at + 8 <= file.len() => file[at..at + 8].copy_from_slice(value),
            Some(_) => {}
        }
    }
    seal(sound, *flags, &mut files);
    put(sound, &files, &target).expect("files of the pool can be written");
    let _ = read(sound, flags & CONTENT != 0);
    let _ = Pool::destroy_used(&sound.path); // with its cgroup
    let _ = fs::remove_dir_all(&sound.path);
}

fn make(seed: &[u8]) -> Result<Sound, Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("farfork-fuzz-{}", std::process::id()));
    let pool = Pool::create(&path, 12 * CHUNK_BYTES)?;
    pool.set_quota("a", Quota { bytes: 1 << 30, images: 2 })?;
    let (cid, held) = archive::read(&pool, Some("a"), seed, &mut |_, _| ())?;
    drop(held);
    Catalog::of(&pool).set(&"a/b".parse()?, cid)?;
    let row = register(&path, &pool)?;
    pool.pin(&row, cid)?;
    let bits = PageBits { accessed: vec![7, 1], dirtied: vec![1], hot: vec![4] };
    pool.add_users_bits(cid, &bits)?;
    pool.add_access(row.id(), cid, pool.epochs(cid)?, &bits)?;
    let piece = |place: String, mode, sealed| {
        let bytes = fs::read(path.join(&place))?;
        Ok(Piece { path: place, bytes, mode, sealed })
    };
    let node = row.id();
    let pieces: std::io::Result<Vec<Piece>> = [
        piece("superblock".into(), 0o600, 56),
        piece(format!("images/{cid}"), 0o400, 80),
        piece(format!("nodes/{node}"), 0o600, 256),
        piece(format!("tables/{cid}/users"), 0o600, usize::MAX),
        piece(format!("tables/{cid}/{node}"), 0o600, usize::MAX),
        piece("users/a/quota".into(), 0o600, usize::MAX),
    ]
    .into_iter()
    .collect();
    let link = "names/a/b/latest".to_owned();
    let target = fs::read_link(path.join(&link))?;
    Pool::destroy_used(&path)?;
    Ok(Sound { path, pieces: pieces?, link: (link, target), cid, running: Mutex::new(()) })
}

fn register(path: &Path, pool: &Pool) -> Result<NodeRow, Box<dyn std::error::Error>> {
    let pins = path.with_extension("pins");
    let row = pool.register_node("n", &PinFile::open(&pins)?)?;
    fs::remove_file(pins)?;
    Ok(row)
}

fn seal(sound: &Sound, flags: u8, files: &mut [Vec<u8>]) {
    let image = &mut files[1];
    if flags & METADATA != 0
        && let Some(length) = image.get(META_AT + META_BYTES..META_AT + META_BYTES + 8)
    {
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let end = META_AT.saturating_add(length as usize).min(image.len());
        reseal(&mut image[META_AT..end]);
    }
    if flags & SEALED != 0 {
        for (piece, file) in sound.pieces.iter().zip(files) {
            let bytes = piece.sealed.min(file.len());
            // Magic, version, checksum: so do all of them begin.
            if let Some(sum) = file.get_mut(12..16) {
                sum.fill(0);
                let sum = crc32c::crc32c(&file[..bytes]);
                file[12..16].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

/// Makes the pool anew, with these bytes in its files.
fn put(sound: &Sound, files: &[Vec<u8>], target: &Path) -> std::io::Result<()> {
    let path = &sound.path;
    for name in ["images", "names/a/b", "tables", "users/a", "nodes", "new", "removed"] {
        fs::create_dir_all(path.join(name))?;
    }
    for (piece, bytes) in sound.pieces.iter().zip(files) {
        let place = path.join(&piece.path);
        fs::create_dir_all(place.parent().unwrap_or(path))?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(piece.mode).open(place)?;
        write(&file, bytes)?;
    }
    let _ = symlink(target, path.join(&sound.link.0)); // not with a NUL in it
    symlink("-", path.join(format!("users/a/{}", sound.cid)))
}

/// Leaves holes where whole pages are zeros.
fn write(file: &File, bytes: &[u8]) -> std::io::Result<()> {
    file.set_len(bytes.len() as u64)?;
    for (index, page) in bytes.chunks(META_AT).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, (index * META_AT) as u64)?;
        }
    }
    let mut file = file;
    file.flush()
}

/// Everything that looks at a pool, then everything that changes it.
fn read(sound: &Sound, with_content: bool) -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::open(&sound.path)?;
    let (cid, name): (Cid, ImageName) = (sound.cid, "a/b".parse()?);
    let _ = (pool.info(), pool.quota("a"), pool.user_info("a"), pool.node_names());
    let _ = (pool.access(cid), pool.access_version(cid), pool.epochs(cid));
    if let Ok(file) = pool.find(cid)
        && let Ok(image) = Image::read_from(&file)
        && with_content
    {
        let _ = image.damaged_chunks(&file);
        let _ = archive::write(&pool, &file, &image, std::io::sink(), &mut |_, _| ());
    }
    let catalog = Catalog::of(&pool);
    let _ = (catalog.get(&name), catalog.list(), catalog.names_of(cid));
    let _ = (catalog.repair(), catalog.remove(&name), catalog.set(&name, cid));
    let bits = PageBits { accessed: vec![1; 9], dirtied: vec![2], hot: vec![0, 3] };
    let _ = (pool.add_users_bits(cid, &bits), pool.clear_hot(cid, &bits.hot));
    let _ = pool.reset_access(cid, true);
    drop(pool.begin(Some("a")));
    let pins = PinFile::open(&sound.path.with_extension("pins"))?;
    if let Ok(row) = pool.register_node("n", &pins) {
        let _ = pool.add_access(row.id(), cid, pool.epochs(cid).unwrap_or_default(), &bits);
        let _ = (pool.pin(&row, cid), pool.remove(cid), pool.reconcile(&row, &pins));
        let _ = pool.unpin(&row, cid);
    }
    let _ = pool.forget_node("n", Some(&pins));
    fs::remove_file(sound.path.with_extension("pins"))?;
    pool.check()?;
    let again = pool.check()?;
    // What is given back or dropped is so at once.
    let is_new = |finding: &Finding| {
        use Finding::{DamagedNode, DamagedTables, DeadWriters, LeftByRemoval, LostTables};
        matches!(
            finding,
            DeadWriters { .. }
                | LeftByRemoval { .. }
                | LostTables { .. }
                | DamagedTables { .. }
                | DamagedNode { .. }
        )
    };
    assert!(!again.findings.iter().any(is_new), "{:?}", again.findings);
    Ok(())
}
