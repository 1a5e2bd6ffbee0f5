//! Generated traces, and samples of traces.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use farfork_sim::generate::{Generated, Model, Wanted, generate};
use farfork_sim::sample::{names, sample};
use farfork_sim::trace::{self, Format, Stream, Trace, open, read};

use crate::data;

const WANTED: Wanted =
    Wanted { model: Model::Poisson, functions: 40, minutes: 5, calls: 3000, seed: 4 };

fn made(wanted: &Wanted, format: Format, out: &Path) -> (Generated, Trace) {
    let generated = generate(wanted, format, out).unwrap();
    let trace = read(&[out.to_owned()], None, 1).unwrap();
    (generated, trace)
}

#[test]
fn what_is_generated_can_be_read_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    for model in Model::ALL {
        let mut counts = BTreeSet::new();
        for format in Format::ALL {
            let wanted = Wanted { model, ..WANTED };
            let out = directory.path().join(format!("{model}-{format}"));
            let (generated, trace) = made(&wanted, format, &out);
            assert_eq!((trace.rows_malformed, trace.notes.len()), (0, 0), "{model} {format}");
            assert_eq!(trace.requests.len() as u64, generated.calls, "{model} {format}");
            assert!(trace.is_synthetic());
            assert!(trace.requests.iter().all(|request| request.duration_us.is_some()));
            assert!(generated.files.iter().all(|file| file.is_file()));
            // Except in Huawei's format, a function is what it is in all of them.
            let called: BTreeSet<u32> = trace.requests.iter().map(|one| one.function).collect();
            if format != Format::Huawei2025 {
                counts.insert(called.len());
            }
            let has_memory = !matches!(format, Format::Own | Format::Azure2021);
            assert!(trace.functions.iter().all(|one| one.memory_bytes.is_some() == has_memory));
        }
        assert_eq!(counts.len(), 1, "{model}");
    }
}

#[test]
fn poisson_arrivals_have_the_wanted_rate_and_popularity() {
    let directory = tempfile::tempdir().unwrap();
    let wanted = Wanted { minutes: 60, calls: 40_000, ..WANTED };
    let (generated, trace) = made(&wanted, Format::Own, &directory.path().join("t.csv"));
    assert!((generated.calls as f64 / 4e4 - 1.0).abs() < 0.02, "{generated:?}");
    let of = |name: &str| {
        let index = trace.functions.iter().position(|one| one.name.ends_with(name)).unwrap();
        trace.requests.iter().filter(|one| one.function as usize == index).count() as f64
    };
    assert!((of("-func-0") / of("-func-3") / 4.0 - 1.0).abs() < 0.1);
    let again = generate(&wanted, Format::Own, &directory.path().join("u.csv")).unwrap();
    let read = |path: &Path| std::fs::read(path).unwrap();
    assert!(read(&generated.files[0]) == read(&again.files[0]), "equal seeds, equal files");
    let other = Wanted { seed: 5, ..wanted };
    let other = generate(&other, Format::Own, &directory.path().join("v.csv")).unwrap();
    assert!(read(&generated.files[0]) != read(&other.files[0]));
}

fn stream(paths: &[PathBuf]) -> Stream {
    open(paths, None, 1).unwrap()
}

#[test]
fn a_sample_holds_its_functions_with_all_of_their_calls_in_each_format() {
    let directory = tempfile::tempdir().unwrap();
    for format in Format::ALL {
        let whole = directory.path().join(format!("{format}.csv"));
        generate(&WANTED, format, &whole).unwrap();
        let paths = [whole];
        let all = stream(&paths);
        let functions = all.trace.functions.len() / 3;
        let part = sample(&all, functions, 8, 2).unwrap();
        assert_eq!((part.functions.len(), part.tried.len()), (functions, 8));
        let out = directory.path().join(format!("{format}-sample"));
        let chosen = names(&all, &part);
        trace::copy(&paths, None, &chosen, &out).unwrap();
        let copied = stream(&[out]);
        assert_eq!(copied.count(), part.calls, "{format}");
        let kept: BTreeSet<&str> =
            copied.trace.functions.iter().map(|one| one.name.as_str()).collect();
        assert!(kept.is_subset(&chosen), "{format}");
        let called = |one: &&usize| {
            all.requests().any(|request| request.unwrap().function as usize == **one)
        };
        let called = part.functions.iter().filter(called);
        assert!(called.map(|one| &*all.trace.functions[*one].name).all(|name| kept.contains(name)));
        let memory = |trace: &Trace, name: &str| {
            trace.functions.iter().find(|one| one.name == name).unwrap().memory_bytes
        };
        assert!(kept.iter().all(|name| memory(&copied.trace, name) == memory(&all.trace, name)));
    }
}

#[test]
fn the_whole_has_no_distance_from_itself_and_more_trials_come_nearer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    generate(&WANTED, Format::Own, &path).unwrap();
    let all = stream(&[path]);
    let functions = all.trace.functions.len();
    let whole = sample(&all, functions, 1, 1).unwrap();
    assert_eq!((whole.invocations.max, whole.resources.max, whole.calls), (0.0, 0.0, all.count()));
    assert_eq!(whole.invocations.per_minute.len(), 5);
    let distance = |trials| {
        let part = sample(&all, functions / 4, trials, 1).unwrap();
        let mean = (part.invocations.mean + part.resources.mean) / 2.0;
        assert_eq!(part.tried.iter().copied().fold(f64::INFINITY, f64::min), mean);
        mean
    };
    assert!(distance(64) < distance(1) && distance(64) > 0.0);
    for wrong in [0, functions + 1] {
        let error = sample(&all, wrong, 1, 1).unwrap_err().to_string();
        assert!(error.contains(&format!("give --functions 1 to {functions}")), "{error}");
    }
}

#[test]
fn a_sample_overwrites_neither_its_trace_nor_itself() {
    let directory = tempfile::tempdir().unwrap();
    let chosen = BTreeSet::from(["hello"]);
    let path = directory.path().join("own.csv");
    std::fs::copy(data("own.csv"), &path).unwrap();
    let copy = |paths: &[PathBuf]| trace::copy(paths, None, &chosen, directory.path());
    let error = copy(std::slice::from_ref(&path)).unwrap_err().to_string();
    assert!(error.contains("the sample would overwrite it"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(data("own.csv")).unwrap());
    let out = directory.path().join("out");
    let error = trace::copy(&[path, data("own.csv")], None, &chosen, &out).unwrap_err().to_string();
    assert!(error.contains("another file of the trace has the same name"), "{error}");
}
