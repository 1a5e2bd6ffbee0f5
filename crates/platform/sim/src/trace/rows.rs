//! Rows of files of comma-separated values.

use std::cell::Cell;
use std::io::{self, Read};

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};

use super::builder::Builder;
use super::files::{Lines, Source};
use crate::error::SimError;

/// Characters of a text that a message shows.
const SHOWN: usize = 40;

/// The longest row: a quote that is not closed would make one of all that follows.
const LONGEST: usize = 16 << 20;

/// Ends a row that is too long.
struct Capped<'a, R> {
    inner: R,
    /// Bytes that the row may still have.
    left: &'a Cell<usize>,
}

impl<R: Read> Read for Capped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let read = self.inner.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(read));
        Ok(read)
    }
}

/// A row of a file.
pub struct Row<'a> {
    record: &'a StringRecord,
    columns: &'a [usize],
}

impl Row<'_> {
    /// The text of a wanted column, by its place among them.
    pub fn text(&self, wanted: usize) -> &str {
        let index = self.columns.get(wanted).copied().unwrap_or(usize::MAX);
        self.record.get(index).unwrap_or_default().trim()
    }

    /// The same of a column that must not be empty.
    pub fn given(&self, wanted: usize, what: &str) -> Result<&str, String> {
        match self.text(wanted) {
            "" => Err(format!("{what} is empty")),
            text => Ok(text),
        }
    }

    /// All fields, as they are in the file.
    pub fn record(&self) -> &StringRecord {
        self.record
    }
}

/// A text cut to what a message shows, without control characters.
pub fn shown(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { '?' } else { letter };
    let mut cut: String = text.chars().take(SHOWN).map(plain).collect();
    if text.chars().count() > SHOWN {
        cut.push('…');
    }
    cut
}

/// Reads the rows of a file whose header has these columns; optional ones may be missing. `read` returns
/// what is wrong with a row that holds no call.
pub fn read(
    source: &Source,
    required: &[&str],
    optional: &[&str],
    builder: &mut Builder,
    mut read: impl FnMut(&Row<'_>, &mut Builder) -> Result<(), String>,
) -> Result<(), SimError> {
    let columns = columns(source, required, optional)?;
    let (file, begin) = source.rows()?;
    let left = Cell::new(LONGEST);
    let file = Capped { inner: file, left: &left };
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
    let mut lines = None;
    let mut record = StringRecord::new();
    loop {
        left.set(LONGEST);
        let row_at = begin + reader.position().byte();
        let result = match reader.read_record(&mut record) {
            Ok(false) => return Ok(()),
            Ok(true) => {
                let row = Row { record: &record, columns: &columns };
                whole(&record, source)
                    .and_then(|()| read(&row, builder))
                    .map_err(|reason| (record.position().map_or(0, Position::byte), reason))
            }
            Err(error) => {
                let at = error.position().map_or(0, Position::byte);
                match error.into_kind() {
                    ErrorKind::Io(error) => return Err(failed(source, error, row_at)),
                    _ => Err((at, "the line is not text in UTF-8".to_owned())),
                }
            }
        };
        builder.check()?;
        if let Err((at, reason)) = result {
            let lines = lines.get_or_insert_with(|| Lines::of(source));
            builder.malformed(&source.path, || lines.at(begin + at), reason);
        }
    }
}

/// A file that cannot be read on.
fn failed(source: &Source, error: io::Error, row_at: u64) -> SimError {
    if error.kind() != io::ErrorKind::InvalidData {
        return SimError::reading(&source.path)(error);
    }
    let line = Lines::of(source).at(row_at);
    let reason = format!("the row in line {line} is longer than 16 MiB; is a quote not closed?");
    SimError::trace(&source.path, reason)
}

fn whole(record: &StringRecord, source: &Source) -> Result<(), String> {
    let (fields, columns) = (record.len(), source.header.len());
    if fields == columns {
        return Ok(());
    }
    Err(format!("it has {fields} fields, and the header has {columns}"))
}

fn columns(source: &Source, required: &[&str], optional: &[&str]) -> Result<Vec<usize>, SimError> {
    let missing: Vec<&str> =
        required.iter().filter(|name| source.column(name).is_none()).copied().collect();
    if !missing.is_empty() {
        let reason = format!(
            "its first line is not the header: it lacks {} and begins with '{}'",
            missing.join(", "),
            shown(&source.header.join(","))
        );
        return Err(SimError::trace(&source.path, reason));
    }
    let all = required.iter().chain(optional);
    Ok(all.map(|name| source.column(name).unwrap_or(usize::MAX)).collect())
}
