//! Readers of the published formats.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use farfork_sim::trace::{self, Format, Trace, read};

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
            "not the header of a known format (supported: own, azure2019, azure2021, huawei2025, invitro)",
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
fn formats_are_known_by_their_names() {
    let error = "x".parse::<Format>().unwrap_err();
    assert!(error.contains("unknown format 'x' (supported: own, azure2019, azure2021,"), "{error}");
    assert!(Format::ALL.iter().all(|format| format.name().parse() == Ok(*format)));
}

#[test]
fn requests_of_huawei_2025_arrive_before_their_end_and_carry_memory() {
    let trace = sample(&["huawei2025_requests.csv", "huawei2025_resources.csv"], None);
    // Ends at 10 s after 0.5 s, at 12 s after 1 s; the third has no time of a worker: 13 s less 0.25 s.
    let expected = [
        ("418/400---pool22-300-128", 0, Some(500_000)),
        ("418/400---pool22-300-128", 1_500_000, Some(1_000_000)),
        ("7/12---pool24-600-512", 3_250_000, Some(250_000)),
    ];
    assert_eq!(calls(&trace), expected);
    let bytes: Vec<u64> = trace.requests.iter().map(|request| request.payload_bytes).collect();
    assert_eq!(bytes, [1018, 2048, 0]);
    let memory: Vec<Option<u64>> = trace.functions.iter().map(|one| one.memory_bytes).collect();
    assert_eq!(memory, [Some((48.5 * 1_048_576.0) as u64), None], "the most that a call has used");
    // Of 128 MB each; of the third call nothing is known.
    let seen = trace.utilisation;
    let percent = |used: f64| Some((used / 128.0 * 100_000.0).round() / 1000.0);
    let [less, more] = [percent(32.308594), percent(48.5)];
    assert_eq!((seen.calls, seen.percent_p50, seen.percent_p90), (2, less, more));
    let mean = less.unwrap().midpoint(more.unwrap());
    assert!((seen.percent_mean.unwrap() - mean).abs() < 0.002, "{seen:?}");
    assert_eq!(seen.used_bytes_p90, memory[0]);
    let bad = [
        (5, "the duration is negative: '-1'"),
        (6, "podID is empty"),
        (7, "the payload is not a number of bytes: '-1'"),
        (8, "the time is out of range: 'inf'"),
    ];
    assert_eq!(malformed(&trace), bad);
    assert!(
        trace.notes[0].contains("requests of processors are not simulated"),
        "{:?}",
        trace.notes
    );
}

/// In-Vitro's tables, written as those of its example are.
#[test]
fn tables_of_in_vitro_give_memory_by_function() {
    let all = sample(&["invitro"], None);
    assert_eq!(all.requests.len(), 3 + 1 + 2);
    assert_eq!(all.functions[0].memory_bytes, Some(120 << 20));
    assert_eq!(all.functions[1].memory_bytes, Some(176 << 20));
    assert!(all.requests.iter().all(|request| request.duration_us.is_some()));
    assert!(all.notes[0].contains("call graphs are not simulated"), "{:?}", all.notes);
    assert_eq!(all.rows_malformed, 0);
    let forced = sample(&["invitro"], Some(Format::Azure2019));
    assert_eq!(forced.requests, all.requests);
}

/// In-Vitro's excerpts keep the minutes of the day that they were cut from.
#[test]
fn excerpts_begin_at_any_minute() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("invocations.csv");
    let row = "HashApp,HashFunction,HashOwner,541,542,543\na,f,o,1,0,0\na,g,o,0,0,2\na,h,o,0,x,0\n";
    fs::write(&path, row).unwrap();
    let trace = read(&[path], None, 1).unwrap();
    let names: Vec<&str> = calls(&trace).iter().map(|call| call.0).collect();
    assert_eq!(names, ["o/a/f", "o/a/g", "o/a/g"]);
    assert!(trace.requests[1].arrival_us > 60_000_000);
    assert_eq!(malformed(&trace), [(4, "a minute is not a number of calls: 'x'")]);
}

/// Headers with the mark of UTF-8, ends of lines of Windows, letters in another case.
#[test]
fn headers_are_found_as_programs_write_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    fs::write(&path, "\u{feff}APP,Func,end_timestamp,duration\r\na,f,3.5,0.5\r\n").unwrap();
    let trace = read(&[path], None, 1).unwrap();
    assert_eq!(calls(&trace), [("a/f", 0, Some(500_000))]);
}

