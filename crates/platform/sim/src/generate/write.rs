//! Writes functions and their calls in a format.

use std::f64::consts::TAU;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::draw::{normal, poisson};
use super::{DAY, Function, Generated, Model, Wanted};
use crate::error::SimError;
use crate::random::Random;
use crate::trace::Format;

/// Deviations of a normal distribution at the percentiles 0, 1, 25, 50, 75, 99 and 100 of the tables; the ends are
/// those of a few thousand calls.
const DEVIATIONS: [f64; 7] = [-3.3, -2.326, -0.674, 0.0, 0.674, 2.326, 3.3];
const HUAWEI: &str = "time_worker,time_frontend,requestID,clusterName,funcName,podID,userID,totalCost_worker,\
workerCost,runtimeCost,totalCost_frontend,frontendCost,busCost,readBodyCost,writeRspCost,cpu_usage,memory_usage,\
requestBodySize";
const PERCENTILES: &str = "percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,\
percentile_Average_75,percentile_Average_99,percentile_Average_100";
const MEMORY: &str = "SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct5,\
AverageAllocatedMb_pct25,AverageAllocatedMb_pct50,AverageAllocatedMb_pct75,AverageAllocatedMb_pct95,\
AverageAllocatedMb_pct99,AverageAllocatedMb_pct100";
const KEY: &str = "HashOwner,HashApp,HashFunction";

pub fn write(
    wanted: &Wanted,
    functions: &[Function],
    format: Format,
    out: &Path,
) -> Result<Generated, SimError> {
    let (calls, files) = match format {
        Format::Own | Format::Azure2021 | Format::Huawei2025 => {
            let calls = single(wanted, functions, format, out).map_err(SimError::writing(out))?;
            (calls, vec![out.to_owned()])
        }
        Format::Azure2019 | Format::InVitro => {
            let is_per_function = format == Format::InVitro;
            tables(wanted, functions, is_per_function, out).map_err(SimError::writing(out))?
        }
    };
    Ok(Generated { calls, files })
}

/// Calls of a function in each minute.
fn counts(wanted: &Wanted, index: usize, function: &Function) -> Vec<u64> {
    let mut random = Random::new(wanted.seed ^ 0x5eed, index as u64);
    let phase = random.unit();
    let has_waves = wanted.model == Model::Azure2019;
    let one = |minute: u64| {
        if function.is_timer {
            let until = |minute: u64| (minute as f64 * function.rate + phase) as u64;
            return until(minute + 1) - until(minute);
        }
        let day = minute as f64 / DAY as f64;
        let wave = if has_waves { 1.0 + 0.25 * (TAU * day).sin() } else { 1.0 };
        poisson(&mut random, function.rate * wave)
    };
    (0..wanted.minutes).map(one).collect()
}

/// Seconds that a call takes.
fn duration_s(function: &Function, deviation: f64) -> f64 {
    let (median, spread) = function.duration;
    // The longest run of Azure's functions then, and a resolution of a millisecond.
    (median + spread * deviation.clamp(DEVIATIONS[0], DEVIATIONS[6])).exp().clamp(0.001, 600.0)
}

/// One call per row.
fn single(wanted: &Wanted, functions: &[Function], format: Format, out: &Path) -> io::Result<u64> {
    let mut file = BufWriter::new(File::create(out)?);
    let header = match format {
        Format::Azure2021 => "app,func,end_timestamp,duration",
        Format::Huawei2025 => HUAWEI,
        _ => "function,arrival_us,duration_us,payload_bytes",
    };
    writeln!(file, "{header}")?;
    let mut calls = 0;
    for (index, one) in functions.iter().enumerate() {
        let mut random = Random::new(wanted.seed ^ 0xca11, index as u64);
        let Function { owner, app, name, .. } = one;
        for (minute, count) in counts(wanted, index, one).into_iter().enumerate() {
            for number in 0..count {
                let place = if one.is_timer { number as f64 / count as f64 } else { random.unit() };
                let (at, took) =
                    ((minute as f64 + place) * 60.0, duration_s(one, normal(&mut random)));
                calls += 1;
                match format {
                    Format::Azure2021 => {
                        writeln!(file, "{owner}-{app},{name},{:.6},{took:.6}", at + took)?;
                    }
                    Format::Huawei2025 => writeln!(
                        file,
                        "{0:.6},{1:.6},{calls:016x},1,{app}-{name},pool-1000-{2:.0}-{number},{owner},{took:.6},0,\
                         {took:.6},{3:.6},0.001,0.001,0,0,1,{4:.3},0",
                        at + took,
                        at + took + 0.001,
                        one.memory_mb,
                        took + 0.002,
                        one.memory_mb
                    )?,
                    _ => {
                        writeln!(file, "{owner}-{app}-{name},{:.0},{:.0},0", at * 1e6, took * 1e6)?
                    }
                }
            }
        }
    }
    file.flush()?;
    Ok(calls)
}

/// Calls per minute, one file per day, with tables of durations and of memory.
fn tables(
    wanted: &Wanted,
    functions: &[Function],
    is_per_function: bool,
    out: &Path,
) -> io::Result<(u64, Vec<PathBuf>)> {
    fs::create_dir_all(out)?;
    let mut files = Vec::new();
    let mut create = |name: String| {
        let path = out.join(name);
        let file = File::create(&path).map(BufWriter::new);
        files.push(path);
        file
    };
    let mut durations = create("durations.csv".to_owned())?;
    let mut memory = create("memory.csv".to_owned())?;
    writeln!(durations, "{KEY},Average,Count,Minimum,Maximum,{PERCENTILES}")?;
    let key = if is_per_function { KEY } else { "HashOwner,HashApp" };
    writeln!(memory, "{key},{MEMORY}")?;
    let mut days = Vec::new();
    for day in 1..=wanted.minutes.div_ceil(DAY) {
        let mut file = create(format!("invocations.d{day:02}.csv"))?;
        write!(file, "{KEY},Trigger")?;
        (1..=DAY).try_for_each(|minute| write!(file, ",{minute}"))?;
        writeln!(file)?;
        days.push(file);
    }
    let (mut calls, mut last_app) = (0, ("", ""));
    for (index, one) in functions.iter().enumerate() {
        let Function { owner, app, name, trigger, .. } = one;
        let counts = counts(wanted, index, one);
        let count: u64 = counts.iter().sum();
        calls += count;
        for (file, day) in days.iter_mut().zip(counts.chunks(DAY as usize)) {
            write!(file, "{owner},{app},{name},{trigger}")?;
            for minute in 0..DAY as usize {
                write!(file, ",{}", day.get(minute).unwrap_or(&0))?;
            }
            writeln!(file)?;
        }
        let ms = DEVIATIONS.map(|deviation| duration_s(one, deviation) * 1e3);
        let text = ms.map(|ms| format!("{ms:.3}")).join(",");
        writeln!(
            durations,
            "{owner},{app},{name},{0:.3},{count},{1:.3},{2:.3},{text}",
            ms[3], ms[0], ms[6]
        )?;
        let mb = format!("{:.3}", one.memory_mb);
        let nine = [mb.as_str(); 9].join(",");
        if is_per_function {
            writeln!(memory, "{owner},{app},{name},{count},{nine}")?;
        } else if (&**owner, &**app) != last_app {
            writeln!(memory, "{owner},{app},{count},{nine}")?;
        }
        last_app = (owner, app);
    }
    durations.flush()?;
    memory.flush()?;
    days.iter_mut().try_for_each(|file| file.flush())?;
    Ok((calls, files))
}
