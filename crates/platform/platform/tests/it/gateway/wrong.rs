//! Invalid requests, and clients that misbehave.

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_platform::gateway::router;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::gateway::bed::{Bed, GUEST};

/// The timeout of these clients.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn malformed_documents_are_refused() {
    let bed = Bed::new();
    for body in ["", "{", "[]", "null", "\"x\"", "{\"exec\": {}} x", "{\"limits\": 7}"] {
        bed.guest("PUT", "actions/a", body).assert_error(400, "malformed content");
    }
    bed.guest("PUT", "actions/a?overwrite=maybe", json!({})).assert_error(400, "query");
    bed.get("actions/a?code=maybe").assert_error(400, "query");
    bed.get("actions?limit=-1").assert_error(400, "query");
    let deep = "[".repeat(200_000);
    bed.guest("PUT", "actions/a", deep.as_str()).assert_error(400, "malformed content");
    assert!(bed.caller.recorded().is_empty());
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let bed = Bed::new();
    for path in ["/", "/api", "/api/v2", "/api/v1/x", "/api/v1/namespaces/_/x", "/api/v1/"] {
        bed.ask(Some(GUEST), "GET", path, b"").assert_error(404, "no such path");
    }
    for (method, path) in [
        ("DELETE", "actions"),
        ("PATCH", "actions/a"),
        ("POST", "activations"),
        ("DELETE", "activations/00000000000000000000000000000000"),
        ("PUT", "packages"),
    ] {
        bed.guest(method, path, ()).assert_error(405, "method");
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let bed = Bed::new();
    bed.create("a");
    let key = STANDARD.encode(GUEST);
    for size in ["x", "-1", "10000000000000000", "2 2", "2;\n", ""] {
        let request = format!(
            "POST /api/v1/namespaces/_/actions/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Basic {key}\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n{{}}\r\n0\r\n\r\n"
        );
        bed.raw(request.as_bytes()).assert_error(400, "malformed body");
    }
}

