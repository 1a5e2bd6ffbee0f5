//! Parts of traces: some functions with all of their calls, and how far they are from the whole.
//!
//! The method is that of In-Vitro (Ustiugov et al., WORDS '23): functions are chosen at random, several times, and the
//! choice whose load per minute is most like the whole's is taken. Compared are two distributions over functions, for
//! each minute: the number of calls, and the resources, which are calls times mean duration (ms) times memory (MB),
//! divided by a million to bring both to one scale. The distance is Wasserstein's: the area between the two cumulative
//! distributions.

use std::collections::BTreeSet;

use crate::error::SimError;
use crate::profile::COLD_BYTES;
use crate::random::Random;
use crate::trace::Stream;

const MINUTE_US: u64 = 60_000_000;
/// Brings resources to the scale of calls.
const RESOURCES: f64 = 1e6;

/// Distances of a sample from the whole.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Distances {
    /// The mean over minutes.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// Of each minute, from that of the first call on.
    pub per_minute: Vec<f64>,
}

/// A chosen part of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Indices of its functions.
    pub functions: Vec<usize>,
    /// Its calls.
    pub calls: u64,
    /// How far calls per minute are from those of the whole.
    pub invocations: Distances,
    /// The same of resources.
    pub resources: Distances,
    /// The mean of both means, of each choice that was tried: the sample is the one with the smallest.
    pub tried: Vec<f64>,
}

/// A minute: load of the functions that were called, from the smallest to the largest.
type Minute = Vec<(f32, u32)>;

/// The load of each minute.
struct Load {
    functions: usize,
    calls: Vec<u64>,
    invocations: Vec<Minute>,
    resources: Vec<Minute>,
}

/// Chooses so many functions of a trace.
pub fn sample(
    stream: &Stream,
    functions: usize,
    trials: u64,
    seed: u64,
) -> Result<Sample, SimError> {
    let all = stream.trace.functions.len();
    if functions == 0 || functions > all {
        return Err(SimError::Sample { wanted: functions, all });
    }
    let load = load(stream)?;
    let mut best: Option<(f64, Sample)> = None;
    let mut tried = Vec::new();
    for trial in 0..trials.max(1) {
        let chosen = choose(all, functions, &mut Random::new(seed, trial));
        let one = measured(&load, chosen);
        let distance = (one.invocations.mean + one.resources.mean) / 2.0;
        tried.push(distance);
        if best.as_ref().is_none_or(|(least, _)| distance < *least) {
            best = Some((distance, one));
        }
    }
    let (_, best) = best.ok_or(SimError::Sample { wanted: functions, all })?;
    Ok(Sample { tried, ..best })
}

/// The names of a sample's functions.
pub fn names<'a>(stream: &'a Stream, sample: &Sample) -> BTreeSet<&'a str> {
    sample.functions.iter().map(|index| stream.trace.functions[*index].name.as_str()).collect()
}

/// So many of all indices, each equally likely, in their order.
fn choose(all: usize, wanted: usize, random: &mut Random) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..all).collect();
    for place in 0..wanted {
        let other = place + (random.unit() * (all - place) as f64) as usize;
        indices.swap(place, other.min(all - 1));
    }
    indices.truncate(wanted);
    indices.sort_unstable();
    indices
}

fn load(stream: &Stream) -> Result<Load, SimError> {
    let functions = stream.trace.functions.len();
    let (mut calls, mut busy_us) = (vec![0u64; functions], vec![0u128; functions]);
    let mut invocations: Vec<Minute> = Vec::new();
    // Calls of the current minute by function, and the functions that have any.
    let (mut now, mut touched, mut minute) = (vec![0u32; functions], Vec::new(), 0);
    let mut end = |now: &mut Vec<u32>, touched: &mut Vec<u32>| {
        let count =
            |function: &u32| (std::mem::take(&mut now[*function as usize]) as f32, *function);
        let mut loads: Minute = touched.iter().map(count).collect();
        loads.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        touched.clear();
        invocations.push(loads);
    };
    for request in stream.requests() {
        let request = request.map_err(|source| SimError::Spill { source })?;
        while minute < request.arrival_us / MINUTE_US {
            end(&mut now, &mut touched);
            minute += 1;
        }
        let function = request.function as usize;
        if now[function] == 0 {
            touched.push(request.function);
        }
        now[function] = now[function].saturating_add(1);
        calls[function] += 1;
        busy_us[function] += u128::from(request.duration_us.unwrap_or(0));
    }
    end(&mut now, &mut touched);
    let weight = |function: usize| {
        let mean_ms = busy_us[function] as f64 / calls[function].max(1) as f64 / 1e3;
        let bytes = stream.trace.functions[function].memory_bytes.unwrap_or(COLD_BYTES);
        mean_ms * (bytes as f64 / 1_048_576.0) / RESOURCES
    };
    let weights: Vec<f64> = (0..functions).map(weight).collect();
    let of_minute = |minute: &Minute| {
        let load = |(count, function): &(f32, u32)| {
            ((f64::from(*count) * weights[*function as usize]) as f32, *function)
        };
        let mut loads: Minute = minute.iter().map(load).collect();
        loads.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        loads
    };
    let resources = invocations.iter().map(of_minute).collect();
    Ok(Load { functions, calls, invocations, resources })
}

