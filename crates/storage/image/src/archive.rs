//! An image in a file: what a pool on tmpfs forgets with the machine's memory.
//!
//! ```text
//!  header    magic, version, bytes and chunks of the model, checksum of these and the model
//!  model     as in the pool: which pages are stored, and where in which chunk
//!  chunks    one record each: bytes that follow, CRC-32C of the whole 2 MiB, then the stored
//!            pages one after the other (zstd)
//!  access    one record: which pages were accessed, dirtied, declared hot, or nothing (zstd)
//!  end       magic, CRC-32C of everything before
//! ```
//! Written and read in one pass with the memory of one chunk. Nothing of the pool it came from is
//! in it: places and plan are made anew where it is read.

use farfork_sys::words;
use std::io::{self, Read, Write};

use farfork_pool::{Held, ImageFile, PageBits, Pool};
use farfork_types::{CHUNK_BYTES, Cid, PAGE_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use zstd::bulk::{Compressor, Decompressor};

use crate::error::ImageError;
use crate::format::Image;
use crate::model::{Model, WINDOW_WORDS};
use crate::store::Draft;

/// Version of the format.
pub const VERSION: u32 = 9;

const MAGIC: u64 = u64::from_le_bytes(*b"farfarch");
const END: u64 = u64::from_le_bytes(*b"farfend\0");
/// Fast enough to keep up with a disk.
const LEVEL: i32 = 1;
/// The model of a process is smaller, whatever it has of mappings, threads and buffers.
const MODEL_BYTES: u64 = 256 << 20;

/// Why an archive could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A system call failed.
    #[error(
        "cannot {doing} the archive: {}; check the path, its permissions and the free space",
        words::of(.source)
    )]
    Io {
        /// What was tried, as a verb.
        doing: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// It is not an archive.
    #[error(
        "it is not an archive of a farfork image: name a file that `farfork images export` wrote"
    )]
    NotAnArchive,
    /// It has another format.
    #[error(
        "it has format version {found}, this farfork reads {VERSION}: import it with the farfork that \
         wrote it, or export the image again"
    )]
    OtherVersion {
        /// Its format.
        found: u32,
    },
    /// It is truncated.
    #[error("it is truncated: copy or export it again")]
    CutOff,
    /// It does not fit its checksums.
    #[error("it is damaged ({what}): copy or export it again")]
    Damaged {
        /// What does not hold.
        what: &'static str,
    },
    /// The image or the pool is not as it should be.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl From<farfork_pool::PoolError> for ArchiveError {
    fn from(error: farfork_pool::PoolError) -> ArchiveError {
        ArchiveError::Image(error.into())
    }
}

/// Called after each chunk with the chunks done, and all of them.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    checksum: u32,
    model_bytes: u64,
    chunks: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    bytes: u32,
    sum: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct End {
    magic: u64,
    checksum: u32,
    reserved: u32,
}

const _: () = {
    assert!(size_of::<Header>() == 32);
    assert!(size_of::<Record>() == 8);
    assert!(size_of::<End>() == 16);
};

/// Writes `image`, which lies in `file` of `pool`, chunks verified.
///
/// # Errors
/// [`ArchiveError::Io`]; [`ArchiveError::Image`] if the image is damaged, or was removed meanwhile.
pub fn write(
    pool: &Pool,
    file: &ImageFile,
    image: &Image,
    out: impl Write,
    progress: Progress<'_>,
) -> Result<(), ArchiveError> {
    let mut out = Summed::new(out);
    let chunks = image.model.chunk_pages();
    let cid = image.id.cid;
    let model = postcard::to_stdvec(&image.model)
        .map_err(|_| ImageError::Damaged { cid, what: "the model cannot be written" })?;
    out.put(&[header(&model, chunks.len()).as_bytes(), &model])?;
    let mut compressor = Compressor::new(LEVEL).map_err(writing)?;
    let mut pages = Vec::with_capacity(CHUNK_BYTES as usize);
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    for (done, stored) in chunks.iter().enumerate() {
        pages.clear();
        if !image.read_chunk(file, done, &mut chunk)? {
            return Err(ImageError::Damaged { cid, what: "a chunk does not match its sum" }.into());
        }
        for (start, end) in runs(stored) {
            pages.extend_from_slice(&chunk[start..end]);
        }
        let payload = compressor.compress(&pages).map_err(writing)?;
        let record = Record { bytes: payload.len() as u32, sum: image.sums[done] };
        out.put(&[record.as_bytes(), &payload])?;
        progress(done as u64 + 1, chunks.len() as u64);
    }
    out.put_access(&pool.access(cid)?, &mut compressor)?;
    let end = End { magic: END, checksum: out.sum, reserved: 0 };
    out.put(&[end.as_bytes()])?;
    out.inner.flush().map_err(writing)
}

fn header(model: &[u8], chunks: usize) -> Header {
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        checksum: 0,
        model_bytes: model.len() as u64,
        chunks: chunks as u64,
    };
    Header { checksum: header_sum(&header, model), ..header }
}