#[test]
fn files_that_are_no_text_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    for (begin, words) in [
        (&b"\x1f\x8b\x08\0"[..], "it is compressed (gzip); unpack it first: gunzip --keep"),
        (b"\xfd7zXZ\0\0", "(xz)"),
        (b"PK\x03\x04zip", "(zip)"),
        (b"\0\0\0\0", "not the header of a known format"),
    ] {
        fs::write(&path, begin).unwrap();
        let error = read(std::slice::from_ref(&path), None, 1).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = read(&["/dev/null".into()], None, 1).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = read(&[directory.path().to_owned()], None, 1).unwrap_err().to_string();
    assert!(error.contains("no files that end in .csv"), "{error}");
}

/// A trace that does not fit into memory is the same as one that does.
#[test]
fn calls_are_sorted_alike_in_memory_and_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    let mut text = "function,arrival_us,duration_us\n".to_owned();
    for number in 0..5000u64 {
        let arrival = number.wrapping_mul(2_654_435_761) % 1000;
        text.push_str(&format!("f{},{arrival},{number}\n", number % 7));
    }
    fs::write(&path, text).unwrap();
    let open = |most| trace::open_within(std::slice::from_ref(&path), None, 1, most).unwrap();
    let all = read(std::slice::from_ref(&path), None, 1).unwrap();
    assert!(all.requests.is_sorted_by_key(|request| request.arrival_us));
    for most in [10, 4999, 5000, 5001] {
        let stream = open(most);
        assert_eq!(stream.count(), 5000);
        let twice = [stream.requests(), stream.requests()];
        for requests in twice {
            let requests: Result<Vec<_>, _> = requests.collect();
            assert!(requests.unwrap() == all.requests, "{most} in memory");
        }
    }
}

/// The lines of malformed rows, also far into a file, and with ends of lines of both kinds.
#[test]
fn lines_are_counted_in_long_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    for end in ["\n", "\r\n"] {
        let mut text = format!("function,arrival_us,duration_us{end}");
        for line in 2..60_000 {
            text.push_str(if line % 20_000 == 7 { "f,1,bad" } else { "f,1,2" });
            text.push_str(end);
        }
        fs::write(&path, text).unwrap();
        let trace = read(std::slice::from_ref(&path), None, 1).unwrap();
        let lines: Vec<u64> = trace.malformed.iter().map(|row| row.line).collect();
        assert_eq!(lines, [7, 20_007, 40_007]);
    }
}

/// A quote that is not closed would take all that follows into one row, and into memory.
#[test]
fn a_quote_that_is_not_closed_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    let begin = "function,arrival_us,duration_us\nf,1,2\nf,1,\"2\n";
    fs::write(&path, begin.to_owned() + &"f,1,2\n".repeat(4_000_000)).unwrap();
    let error = read(std::slice::from_ref(&path), None, 1).unwrap_err().to_string();
    assert!(error.contains("the row in line 3 is longer than 16 MiB; is a quote"), "{error}");
}

/// Headers of all formats, and rows of what could stand in a file.
fn odd_files() -> impl Strategy<Value = Vec<u8>> {
    let headers = [
        "function,arrival_us,duration_us,payload_bytes",
        "app,func,end_timestamp,duration",
        "HashOwner,HashApp,HashFunction,Trigger,1,2",
        "time_worker,funcName,userID,podID,totalCost_worker,memory_usage,requestBodySize",
    ];
    let field = prop_oneof![
        4 => "[0-9]{1,3}",
        2 => "-?[0-9]{1,25}(\\.[0-9]{1,9})?",
        1 => "(NaN|inf|-inf|1e999|0x1|\"|\"\"|\"a\nb\"| |\u{feff}|é)",
        1 => ".{0,6}",
    ];
    let row = prop::collection::vec(field, 1..9).prop_map(|fields| fields.join(","));
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let rows = prop::collection::vec((row, end), 0..20);
    (prop::sample::select(headers.to_vec()), rows, any::<[u8; 3]>()).prop_map(
        |(header, rows, bytes)| {
            let mut file = format!("{header}\n").into_bytes();
            rows.iter()
                .for_each(|(row, end)| file.extend([row.as_bytes(), end.as_bytes()].concat()));
            file.extend(bytes);
            file
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever stands in a file: an error or a trace, whose times are sorted and whose malformed rows are counted.
    #[test]
    fn no_file_makes_a_reader_panic(file in odd_files()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.csv");
        fs::write(&path, &file).unwrap();
        if let Ok(trace) = read(&[path], None, 1) {
            prop_assert!(trace.requests.is_sorted_by_key(|request| request.arrival_us));
            prop_assert_eq!(trace.requests[0].arrival_us, 0);
            prop_assert!(trace.malformed.len() as u64 <= trace.rows_malformed);
            let count = trace.functions.len();
            prop_assert!(trace.requests.iter().all(|one| (one.function as usize) < count));
        }
    }
}
