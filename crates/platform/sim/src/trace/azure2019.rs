//! Azure Functions 2019, and what In-Vitro makes of it: calls per minute of a day, with tables of durations and
//! of memory.
//!
//! ```text
//! calls      HashOwner,HashApp,HashFunction[,Trigger],1,2,…,1440
//! durations  HashOwner,HashApp,HashFunction,Average,…,percentile_Average_0,…,percentile_Average_100   ms
//! memory     HashOwner,HashApp,SampleCount,AverageAllocatedMb,…                                       MiB, per app
//!            HashOwner,HashApp,HashFunction,SampleCount,AverageAllocatedMb,…          In-Vitro: MiB, per function
//! shapes     Width,WidthPercentile,Depth,DepthPercentile,TotalNodes,TotalNodes        In-Vitro: of call graphs
//! ```
//! The header of a file says which table it is. Each file of calls is the day after the one before it. Within
//! their minute, calls arrive at random moments, drawn from the seed; durations are drawn from the
//! function's percentiles, between two of them in a straight line.

use std::collections::BTreeMap;
use std::path::Path;

use super::builder::Builder;
use super::files::Source;
use super::numbers::{duration, mebibytes};
use super::rows;
use super::sorter::Call;
use crate::error::SimError;
use crate::random::Random;

/// The columns that name a function.
pub const KEY: [&str; 3] = ["HashOwner", "HashApp", "HashFunction"];
/// The wanted columns of the table of memory.
pub const MEMORY: [&str; 3] = ["HashOwner", "HashApp", "AverageAllocatedMb"];
/// Columns of In-Vitro's table of shapes.
const SHAPES: [&str; 3] = ["WidthPercentile", "DepthPercentile", "TotalNodes"];
const MINUTE_US: u64 = 60_000_000;
const MINUTES: u64 = 1440;
/// Later minutes are taken for an error of the file: a month has fewer.
const MOST_MINUTES: u64 = 31 * MINUTES;
const MILLISECOND_US: f64 = 1e3;
/// Most calls of a function in a minute: more are taken for an error of the file.
const MOST_CALLS: u64 = 10_000_000;

/// The percentiles of the table of durations.
const PERCENTILES: [(f64, &str); 7] = [
    (0.0, "percentile_Average_0"),
    (0.01, "percentile_Average_1"),
    (0.25, "percentile_Average_25"),
    (0.5, "percentile_Average_50"),
    (0.75, "percentile_Average_75"),
    (0.99, "percentile_Average_99"),
    (1.0, "percentile_Average_100"),
];

/// Durations of a function at [`PERCENTILES`], in microseconds.
type Durations = [u64; PERCENTILES.len()];
/// Owner, app and function.
type Key = (String, String, String);

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Calls per minute.
    Calls,
    /// Percentiles of durations.
    Durations,
    /// Memory per app.
    Memory,
    /// Memory per function: In-Vitro.
    FunctionMemory,
    /// Shapes of call graphs: In-Vitro.
    Shapes,
}

impl Table {
    /// The table of a file, if it is one.
    pub fn of(source: &Source) -> Option<Table> {
        if source.has(&KEY) && source.header.iter().any(|column| minute(column).is_some()) {
            Some(Table::Calls)
        } else if source.has(&[PERCENTILES[3].1]) {
            Some(Table::Durations)
        } else if source.has(&MEMORY) {
            Some(if source.has(&KEY) { Table::FunctionMemory } else { Table::Memory })
        } else if source.has(&SHAPES) {
            Some(Table::Shapes)
        } else {
            None
        }
    }
}

pub fn read(sources: &[Source], builder: &mut Builder, seed: u64) -> Result<(), SimError> {
    let (mut tables, mut days) = (Tables::default(), Vec::new());
    for source in sources {
        match table(source)? {
            Table::Calls => days.push(source),
            Table::Durations => read_durations(source, builder, &mut tables.durations)?,
            Table::Memory => read_memory(source, builder, &mut tables.of_apps)?,
            Table::FunctionMemory => {
                read_function_memory(source, builder, &mut tables.of_functions)?;
            }
            Table::Shapes => builder.notes.push(format!(
                "{}: call graphs are not simulated; each function is called as often as the table of calls says",
                source.path.display()
            )),
        }
    }
    if days.is_empty() {
        let path = sources.first().map_or(Path::new(""), |source| &source.path);
        let reason = "no file has the calls per minute (columns HashOwner, …, Trigger, 1 to 1440)";
        return Err(SimError::trace(path, reason));
    }
    tables.typical = typical(&tables.durations);
    for (day, source) in days.into_iter().enumerate() {
        read_calls(source, day as u64, &tables, builder, seed)?;
    }
    Ok(())
}

/// The tables beside that of calls.
#[derive(Default)]
struct Tables {
    durations: BTreeMap<Key, Durations>,
    /// For functions that are in the table of calls only.
    typical: Option<Durations>,
    /// Bytes of memory by owner and app.
    of_apps: BTreeMap<(String, String), u64>,
    /// The same by function.
    of_functions: BTreeMap<Key, u64>,
}

fn table(source: &Source) -> Result<Table, SimError> {
    Table::of(source).ok_or_else(|| {
        let begins = rows::shown(&source.header.join(","));
        let reason = format!(
            "its first line is not the header of a table of azure2019 or invitro (calls, durations, memory or \
             shapes): it begins with '{begins}'"
        );
        SimError::trace(&source.path, reason)
    })
}

fn key(row: &rows::Row<'_>) -> Result<Key, String> {
    let text = |index: usize| row.given(index, KEY[index]).map(str::to_owned);
    Ok((text(0)?, text(1)?, text(2)?))
}

