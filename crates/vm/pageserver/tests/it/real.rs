//! A real Firecracker, where there is one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farfork_pageserver::Event;

use crate::bed::{Bed, LIMIT, can_serve};

/// A directory with `state` and `memory` that the Firecracker on the `PATH` has written.
const SNAPSHOT: &str = "FARFORK_TEST_FIRECRACKER_SNAPSHOT";

#[test]
fn firecracker_restores_from_the_page_server() {
    if Command::new("firecracker").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: there is no firecracker on the PATH");
        return;
    }
    let Some(snapshot) = std::env::var_os(SNAPSHOT).map(PathBuf::from) else {
        println!("skipped: {SNAPSHOT} names no directory with a snapshot of this firecracker");
        return;
    };
    if !can_serve() {
        return;
    }
    let bed = Bed::of_files(&snapshot.join("state"), &snapshot.join("memory"));
    let serving = bed.serve();
    let api = bed.path("api");
    let mut monitor = Command::new("firecracker").arg("--api-sock").arg(&api).spawn().unwrap();
    let backend =
        format!(r#"{{"backend_type":"Uffd","backend_path":"{}"}}"#, serving.socket.display());
    let state = snapshot.join("state").display().to_string();
    let body = format!(r#"{{"snapshot_path":"{state}","mem_backend":{backend},"resume_vm":true}}"#);
    let answer = put(&mut monitor, &api, "/snapshot/load", &body);
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    serving.wait(|event| matches!(event, Event::Started { .. }).then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    assert!(monitor.try_wait().unwrap().is_none(), "the machine has ended");
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    let counters = serving.ended();
    assert!(counters.faults > 0 && counters.poisoned_pages == 0, "{counters:?}");
}

fn put(monitor: &mut Child, api: &Path, path: &str, body: &str) -> String {
    let until = Instant::now() + LIMIT;
    let mut socket = loop {
        match UnixStream::connect(api) {
            Ok(socket) => break socket,
            Err(error) => assert!(Instant::now() < until, "{error:?}, {:?}", monitor.try_wait()),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let length = body.len();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json");
    write!(socket, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = [0; 4096];
    let count = socket.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}