fn header_sum(header: &Header, model: &[u8]) -> u32 {
    let without = Header { checksum: 0, ..*header };
    crc32c::crc32c_append(crc32c::crc32c(without.as_bytes()), model)
}

/// Runs of stored pages, as ranges of bytes of the chunk.
fn runs(stored: &[u64; WINDOW_WORDS]) -> Vec<(usize, usize)> {
    let page = PAGE_BYTES as usize;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let is_stored = |index: &usize| stored[index / 64] & (1 << (index % 64)) != 0;
    for index in (0..(CHUNK_BYTES / PAGE_BYTES) as usize).filter(is_stored) {
        match runs.last_mut() {
            Some(last) if last.1 == index * page => last.1 += page,
            _ => runs.push((index * page, (index + 1) * page)),
        }
    }
    runs
}

/// Reads an archive into `pool` as a new image of `user`. Whatever is wrong, nothing of it stays there.
///
/// # Errors
/// Any of [`ArchiveError`].
pub fn read(
    pool: &Pool,
    user: Option<&str>,
    input: impl Read,
    progress: Progress<'_>,
) -> Result<(Cid, Held), ArchiveError> {
    let mut reader = Reader::open(input)?;
    let model = reader.model().clone();
    let mut draft = Draft::begin(pool, user)?;
    draft.fit(&model)?;
    let stored = model.chunk_pages();
    let all = stored.len() as u64;
    let chunks = draft.data().chunks_mut(CHUNK_BYTES as usize);
    for (done, (chunk, pages)) in chunks.zip(&stored).enumerate() {
        reader.chunk(pages, chunk)?;
        progress(done as u64 + 1, all);
    }
    let access = reader.finish()?;
    let made = draft.publish(&model)?;
    if !access.is_empty()
        && let Err(error) = pool.add_users_bits(made.cid, &access)
    {
        pool.remove(made.cid)?;
        return Err(error.into());
    }
    Ok((made.cid, made.held))
}

/// Reads an archive part by part: the model, each of its chunks, the end.
pub struct Reader<R> {
    input: Summed<R>,
    model: Model,
    decompressor: Decompressor<'static>,
    payload: Vec<u8>,
    pages: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the header and the model, and verifies both.
    ///
    /// # Errors
    /// Any of [`ArchiveError`] but [`ArchiveError::Image`].
    pub fn open(input: R) -> Result<Reader<R>, ArchiveError> {
        let mut input = Summed::new(input);
        let mut header = Header::default();
        input.get(header.as_mut_bytes()).map_err(|error| match error {
            ArchiveError::CutOff => ArchiveError::NotAnArchive,
            other => other,
        })?;
        if header.magic != MAGIC {
            return Err(ArchiveError::NotAnArchive);
        }
        if header.version != VERSION {
            return Err(ArchiveError::OtherVersion { found: header.version });
        }
        let model = read_model(&mut input, &header)?;
        Ok(Reader {
            input,
            model,
            decompressor: Decompressor::new().map_err(reading)?,
            payload: Vec::new(),
            pages: Vec::with_capacity(CHUNK_BYTES as usize),
        })
    }

    /// What the image holds.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Reads the next chunk of the model, in which the pages of `stored` are, to `chunk`, which is
    /// all zeros.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`], [`ArchiveError::CutOff`], [`ArchiveError::Io`].
    pub fn chunk(
        &mut self,
        stored: &[u64; WINDOW_WORDS],
        chunk: &mut [u8],
    ) -> Result<(), ArchiveError> {
        let damaged = |what| ArchiveError::Damaged { what };
        let mut record = Record::default();
        self.input.get(record.as_mut_bytes())?;
        if record.bytes as usize > zstd::zstd_safe::compress_bound(CHUNK_BYTES as usize) {
            return Err(damaged("a chunk of too many bytes"));
        }
        self.payload.resize(record.bytes as usize, 0);
        self.input.get(&mut self.payload)?;
        self.pages.clear();
        self.decompressor
            .decompress_to_buffer(&self.payload, &mut self.pages)
            .map_err(|_| damaged("the pages of a chunk"))?;
        let mut rest = self.pages.as_slice();
        for (start, end) in runs(stored) {
            let (run, more) =
                rest.split_at_checked(end - start).ok_or(damaged("pages are missing"))?;
            chunk[start..end].copy_from_slice(run);
            rest = more;
        }
        if !rest.is_empty() || crc32c::crc32c(chunk) != record.sum {
            return Err(damaged("a chunk does not match its sum"));
        }
        Ok(())
    }

