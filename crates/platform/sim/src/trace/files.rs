//! The files of a trace.
//!
//! Each is read twice: once for its checksum, and once for its rows. So memory does not grow with a file.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use csv::ReaderBuilder;
use sha2::{Digest, Sha256};

use crate::error::SimError;

/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 18;
/// The longest header. That of Azure's table of calls has 7 KB.
const LONGEST_HEADER: u64 = 1 << 20;

/// How compressed files begin, and what unpacks them.
const PACKED: [(&[u8], &str, &str); 5] = [
    (b"\x1f\x8b", "gzip", "gunzip --keep"),
    (b"\xfd7zXZ\0", "xz", "unxz --keep"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
];

/// A file of a trace.
pub struct Source {
    pub path: PathBuf,
    /// The fields of its first line.
    pub header: Vec<String>,
    /// Where its rows begin.
    rows_at: u64,
    /// Its length and the time of its last change when its checksum was made.
    state: (u64, Option<SystemTime>),
}

impl Source {
    /// Whether the header has all of these columns.
    pub fn has(&self, columns: &[&str]) -> bool {
        columns.iter().all(|column| self.column(column).is_some())
    }

    /// The place of a column. Readers of these formats do not look at the case of letters.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column.eq_ignore_ascii_case(name))
    }

    /// The file from its first row on, and where that is.
    pub fn rows(&self) -> Result<(BufReader<File>, u64), SimError> {
        let mut file = open(&self.path)?;
        if state(&file) != self.state {
            return Err(SimError::trace(&self.path, "it changed while it was read; try again"));
        }
        file.seek(SeekFrom::Start(self.rows_at)).map_err(SimError::reading(&self.path))?;
        Ok((BufReader::with_capacity(PIECE, file), self.rows_at))
    }
}

/// The files of a trace, and the SHA-256 of all of them, one after the other, in hexadecimal. A directory
/// stands for its files with the ending `csv`, in the order of their names.
pub fn sources(paths: &[PathBuf]) -> Result<(Vec<Source>, String), SimError> {
    let mut sha = Sha256::new();
    let mut sources = Vec::new();
    for path in expanded(paths)? {
        let file = open(&path)?;
        let kind = file.metadata().map_err(SimError::reading(&path))?.file_type();
        if !kind.is_file() {
            let reason =
                "it is not a regular file, and traces are read twice: write it to a file first";
            return Err(SimError::trace(&path, reason));
        }
        let state = state(&file);
        let mut file = BufReader::with_capacity(PIECE, file);
        unpacked(&path, &mut file)?;
        if add(&mut sha, file).map_err(SimError::reading(&path))? {
            return Err(SimError::trace(&path, "it is empty"));
        }
        let (header, rows_at) = header(open(&path)?).map_err(SimError::reading(&path))?;
        sources.push(Source { path, header, rows_at, state });
    }
    Ok((sources, hexadecimal(sha)))
}

/// The SHA-256 of a file, in hexadecimal.
pub fn checksum(path: &Path) -> Result<String, SimError> {
    let mut sha = Sha256::new();
    add(&mut sha, BufReader::new(open(path)?)).map_err(SimError::reading(path))?;
    Ok(hexadecimal(sha))
}

fn hexadecimal(sha: Sha256) -> String {
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn open(path: &Path) -> Result<File, SimError> {
    File::open(path).map_err(SimError::reading(path))
}

fn state(file: &File) -> (u64, Option<SystemTime>) {
    let metadata = file.metadata().ok();
    let changed = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
    (metadata.map_or(0, |metadata| metadata.len()), changed)
}

fn expanded(paths: &[PathBuf]) -> Result<Vec<PathBuf>, SimError> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).map_err(SimError::reading(path))?;
        let entries: Result<Vec<_>, io::Error> = entries.map(|entry| Ok(entry?.path())).collect();
        let mut inside = entries.map_err(SimError::reading(path))?;
        inside.retain(|file| file.is_file() && file.extension().is_some_and(|end| end == "csv"));
        if inside.is_empty() {
            return Err(SimError::trace(path, "the directory has no files that end in .csv"));
        }
        inside.sort();
        all.extend(inside);
    }
    Ok(all)
}

/// Refuses compressed files.
fn unpacked(path: &Path, file: &mut BufReader<File>) -> Result<(), SimError> {
    let begin = file.fill_buf().map_err(SimError::reading(path))?;
    let packed = PACKED.iter().find(|(magic, _, _)| begin.starts_with(magic));
    packed.map_or(Ok(()), |(_, name, command)| {
        let reason =
            format!("it is compressed ({name}); unpack it first: {command} {}", path.display());
        Err(SimError::trace(path, reason))
    })
}

/// Adds a file to a checksum. Returns whether nothing but white space is in it.
fn add(sha: &mut Sha256, mut file: impl BufRead) -> io::Result<bool> {
    let mut is_empty = true;
    loop {
        let piece = match file.fill_buf() {
            Ok([]) => return Ok(is_empty),
            Ok(piece) => piece,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        is_empty = is_empty && piece.iter().all(u8::is_ascii_whitespace);
        sha.update(piece);
        let length = piece.len();
        file.consume(length);
    }
}

/// The fields of the first line, and where the next one begins.
fn header(file: File) -> io::Result<(Vec<String>, u64)> {
    let mut line = Vec::new();
    let length = BufReader::new(file.take(LONGEST_HEADER)).read_until(b'\n', &mut line)?;
    let bare = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&line);
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bare);
    let first = reader.records().next().and_then(Result::ok).unwrap_or_default();
    let fields = first.iter().map(|field| field.trim().to_owned()).collect();
    Ok((fields, length as u64))
}

/// Finds lines of a file by the places of their bytes, which only grow.
pub struct Lines {
    file: Option<BufReader<File>>,
    at: u64,
    line: u64,
}

impl Lines {
    /// Begins at the first line.
    pub fn of(source: &Source) -> Lines {
        let file = File::open(&source.path).ok().map(BufReader::new);
        Lines { file, at: 0, line: 1 }
    }

    /// The line of the row that begins at a byte, or after the ends of lines there: the parser stops before
    /// the second byte of an end, and skips empty lines. 0 if the file cannot be read again.
    pub fn at(&mut self, byte: u64) -> u64 {
        self.find(byte).unwrap_or(0)
    }

    fn find(&mut self, byte: u64) -> Option<u64> {
        let file = self.file.as_mut()?;
        loop {
            let piece = file.fill_buf().ok()?;
            let before = usize::try_from(byte.saturating_sub(self.at)).ok()?.min(piece.len());
            let skipped = match &piece[before..] {
                rest if before < piece.len() => {
                    rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
                }
                _ => 0,
            };
            let length = before + skipped;
            self.line += piece[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
            let is_there = length < piece.len() || piece.is_empty();
            file.consume(length);
            self.at += length as u64;
            if is_there {
                return Some(self.line);
            }
        }
    }
}
