//! Copies the rows of some functions, field by field, into files of the same names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use csv::{ErrorKind, StringRecord, Writer};

use super::azure2019::{KEY, Table};
use super::builder::Builder;
use super::files::{self, Source};
use super::rows::{self, Row};
use super::{Format, azure2021, guess, huawei2025, own};
use crate::error::SimError;

/// The functions whose rows are copied.
struct Chosen<'a> {
    functions: &'a BTreeSet<&'a str>,
    /// Owner and app of each, where there are both.
    apps: BTreeSet<&'a str>,
}

/// Copies rows of functions, by their names, into a directory. Malformed rows are left out. Returns the new files.
pub fn copy(
    paths: &[PathBuf],
    format: Option<Format>,
    functions: &BTreeSet<&str>,
    out: &Path,
) -> Result<Vec<PathBuf>, SimError> {
    let (sources, _) = files::sources(paths)?;
    let format = format.map_or_else(|| guess(&sources), Ok)?;
    let apps = functions.iter().filter_map(|name| Some(name.rsplit_once('/')?.0)).collect();
    let chosen = Chosen { functions, apps };
    fs::create_dir_all(out).map_err(SimError::writing(out))?;
    let mut written: Vec<PathBuf> = Vec::new();
    for source in &sources {
        let to = out.join(source.path.file_name().unwrap_or_default());
        if written.contains(&to) {
            return Err(SimError::trace(
                &source.path,
                "another file of the trace has the same name",
            ));
        }
        if to.canonicalize().is_ok_and(|to| source.path.canonicalize().is_ok_and(|from| from == to))
        {
            return Err(SimError::trace(
                &source.path,
                "the sample would overwrite it; give another directory",
            ));
        }
        copy_one(source, format, &chosen, &to)?;
        written.push(to);
    }
    Ok(written)
}

fn copy_one(
    source: &Source,
    format: Format,
    chosen: &Chosen<'_>,
    to: &Path,
) -> Result<(), SimError> {
    let failed = |error: csv::Error| match error.into_kind() {
        ErrorKind::Io(error) => SimError::writing(to)(error),
        kind => SimError::trace(&source.path, format!("cannot copy a row: {kind:?}")),
    };
    let mut file = Writer::from_path(to).map_err(failed)?;
    file.write_record(&source.header).map_err(failed)?;
    let (columns, is_wanted) = rule(source, format);
    let mut failure = None;
    // What is malformed was reported when the trace was read.
    let mut ignored = Builder::new(1);
    rows::read(source, columns, &[], &mut ignored, |row, _| {
        if failure.is_none() && is_wanted(row, chosen)? {
            let record: &StringRecord = row.record();
            failure = file.write_record(record).err();
        }
        Ok(())
    })?;
    if let Some(error) = failure {
        return Err(failed(error));
    }
    file.flush().map_err(SimError::writing(to))
}

/// Columns, and whether a row with them is of a chosen function.
type Rule = (&'static [&'static str], fn(&Row<'_>, &Chosen<'_>) -> Result<bool, String>);

fn rule(source: &Source, format: Format) -> Rule {
    match format {
        Format::Own => (&own::COLUMNS[..1], |row, chosen| {
            Ok(chosen.functions.contains(row.given(0, "the function")?))
        }),
        Format::Azure2021 => (&azure2021::COLUMNS[..2], |row, chosen| {
            let name = format!("{}/{}", row.given(0, "the app")?, row.given(1, "the function")?);
            Ok(chosen.functions.contains(&*name))
        }),
        Format::Huawei2025 if source.has(&huawei2025::RESOURCES) => {
            (&huawei2025::RESOURCES[..1], |row, chosen| {
                let mut parts = row.text(0).splitn(3, "---");
                let mut part = || parts.next().unwrap_or_default();
                let (name, user, pool) = (part(), part(), part());
                Ok(chosen.functions.contains(&*format!("{user}/{name}---{pool}")))
            })
        }
        Format::Huawei2025 => (&huawei2025::REQUIRED, |row, chosen| {
            let (user, name) = huawei2025::function(row)?;
            Ok(chosen.functions.contains(&*format!("{user}/{name}")))
        }),
        Format::Azure2019 | Format::InVitro => match Table::of(source) {
            Some(Table::Memory) => (&KEY[..2], |row, chosen| {
                let app = format!("{}/{}", row.given(0, KEY[0])?, row.given(1, KEY[1])?);
                Ok(chosen.apps.contains(&*app))
            }),
            Some(Table::Shapes) | None => (&[], |_, _| Ok(true)),
            Some(_) => (&KEY, |row, chosen| {
                let part = |index: usize| row.given(index, KEY[index]);
                let name = format!("{}/{}/{}", part(0)?, part(1)?, part(2)?);
                Ok(chosen.functions.contains(&*name))
            }),
        },
    }
}
