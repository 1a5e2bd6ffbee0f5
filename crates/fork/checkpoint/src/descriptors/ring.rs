//! What a ring of io_uring is, for people.

use std::path::Path;

use farfork_sys::proc;

/// Files by which a process shows that a library makes its rings, and the library.
const LIBRARIES: [(&str, &str); 5] = [
    ("/uvloop/", "uvloop (libuv)"),
    ("/libuv.so", "libuv"),
    ("/libuv-", "libuv"),
    ("/liburing.so", "liburing"),
    ("/liburing-", "liburing"),
];
/// Programs that libuv is a part of.
const WITH_LIBUV: [&str; 2] = ["node", "nodejs"];

/// A ring of process `pid`, with the library that made it, as far as its files show that.
pub fn describe(pid: i32) -> String {
    match library(pid) {
        Some(library) => format!("a ring of {library}"),
        None => "a ring".to_owned(),
    }
}

fn library(pid: i32) -> Option<String> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().map(Path::new).unwrap_or(Path::new("")).display().to_string();
    if WITH_LIBUV.contains(&name.as_str()) {
        return Some("Node.js (libuv)".to_owned());
    }
    let maps = proc::text(format!("/proc/{pid}/maps")).unwrap_or_default();
    let found = LIBRARIES.iter().find(|(part, _)| maps.contains(part));
    found.map(|(_, library)| (*library).to_owned())
}