fn read_durations(
    source: &Source,
    builder: &mut Builder,
    all: &mut BTreeMap<Key, Durations>,
) -> Result<(), SimError> {
    let columns: Vec<&str> = KEY.into_iter().chain(PERCENTILES.map(|(_, name)| name)).collect();
    rows::read(source, &columns, &[], builder, |row, _| {
        let mut of_it = Durations::default();
        for (index, us) in of_it.iter_mut().enumerate() {
            *us = duration(row.text(KEY.len() + index), MILLISECOND_US)?;
        }
        if !of_it.is_sorted() {
            return Err("the percentiles do not increase".to_owned());
        }
        all.insert(key(row)?, of_it);
        Ok(())
    })
}

fn read_memory(
    source: &Source,
    builder: &mut Builder,
    all: &mut BTreeMap<(String, String), u64>,
) -> Result<(), SimError> {
    rows::read(source, &MEMORY, &[], builder, |row, _| {
        let bytes = mebibytes(row.text(2))?;
        let app = (row.given(0, KEY[0])?.to_owned(), row.given(1, KEY[1])?.to_owned());
        all.insert(app, bytes);
        Ok(())
    })
}

fn read_function_memory(
    source: &Source,
    builder: &mut Builder,
    all: &mut BTreeMap<Key, u64>,
) -> Result<(), SimError> {
    let columns = [KEY[0], KEY[1], KEY[2], MEMORY[2]];
    rows::read(source, &columns, &[], builder, |row, _| {
        let bytes = mebibytes(row.text(3))?;
        all.insert(key(row)?, bytes);
        Ok(())
    })
}

fn read_calls(
    source: &Source,
    day: u64,
    tables: &Tables,
    builder: &mut Builder,
    seed: u64,
) -> Result<(), SimError> {
    let header = source.header.iter();
    let (columns, minutes): (Vec<&str>, Vec<u64>) =
        header.filter_map(|column| Some((column.as_str(), minute(column)?))).unzip();
    let mut without = 0u64;
    rows::read(source, &KEY, &columns, builder, |row, builder| {
        let key = key(row)?;
        let counts = counts(&minutes, |index| row.text(KEY.len() + index))?;
        let durations = tables.durations.get(&key).copied();
        without += u64::from(durations.is_none() && !counts.is_empty());
        let durations = durations.or(tables.typical);
        let memory = tables.of_functions.get(&key).copied();
        let (owner, app, name) = key;
        let function = builder.function(&owner, &format!("{app}/{name}"));
        let memory = memory.or_else(|| tables.of_apps.get(&(owner, app)).copied());
        if let Some(known) = builder.functions.get_mut(function as usize) {
            known.memory_bytes = memory;
        }
        let mut random = Random::new(seed, (day << 32) | u64::from(function));
        for (minute, count) in counts {
            let begun = (day * MINUTES + minute) * MINUTE_US;
            for _ in 0..count {
                let at = begun + (random.unit() * MINUTE_US as f64) as u64;
                let duration_us = durations.map(|of_it| drawn(&of_it, random.unit()));
                let arrival_us = i64::try_from(at).unwrap_or(i64::MAX);
                builder.call(Call { arrival_us, function, duration_us, payload_bytes: 0 });
            }
        }
        Ok(())
    })?;
    if without > 0 && tables.typical.is_some() {
        let path = source.path.display();
        builder.notes.push(format!(
            "{path}: {without} functions are not in the table of durations; theirs are drawn from the \
             medians of the table"
        ));
    }
    Ok(())
}

/// The minute of a column, from 0. Files may have fewer than a day, and begin with any: In-Vitro's excerpts do.
fn minute(column: &str) -> Option<u64> {
    let number: u64 = column.parse().ok()?;
    number.checked_sub(1).filter(|minute| *minute < MOST_MINUTES)
}

/// The minutes with calls, and their numbers.
fn counts<'a>(minutes: &[u64], text: impl Fn(usize) -> &'a str) -> Result<Vec<(u64, u64)>, String> {
    let mut counts = Vec::new();
    for (index, minute) in minutes.iter().enumerate() {
        match text(index) {
            "" | "0" => {}
            text => counts.push((*minute, count(text)?)),
        }
    }
    Ok(counts)
}

fn count(text: &str) -> Result<u64, String> {
    let count: u64 = text
        .parse()
        .map_err(|_| format!("a minute is not a number of calls: '{}'", rows::shown(text)))?;
    if count > MOST_CALLS {
        return Err(format!("a minute has {count} calls, more than {MOST_CALLS}"));
    }
    Ok(count)
}

/// The median of each percentile over all functions.
fn typical(durations: &BTreeMap<Key, Durations>) -> Option<Durations> {
    if durations.is_empty() {
        return None;
    }
    let mut typical = Durations::default();
    for (index, us) in typical.iter_mut().enumerate() {
        let mut all: Vec<u64> = durations.values().map(|of_one| of_one[index]).collect();
        all.sort_unstable();
        *us = all[all.len() / 2];
    }
    Some(typical)
}

/// The duration at a share between 0 and 1 of all calls.
fn drawn(durations: &Durations, share: f64) -> u64 {
    let upper = PERCENTILES.iter().position(|(at, _)| *at > share).unwrap_or(PERCENTILES.len() - 1);
    let (low, high) = (PERCENTILES[upper - 1].0, PERCENTILES[upper].0);
    let (from, to) = (durations[upper - 1], durations[upper]);
    from + ((share - low) / (high - low) * (to - from) as f64).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_lie_on_the_lines_between_percentiles() {
        let durations = [0, 10, 250, 500, 750, 990, 2000];
        for (share, us) in [(0.0, 0), (0.25, 250), (0.375, 375), (0.995, 1495), (0.999_999, 2000)] {
            assert_eq!(drawn(&durations, share), us, "{share}");
        }
    }
}