fn measured(load: &Load, chosen: Vec<usize>) -> Sample {
    let mut is_chosen = vec![false; load.functions];
    chosen.iter().for_each(|index| is_chosen[*index] = true);
    let distances = |minutes: &[Minute]| {
        let one = |minute: &Minute| distance(minute, &is_chosen, chosen.len());
        let per_minute: Vec<f64> = minutes.iter().map(one).collect();
        Distances {
            mean: per_minute.iter().sum::<f64>() / per_minute.len().max(1) as f64,
            max: per_minute.iter().copied().fold(0.0, f64::max),
            per_minute,
        }
    };
    let (invocations, resources) = (distances(&load.invocations), distances(&load.resources));
    let calls = chosen.iter().map(|index| load.calls[*index]).sum();
    Sample { functions: chosen, calls, invocations, resources, tried: Vec::new() }
}

/// Wasserstein's distance of a minute's loads of the chosen functions from those of all. Functions that are not in
/// the list have no load.
fn distance(minute: &Minute, is_chosen: &[bool], chosen: usize) -> f64 {
    let busy = minute.iter().filter(|(_, function)| is_chosen[*function as usize]).count();
    // Functions with at most the load that was reached.
    let (mut below, mut below_chosen) = (is_chosen.len() - minute.len(), chosen - busy);
    let (mut at, mut area) = (0.0, 0.0);
    for (value, function) in minute {
        let value = f64::from(*value);
        let share = below as f64 / is_chosen.len() as f64;
        let share_chosen = below_chosen as f64 / chosen as f64;
        area += (share - share_chosen).abs() * (value - at);
        at = value;
        below += 1;
        below_chosen += usize::from(is_chosen[*function as usize]);
    }
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance by its definition: values in their order, each repeated so that both lists have equal lengths.
    fn by_definition(all: &[f64], chosen: &[f64]) -> f64 {
        let repeated = |list: &[f64], times: usize| {
            let mut long: Vec<f64> = list.iter().flat_map(|one| vec![*one; times]).collect();
            long.sort_by(f64::total_cmp);
            long
        };
        let (all_long, chosen_long) = (repeated(all, chosen.len()), repeated(chosen, all.len()));
        let pairs = all_long.iter().zip(&chosen_long);
        pairs.map(|(one, other)| (one - other).abs()).sum::<f64>() / all_long.len() as f64
    }

    #[test]
    fn distances_are_those_of_the_definition() {
        let mut random = Random::new(9, 9);
        for _ in 0..200 {
            let count = 2 + (random.next() % 12) as usize;
            let values: Vec<f64> = (0..count).map(|_| (random.next() % 5) as f64).collect();
            let wanted = 1 + (random.next() as usize) % count;
            let chosen = choose(count, wanted, &mut random);
            let mut is_chosen = vec![false; count];
            chosen.iter().for_each(|index| is_chosen[*index] = true);
            let loads = values.iter().zip(0..).filter(|(value, _)| **value > 0.0);
            let mut minute: Minute = loads.map(|(value, index)| (*value as f32, index)).collect();
            minute.sort_by(|one, other| one.0.total_cmp(&other.0));
            let seen = distance(&minute, &is_chosen, wanted);
            let part: Vec<f64> = chosen.iter().map(|index| values[*index]).collect();
            let right = by_definition(&values, &part);
            assert!((seen - right).abs() < 1e-9, "{seen}, not {right}: {values:?}, {chosen:?}");
        }
    }

    #[test]
    fn choices_are_of_different_functions_and_equally_likely() {
        let mut seen = [0; 10];
        for place in 0..5000 {
            let chosen = choose(10, 3, &mut Random::new(4, place));
            assert!(chosen.len() == 3 && chosen.windows(2).all(|pair| pair[0] < pair[1]));
            chosen.iter().for_each(|index| seen[*index] += 1);
        }
        assert!(seen.iter().all(|count| (1350..1650).contains(count)), "{seen:?}");
    }
}
