//! Readers of the published formats.

use std::fs;
use std::path::PathBuf;

use farfork_sim::trace::{Format, Trace, read};

use crate::data;

fn sample(names: &[&str], format: Option<Format>) -> Trace {
    let paths: Vec<PathBuf> = names.iter().map(|name| data(name)).collect();
    read(&paths, format, 1).unwrap()
}

/// Function, arrival and duration of each call.
fn calls(trace: &Trace) -> Vec<(&str, u64, Option<u64>)> {
    let call = |request: &farfork_sim::trace::Request| {
        let name = trace.functions[request.function as usize].name.as_str();
        (name, request.arrival_us, request.duration_us)
    };
    trace.requests.iter().map(call).collect()
}

/// Line and reason of the malformed rows.
fn malformed(trace: &Trace) -> Vec<(u64, &str)> {
    assert_eq!(trace.rows_malformed, trace.malformed.len() as u64);
    trace.malformed.iter().map(|row| (row.line, row.reason.as_str())).collect()
}

#[test]
fn own_traces_are_sorted_and_bad_rows_are_named() {
    let trace = sample(&["own.csv"], None);
    let expected = [
        ("hello", 0, Some(10_300)),
        ("resize", 500_000, Some(250_000)),
        ("hello", 1_000_000, Some(10_300)),
    ];
    assert_eq!(calls(&trace), expected);
    assert_eq!(trace.requests[1].payload_bytes, 70_000);
    let bad = [(5, "the duration is negative: '-5'"), (6, "the arrival is empty")];
    assert_eq!(malformed(&trace), bad);
    assert_eq!(trace.sha256.len(), 64);
}

#[test]
fn calls_of_azure_2021_arrive_before_their_end() {
    let trace = sample(&["azure2021.csv"], None);
    // Ends at 9 s after 2.25 s, at 10.5 s after 0.5 s, and at 12.000001 s after one microsecond.
    let expected = [
        ("a1/f2", 0, Some(2_250_000)),
        ("a1/f1", 3_250_000, Some(500_000)),
        ("a2/f1", 5_250_000, Some(1)),
    ];
    assert_eq!(calls(&trace), expected);
    let bad = [(5, "the duration is negative: '-1'"), (6, "the end is not a number: 'soon'")];
    assert_eq!(malformed(&trace), bad);
}

#[test]
fn minutes_of_azure_2019_become_calls_within_them() {
    let files = ["azure2019_durations.csv", "azure2019_invocations.csv", "azure2019_memory.csv"];
    let trace = sample(&files, None);
    let all = calls(&trace);
    assert_eq!(all.len(), 3 + 2 + 1 + 1 + 4);
    let of = |name: &str| -> Vec<(u64, u64)> {
        let own = all.iter().filter(|call| call.0 == name);
        own.map(|call| (call.1, call.2.unwrap())).collect()
    };
    let first = of("o1/a1/f1");
    assert!(first.iter().all(|(_, us)| (50_000..=200_000).contains(us)), "{first:?}");
    // The calls' own minutes begin up to a minute before the first call.
    let minute = |at: u64| at / 60_000_000;
    assert!(first[..3].iter().all(|(at, _)| minute(*at) == 0), "{first:?}");
    assert!((1438..=1439).contains(&minute(first[5].0)), "{first:?}");
    assert!(of("o2/a2/f3").iter().all(|(_, us)| (5_000..=9_000).contains(us)));
    // Memory is that of the app; a function without durations gets typical ones.
    assert_eq!(trace.functions[0].memory_bytes, Some(170 << 20));
    assert_eq!((of("o1/a1/f2").len(), trace.notes.len()), (1, 1));
    assert!(trace.notes[0].contains("1 functions are not in the table"), "{:?}", trace.notes);
    // Tables are read before the calls.
    let bad = [
        (4, "the percentiles do not increase"),
        (3, "the memory is out of range: '0'"),
        (5, "a minute is not a number of calls: '-1'"),
        (6, "it has 6 fields, and the header has 1444"),
    ];
    assert_eq!(malformed(&trace), bad);
}

#[test]
fn the_seed_places_calls_within_their_minutes() {
    let paths = [data("azure2019_invocations.csv"), data("azure2019_durations.csv")];
    let read = |seed| read(&paths, None, seed).unwrap().requests;
    assert_eq!(read(1), read(1));
    assert_ne!(read(1), read(2));
}

#[test]
fn traces_without_calls_or_header_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    let long = "function,arrival_us,duration_us\n";
    for (text, format, words) in [
        ("", None, "it is empty"),
        (" \n\n", None, "it is empty"),
        (long, None, "no row of the trace is a call: 0 rows"),
        (&format!("{long}a,1,-1\n"), None, "no row of the trace is a call: 1 rows"),
        (
            "a,1,2\nb,3,4\n",
            None,
            "not the header of a known format (supported: own, azure2019, azure2021)",
        ),
        (
            "a,1,2\n",
            Some(Format::Own),
            "lacks function, arrival_us, duration_us and begins with 'a,1,2'",
        ),
        (long, Some(Format::Azure2021), "lacks app, func, end_timestamp, duration"),
        (long, Some(Format::Azure2019), "not the header of a table of azure2019"),
    ] {
        fs::write(&path, text).unwrap();
        let error = read(std::slice::from_ref(&path), format, 1).unwrap_err().to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
    let only = read(&[data("azure2019_durations.csv")], None, 1).unwrap_err().to_string();
    assert!(only.contains("no file has the calls per minute"), "{only}");
}

#[test]
fn odd_bytes_and_numbers_are_malformed_and_not_fatal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    let mut bytes = b"function,arrival_us,duration_us\r\n".to_vec();
    for row in [
        &b"a,1,2\r\n"[..],
        b"\xff\xfe,1,2\r\n",
        b"a,NaN,2\r\n",
        b"a,1,1e300\r\n",
        b"a,-1,2\r\n",
        b"a,1\r\n\r\n",
        b"\"a\nb\",2,3\r\n",
        b",1,2\r\n",
        b"a,5,6",
    ] {
        bytes.extend(row);
    }
    fs::write(&path, bytes).unwrap();
    let trace = read(&[path], None, 1).unwrap();
    let lines: Vec<u64> = trace.malformed.iter().map(|row| row.line).collect();
    assert_eq!(
        (trace.requests.len(), lines),
        (3, vec![3, 4, 5, 6, 7, 11]),
        "{:?}",
        trace.malformed
    );
}

#[test]
fn formats_that_are_not_supported_yet_name_those_that_are() {
    for (text, words) in
        [("huawei2025", "not supported yet"), ("invitro", "not supported yet"), ("x", "unknown")]
    {
        let error = text.parse::<Format>().unwrap_err();
        assert!(error.contains(words) && error.contains("own, azure2019, azure2021"), "{error}");
    }
    assert!(Format::ALL.iter().all(|format| format.name().parse() == Ok(*format)));
}
