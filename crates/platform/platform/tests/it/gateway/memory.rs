//! Limits of the memory of requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_policy::settings::Requests;
use serde_json::json;

use crate::gateway::bed::{Bed, GUEST, OTHER};

const MIB: usize = 1 << 20;

/// Room for three requests of a namespace, and for four in all.
fn bed() -> Bed {
    let bed = Bed::small(Requests { namespace_bytes: 3 << 20, all_bytes: 4 << 20 });
    bed.create("hello");
    let action = json!({"exec": {"kind": "python:default", "code": "x"}}).to_string();
    let path = "/api/v1/namespaces/_/actions/hello";
    bed.ask(Some(OTHER), "PUT", path, action.as_bytes()).good();
    bed
}

/// Arguments of almost 1 MiB, of a call that does not end.
fn large() -> Vec<u8> {
    let text = "x".repeat(MIB - 100);
    json!({"do": "wait", "text": text}).to_string().into_bytes()
}

fn call(bed: &Bed, key: &str) -> crate::gateway::bed::Answer {
    let path = "/api/v1/namespaces/_/actions/hello?blocking=true&timeout=1";
    bed.ask(Some(key), "POST", path, &large())
}

#[test]
fn requests_beyond_their_memory_are_refused() {
    let bed = bed();
    for _ in 0..3 {
        assert_eq!(call(&bed, GUEST).status, 202);
    }
    call(&bed, GUEST).assert_error(429, "requests of 'guest' hold");
    call(&bed, GUEST).assert_error(429, "of 3145728 bytes of memory; try again when");
    bed.guest("POST", "actions/hello?blocking=true", json!({})).good();
    assert_eq!(call(&bed, OTHER).status, 202);
    call(&bed, OTHER).assert_error(429, "requests of all namespaces hold");
    bed.caller.kept.lock().unwrap().clear();
    assert_eq!(bed.gateway.memory.used(), 0, "it is given back with the calls");
    assert_eq!(call(&bed, GUEST).status, 202);
}

#[test]
fn parameters_of_web_actions_count() {
    let bed = bed();
    let parameters = json!([{"key": "text", "value": "x".repeat(MIB - 100)},
                            {"key": "do", "value": "wait"}]);
    let annotations = json!([{"key": "web-export", "value": true}]);
    let put = json!({"parameters": parameters, "annotations": annotations});
    bed.guest("PUT", "actions/hello?overwrite=true", put).good();
    let path = "/api/v1/namespaces/_/actions/hello?blocking=true&timeout=1";
    for _ in 0..2 {
        assert_eq!(bed.ask(Some(GUEST), "POST", path, b"{}").status, 202);
    }
    let used = bed.gateway.memory.used();
    assert!((2 * MIB as u64 - 1000..2 * MIB as u64).contains(&used), "{used}");
    // A third call has room for its parameters, and this one not for its own besides.
    assert_eq!(bed.ask(Some(GUEST), "POST", path, b"{}").status, 202);
    let web = bed.ask(None, "GET", "/api/v1/web/guest/default/hello", b"");
    web.assert_error(429, "requests of 'guest' hold");
}

#[test]
fn a_request_larger_than_the_memory_is_never_accepted() {
    let bed = Bed::small(Requests { namespace_bytes: 1000, all_bytes: 4 << 20 });
    bed.create("hello");
    call(&bed, GUEST).assert_error(413, "a request may have up to 1000 bytes");
    assert!(bed.caller.recorded().is_empty());
    // Code counts while it arrives.
    let action = json!({"exec": {"kind": "python:default", "code": "x".repeat(1000)}});
    bed.guest("PUT", "actions/large", action).assert_error(413, "a request may have up to 1000");
    assert_eq!(bed.gateway.memory.used(), 0);
}

#[test]
fn limits_are_shown() {
    let limits = bed().get("limits").good();
    assert_eq!(limits["requestMemoryMax"], 3 << 20);
    assert_eq!(limits["requestMemoryMaxOfAll"], 4 << 20);
    assert_eq!([&limits["diskCodeMax"], &limits["diskRecordsMax"]], [1 << 30, 1 << 30]);
}

/// A client may ask for much, and read it as slowly as it likes.
#[test]
fn answers_that_are_not_read_count() {
    let bed = Bed::small(Requests { namespace_bytes: 70 << 20, all_bytes: 100 << 20 });
    let code = "#".repeat(20 << 20);
    let action = json!({"exec": {"kind": "python:default", "code": code}});
    bed.guest("PUT", "actions/large", action).good();
    let key = STANDARD.encode(GUEST);
    let ask = || {
        let mut stream = TcpStream::connect(bed.address()).unwrap();
        let path = "/api/v1/namespaces/_/actions/large";
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {key}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status).into_owned())
    };
    let held = [0; 3].map(|_| ask());
    assert!(held.iter().all(|(_, status)| status == "HTTP/1.1 200"), "{held:?}");
    assert!(bed.gateway.memory.used() >= 60 << 20, "{}", bed.gateway.memory.used());
    bed.get("actions/large").assert_error(429, "requests of 'guest' hold");
    drop(held);
    let begun = Instant::now();
    while bed.gateway.memory.used() > 0 && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(bed.get("actions/large").status, 200);
}