#[test]
fn bodies_that_are_too_large_are_refused_unread() {
    let bed = Bed::new();
    bed.create("a");
    bed.caller.recorded();
    // Announced and not sent: the gateway does not wait for it.
    let announced = |method: &str, bytes: u64| {
        let key = STANDARD.encode(GUEST);
        let request = format!(
            "{method} /api/v1/namespaces/_/actions/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Authorization: Basic {key}\r\nContent-Length: {bytes}\r\n\r\n"
        );
        bed.raw(request.as_bytes())
    };
    announced("PUT", (64 << 20) + 1).assert_error(413, "larger than allowed");
    announced("POST", (1 << 20) + 1).assert_error(413, "larger than allowed");
    announced("POST", u64::from(u32::MAX) * 1000).assert_error(413, "larger than allowed");
    // Sent in pieces of unknown number.
    let key = STANDARD.encode(GUEST);
    let mut request = format!(
        "POST /api/v1/namespaces/_/actions/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Basic {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    let piece = vec![b' '; 0xffff];
    for _ in 0..20 {
        request.extend(b"ffff\r\n");
        request.extend(&piece);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    bed.raw(&request).assert_error(413, "larger than allowed");
    // As large as arguments may be.
    let fitting = format!("{{\"a\": \"{}\"}}", "x".repeat((1 << 20) - 9));
    assert_eq!(bed.guest("POST", "actions/a?blocking=true", fitting.as_str()).status, 200);
    assert_eq!(bed.caller.recorded().len(), 1);
}

#[test]
fn clients_that_disconnect_halfway_do_no_harm() {
    let bed = Bed::new();
    bed.create("a");
    for part in [
        &b"GET /api/v1 HTT"[..],
        b"POST /api/v1/namespaces/_/actions/a HTTP/1.1\r\nContent-Length: 50\r\n\r\n{",
        b"\0\0\0\0",
        b"",
    ] {
        let mut stream = TcpStream::connect(bed.address()).unwrap();
        stream.write_all(part).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
    }
    assert_eq!(bed.guest("POST", "actions/a?blocking=true", json!({})).status, 200);
}

#[test]
fn clients_that_close_their_sending_side_get_responses() {
    let bed = Bed::new();
    bed.create("a");
    let mut stream = TcpStream::connect(bed.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(post("?blocking=true", "{\"late\":1}").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn accepted_calls_of_disconnected_clients_are_made() {
    let bed = Bed::new();
    bed.create("a");
    bed.caller.recorded();
    const CALLS: usize = 32;
    for _ in 0..CALLS {
        let mut stream = TcpStream::connect(bed.address()).unwrap();
        stream.write_all(post("", "{}").as_bytes()).unwrap();
    }
    let begun = Instant::now();
    let mut made = 0;
    while made < CALLS && begun.elapsed() < PATIENCE {
        made += bed.caller.recorded().len();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((made, bed.store.accepted().unwrap().len()), (CALLS, 0));
}

/// A handler may be dropped halfway, as hyper does when the client disconnects.
#[test]
fn begun_requests_complete_after_a_disconnect() {
    let bed = Bed::new();
    bed.create("a");
    bed.caller.recorded();
    let runtime = Runtime::new().unwrap();
    let service = TowerToHyperService::new(router(bed.gateway.clone()));
    for (method, path, body, expected) in [
        ("POST", "a", "{}", "call guest/a accepted=true"),
        ("PUT", "a?overwrite=true", "{}", "gone guest/a 0.0.1"),
        ("DELETE", "a", "", "gone guest/a 0.0.2"),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/namespaces/_/actions/{path}"))
            .header("authorization", format!("Basic {}", STANDARD.encode(GUEST)))
            .body(Body::from(body))
            .unwrap();
        runtime.block_on(async {
            let mut answer = pin!(service.call(request));
            let is_begun = poll_fn(|task| Poll::Ready(answer.as_mut().poll(task).is_pending()));
            assert!(is_begun.await, "{method} waits for the disk");
        });
        let begun = Instant::now();
        let mut heard = Vec::new();
        while heard.is_empty() && begun.elapsed() < PATIENCE {
            heard = bed.caller.recorded();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(heard, [expected]);
    }
}

/// A request for a call.
fn post(query: &str, body: &str) -> String {
    let (key, bytes) = (STANDARD.encode(GUEST), body.len());
    format!(
        "POST /api/v1/namespaces/_/actions/a{query} HTTP/1.1\r\nHost: x\r\n\
         Authorization: Basic {key}\r\nContent-Length: {bytes}\r\n\r\n{body}"
    )
}

#[test]
fn slow_clients_lose_their_connections_and_waiting_ones_do_not() {
    let bed = Bed::impatient();
    bed.create("a");
    let key = STANDARD.encode(GUEST);
    let post = |bytes: usize| {
        format!(
            "POST /api/v1/namespaces/_/actions/a?blocking=true HTTP/1.1\r\nHost: x\r\n\
             Authorization: Basic {key}\r\nContent-Length: {bytes}\r\n\r\n{{"
        )
    };
    bed.raw(post(50).as_bytes()).assert_error(408, "timed out");
    let connected = || {
        let stream = TcpStream::connect(bed.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    for part in [&b""[..], b"GET /api/v1 HTT", b"GET /api/v1 HTTP/1.1\r\nHost: x\r\n\r\nGET"] {
        let mut stream = connected();
        stream.write_all(part).unwrap();
        stream.read_to_end(&mut Vec::new()).expect("an end of the connection");
    }
    // A client that reads no responses, until buffers are full.
    let mut stream = connected();
    let most = 1 << 20;
    let request = post(most) + "\"a\": \"" + &"x".repeat(most - 9) + "\"}";
    let gone = (0..64).find_map(|_| stream.write_all(request.as_bytes()).err());
    let gone = gone.expect("an end of the connection").kind();
    assert!(matches!(gone, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{gone}");
    assert_eq!(bed.guest("POST", "actions/a?blocking=true", json!({"late": 1})).status, 200);
}

/// They would otherwise take all descriptors of the platform, which then cannot reach its nodes either.
#[test]
fn clients_that_only_connect_keep_no_others_out() {
    let bed = Bed::narrow(8);
    bed.create("a");
    let half_open = |_| {
        let mut stream = TcpStream::connect(bed.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /api/v1 HTTP/1.1\r\nHost: x\r\nX-A: ").unwrap();
        stream
    };
    let mut streams: Vec<TcpStream> = (0..40).map(half_open).collect();
    assert_eq!(bed.guest("POST", "actions/a?blocking=true", json!({})).status, 200);
    // All but the last lose their connections.
    for stream in &mut streams[..32] {
        // Reset, or closed.
        let read = stream.read(&mut [0; 1]);
        assert!(
            matches!(&read, Ok(0)) || read.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
        );
    }
}

#[test]
fn one_connection_too_many_is_refused_in_words() {
    let bed = Bed::narrow(2);
    bed.create("a");
    let request = post("?blocking=true", "{\"do\": \"wait\"}");
    let waiting = [0; 2].map(|_| {
        let mut stream = TcpStream::connect(bed.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    });
    let begun = Instant::now();
    while bed.caller.kept.lock().unwrap().len() < 2 && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let refused = bed.raw(b"");
    refused.assert_error(503, "too many connections");
    bed.caller.kept.lock().unwrap().clear();
    for mut stream in waiting {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1, "an answer");
    }
    assert_eq!(bed.guest("POST", "actions/a?blocking=true", json!({})).status, 200);
}
