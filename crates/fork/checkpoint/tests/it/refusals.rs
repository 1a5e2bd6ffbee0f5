//! `docs/refusals.md` is the catalogue of causes, and the catalogue is in the style of the house.
//!
//! `FARFORK_BLESS=1` writes the document anew.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use farfork_checkpoint::refuse::{Cause, GROUPS};

const HEAD: &str = "\
# What is refused, why, and what to do

A checkpoint refuses a process for any of these reasons, before it writes anything. The message
names the process and the object (`fd 7 (socket:[123], vsock)`), then the reason and the remedy from
this table. `farfork checkpoint --dry-run --pid PID` lists every reason that holds for a process.
[what-is-carried.md](reference/what-is-carried.md) lists what is carried.

The table is generated from the code that refuses. After a change there, write it again with
`FARFORK_BLESS=1 cargo test -p farfork-checkpoint --test it refusals`.
";

fn document() -> String {
    let mut text = HEAD.to_owned();
    for (title, causes) in GROUPS {
        write!(text, "\n## {title}\n\n| what | why | what to do |\n| --- | --- | --- |\n")
            .expect("a string takes everything");
        causes.iter().for_each(|cause| text.push_str(&row(cause)));
    }
    text
}

fn row(cause: &Cause) -> String {
    let [what, why, remedy] = texts(cause).map(|text| text.replace('|', "\\|"));
    format!("| {what} | {why} | {remedy} |\n")
}

fn texts(cause: &Cause) -> [&'static str; 3] {
    [cause.what(), cause.why(), cause.remedy()]
}

fn causes() -> impl Iterator<Item = &'static Cause> {
    GROUPS.iter().flat_map(|(_, causes)| causes.iter())
}

#[test]
fn the_document_is_the_catalogue() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/refusals.md");
    let expected = document();
    if env::var_os("FARFORK_BLESS").is_some() {
        fs::write(&path, &expected).expect("docs can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let differs = || expected.lines().find(|line| !found.lines().any(|found| found == *line));
    assert!(
        found == expected,
        "docs/refusals.md is not the catalogue (first difference: {:?}): run this test with \
         FARFORK_BLESS=1",
        differs()
    );
}

#[test]
fn every_cause_is_listed_once() {
    let mut whats = HashSet::new();
    for cause in causes() {
        assert!(whats.insert((cause.what(), cause.why())), "listed twice: {cause:?}");
    }
    let mut titles = HashSet::new();
    assert!(GROUPS.iter().all(|(title, _)| titles.insert(title)), "two groups have one title");
}

#[test]
fn every_cause_keeps_to_the_style() {
    for cause in causes() {
        for text in texts(cause) {
            let complaint = complaint(text);
            assert!(complaint.is_none(), "{text:?} {}: {cause:?}", complaint.unwrap_or_default());
        }
    }
}

/// What is wrong with a text that stands within a message.
fn complaint(text: &str) -> Option<&'static str> {
    let first = text.split([' ', '-']).next().unwrap_or_default();
    let is_short = first.len() > 1 && first.chars().all(|c| !c.is_lowercase());
    let is_name = is_short || NAMES.contains(&first);
    if text.trim() != text || text.is_empty() {
        Some("is empty, or has space around it")
    } else if text.starts_with(char::is_uppercase) && !is_name {
        Some("starts in upper case")
    } else if text.ends_with(['.', ';', ':', ',']) {
        Some("ends in a stop")
    } else if text.contains("os error") || text.split_whitespace().any(is_errno) {
        Some("names an error by its number or symbol")
    } else if text.contains(['{', '}', '\n']) {
        Some("holds a value or a line break")
    } else {
        None
    }
}

/// They are written with a capital wherever they stand.
const NAMES: [&str; 5] = ["Bluetooth", "Landlock", "Linux", "System", "Unix"];

/// `EPERM`, but neither `EPOLL_CTL_DEL` nor a word.
fn is_errno(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '_');
    let is_symbol = word.len() > 3 && word.starts_with('E');
    is_symbol && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
}

#[test]
fn a_text_out_of_style_is_seen() {
    let amiss = [
        "",
        " it is open",
        "It is open",
        "A file is open",
        "it is open.",
        "it failed with EBADF",
        "it failed (EPERM)",
        "it failed (os error 1)",
        "fd {fd} is open",
    ];
    for text in amiss {
        assert!(complaint(text).is_some(), "{text:?} passes");
    }
    for text in ["it is open", "MAC addresses differ", "POSIX message queue", "use EPOLL_CTL_DEL"] {
        assert_eq!(complaint(text), None, "{text:?}");
    }
}
