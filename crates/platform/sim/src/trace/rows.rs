//! Rows of files of comma-separated values.

use std::path::Path;

use csv::{Position, ReaderBuilder, StringRecord};

use super::{Builder, Source};
use crate::error::SimError;

/// Characters of a text that a message shows.
const SHOWN: usize = 40;

/// Where the wanted columns are.
pub struct Columns(Vec<usize>);

/// A row of a file.
pub struct Row<'a> {
    record: &'a StringRecord,
    columns: &'a Columns,
}

impl Row<'_> {
    /// The text of a wanted column, by its place among them.
    pub fn text(&self, wanted: usize) -> &str {
        let index = self.columns.0.get(wanted).copied().unwrap_or(usize::MAX);
        self.record.get(index).unwrap_or_default().trim()
    }

    /// The same of a column that must not be empty.
    pub fn given(&self, wanted: usize, what: &str) -> Result<&str, String> {
        match self.text(wanted) {
            "" => Err(format!("{what} is empty")),
            text => Ok(text),
        }
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

/// The fields of the first line.
pub fn first_line(bytes: &[u8]) -> Vec<String> {
    let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let first = reader.records().next().and_then(Result::ok).unwrap_or_default();
    first.iter().map(|field| field.trim().trim_start_matches('\u{feff}').to_owned()).collect()
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
    let header = first_line(&source.bytes);
    let columns = columns(&source.path, &header, required, optional)?;
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(&*source.bytes);
    for record in reader.records() {
        let result = match &record {
            Ok(record) => {
                let row = Row { record, columns: &columns };
                whole(record, &header).and_then(|()| read(&row, builder))
            }
            Err(_) => Err("the line is not text in UTF-8".to_owned()),
        };
        if let Err(reason) = result {
            let at = record.as_ref().map_or_else(csv::Error::position, StringRecord::position);
            let at = at.map_or(0, Position::byte);
            builder.malformed(&source.path, || line_at(&source.bytes, at), reason);
        }
    }
    Ok(())
}

/// The line of the row that begins at a byte, or after the ends of lines there: the parser stops before
/// the second byte of an end, and skips empty lines.
fn line_at(bytes: &[u8], at: u64) -> u64 {
    let (before, rest) = bytes.split_at(usize::try_from(at).map_or(0, |at| at.min(bytes.len())));
    let skipped = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let ends = before.iter().chain(skipped).filter(|byte| **byte == b'\n');
    ends.count() as u64 + 1
}

fn whole(record: &StringRecord, header: &[String]) -> Result<(), String> {
    if record.len() == header.len() {
        return Ok(());
    }
    Err(format!("it has {} fields, and the header has {}", record.len(), header.len()))
}

fn columns(
    path: &Path,
    header: &[String],
    required: &[&str],
    optional: &[&str],
) -> Result<Columns, SimError> {
    let find = |name: &&str| header.iter().position(|column| column == name);
    let missing: Vec<&str> = required.iter().filter(|name| find(name).is_none()).copied().collect();
    if !missing.is_empty() {
        let reason = format!(
            "its first line is not the header: it lacks {} and begins with '{}'",
            missing.join(", "),
            shown(&header.join(","))
        );
        return Err(SimError::trace(path, reason));
    }
    let all = required.iter().chain(optional);
    Ok(Columns(all.map(|name| find(name).unwrap_or(usize::MAX)).collect()))
}