    /// Reads what is known of the pages' use and the end, and sees that nothing follows.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`], [`ArchiveError::CutOff`], [`ArchiveError::Io`].
    pub fn finish(mut self) -> Result<PageBits, ArchiveError> {
        let access = self.access()?;
        let expected = self.input.sum;
        let mut end = End::default();
        self.input.get(end.as_mut_bytes())?;
        if (end.magic, end.checksum, end.reserved) != (END, expected, 0) {
            return Err(ArchiveError::Damaged { what: "its end" });
        }
        match self.input.get(&mut [0]) {
            Err(ArchiveError::CutOff) => Ok(access),
            Ok(()) => Err(ArchiveError::Damaged { what: "more follows its end" }),
            Err(error) => Err(error),
        }
    }
}

impl<R: Read> Reader<R> {
    fn access(&mut self) -> Result<PageBits, ArchiveError> {
        let damaged = |_| ArchiveError::Damaged { what: "what is known of its pages' use" };
        let words = self.model.chunks() * WINDOW_WORDS;
        // Each word takes ten bytes at most, each length five.
        let most = SETS * (words * 10 + 5);
        let mut record = Record::default();
        self.input.get(record.as_mut_bytes())?;
        if record.bytes as usize > zstd::zstd_safe::compress_bound(most) {
            return Err(damaged(()));
        }
        if record.bytes == 0 {
            return Ok(PageBits::default());
        }
        self.payload.resize(record.bytes as usize, 0);
        self.input.get(&mut self.payload)?;
        let bytes = self.decompressor.decompress(&self.payload, most).map_err(|_| damaged(()))?;
        let [accessed, dirtied, hot]: [Vec<u64>; SETS] =
            postcard::from_bytes(&bytes).map_err(|_| damaged(()))?;
        let fits = [&accessed, &dirtied, &hot].iter().all(|set| set.len() <= words);
        if !fits || crc32c::crc32c(&bytes) != record.sum {
            return Err(damaged(()));
        }
        Ok(PageBits { accessed, dirtied, hot })
    }
}

/// Sets of pages in an access record.
const SETS: usize = 3;

fn read_model(input: &mut Summed<impl Read>, header: &Header) -> Result<Model, ArchiveError> {
    let damaged = |what| ArchiveError::Damaged { what };
    if header.model_bytes > MODEL_BYTES {
        return Err(damaged("a model of too many bytes"));
    }
    let mut bytes = Vec::new();
    // As much as there is: a length that is wrong must not take the memory.
    let limited = (&mut input.inner).take(header.model_bytes);
    io::copy(&mut { limited }, &mut bytes).map_err(reading)?;
    if bytes.len() as u64 != header.model_bytes {
        return Err(ArchiveError::CutOff);
    }
    input.sum = crc32c::crc32c_append(input.sum, &bytes);
    if header_sum(header, &bytes) != header.checksum {
        return Err(damaged("the checksum of its header does not match"));
    }
    let model: Model =
        postcard::from_bytes(&bytes).map_err(|_| damaged("the model cannot be read"))?;
    model.validate().map_err(damaged)?;
    if model.chunks() as u64 != header.chunks {
        return Err(damaged("its number of chunks does not match the model"));
    }
    Ok(model)
}

/// A stream and the checksum of what went through it.
struct Summed<S> {
    inner: S,
    sum: u32,
}

impl<S> Summed<S> {
    fn new(inner: S) -> Summed<S> {
        Summed { inner, sum: 0 }
    }
}

impl<W: Write> Summed<W> {
    fn put(&mut self, parts: &[&[u8]]) -> Result<(), ArchiveError> {
        for part in parts {
            self.inner.write_all(part).map_err(writing)?;
            self.sum = crc32c::crc32c_append(self.sum, part);
        }
        Ok(())
    }
}

impl<W: Write> Summed<W> {
    fn put_access(
        &mut self,
        access: &PageBits,
        compressor: &mut Compressor<'_>,
    ) -> Result<(), ArchiveError> {
        if access.is_empty() {
            return self.put(&[Record::default().as_bytes()]);
        }
        let sets = [&access.accessed, &access.dirtied, &access.hot].map(|set| trimmed(set));
        let bytes = postcard::to_stdvec(&sets).map_err(|error| writing(io::Error::other(error)))?;
        let payload = compressor.compress(&bytes).map_err(writing)?;
        let record = Record { bytes: payload.len() as u32, sum: crc32c::crc32c(&bytes) };
        self.put(&[record.as_bytes(), &payload])
    }
}

/// The words up to the last that has a bit.
fn trimmed(words: &[u64]) -> &[u64] {
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    &words[..used]
}

impl<R: Read> Summed<R> {
    fn get(&mut self, to: &mut [u8]) -> Result<(), ArchiveError> {
        self.inner.read_exact(to).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::CutOff,
            _ => reading(error),
        })?;
        self.sum = crc32c::crc32c_append(self.sum, to);
        Ok(())
    }
}

fn writing(source: io::Error) -> ArchiveError {
    ArchiveError::Io { doing: "write", source }
}

fn reading(source: io::Error) -> ArchiveError {
    ArchiveError::Io { doing: "read", source }
}
