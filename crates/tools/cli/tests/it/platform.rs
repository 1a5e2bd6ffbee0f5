//! The client of the platform against a fake platform: the requests that it sends, and how it handles
//! responses that a real platform seldom sends.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Answers requests with prepared responses, in their order, and keeps the requests.
struct FakePlatform {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakePlatform {
    fn answering(answers: Vec<Vec<u8>>) -> FakePlatform {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        // The thread ends with the test.
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let request = request(&mut stream);
                kept.lock().expect("not poisoned").push(request);
                // The client may have hung up.
                let _ = stream.write_all(&answer);
            }
        });
        FakePlatform { address, requests }
    }

    fn farfork(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
        command.args(arguments).env("FARFORK_URL", format!("http://{}", self.address));
        command.env("FARFORK_KEY", "user:secret").output().expect("farfork starts")
    }

    /// Methods and paths of the requests.
    fn request_lines(&self) -> Vec<String> {
        let all = self.requests.lock().expect("not poisoned");
        all.iter().map(|request| request.split(" HTTP/").next().unwrap_or("").to_owned()).collect()
    }
}

/// A request up to the end of its body.
fn request(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&all).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut part).expect("the request") {
            0 => return text,
            read => all.extend(&part[..read]),
        }
    }
}

fn answer(status: u16, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into()
}

fn document(status: u16, body: &Value) -> Vec<u8> {
    answer(status, &body.to_string())
}

fn parts(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_client_polls_for_the_record_of_a_long_call() {
    let id = "0123456789abcdef0123456789abcdef";
    let missing = json!({"error": "it does not exist", "code": "1"});
    let made = json!({"activationId": id, "logs": ["now stdout: slept"],
                      "response": {"result": {"n": 1}, "success": true, "status": "success"}});
    let platform = FakePlatform::answering(vec![
        document(202, &json!({ "activationId": id })),
        document(404, &missing),
        document(200, &made),
    ]);
    let (status, out, err) = parts(&platform.farfork(&["invoke", "a b", "-p", "x", "1"]));
    assert_eq!((status, err.as_str()), (Some(0), "now stdout: slept\n"));
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), json!({"n": 1}));
    let place = "/api/v1/namespaces/_";
    let record = format!("GET {place}/activations/{id}");
    let call = format!("POST {place}/actions/a%20b?blocking=true");
    assert_eq!(platform.request_lines(), [call, record.clone(), record]);
    let sent = &platform.requests.lock().expect("not poisoned")[0];
    assert!(sent.contains("authorization: Basic dXNlcjpzZWNyZXQ=\r\n"), "{sent}");
    assert!(sent.ends_with("\r\n\r\n{\"x\":1}"), "{sent}");
}

#[test]
fn long_lists_are_read_to_their_end() {
    let page = |first: usize, count: usize| {
        let one = |number: usize| json!({"name": format!("f{number}"), "limits": {}});
        document(200, &Value::Array((first..first + count).map(one).collect()))
    };
    let platform = FakePlatform::answering(vec![page(0, 200), page(200, 200), page(400, 0)]);
    let (status, out, _) = parts(&platform.farfork(&["functions", "--json"]));
    let all: Vec<Value> = serde_json::from_str(&out).expect("JSON");
    assert_eq!((status, all.len(), &all[399]["name"]), (Some(0), 400, &json!("f399")));
    let skips = platform
        .request_lines()
        .into_iter()
        .map(|line| line.split("skip=").nth(1).map(str::to_owned));
    assert_eq!(skips.flatten().collect::<Vec<_>>(), ["0", "200", "400"]);
}

#[test]
fn a_new_version_keeps_annotations_that_are_not_given() {
    let before = json!({"annotations": [{"key": "exec", "value": "python:3.11"},
        {"key": "slo-p99-ms", "value": 5}, {"key": "slo-mean-ms", "value": 1}]});
    let made = json!({"namespace": "g", "name": "f", "version": "0.0.2", "exec": {"kind": "k"}});
    let platform = FakePlatform::answering(vec![document(200, &before), document(200, &made)]);
    let file = std::env::temp_dir().join(format!("farfork-f-{}.py", std::process::id()));
    fs::write(&file, "code").expect("a file");
    let path = file.display().to_string();
    let call = ["deploy", path.as_str(), "--name", "f", "--slo-p99-ms", "9"];
    let (status, out, err) = parts(&platform.farfork(&call));
    fs::remove_file(&file).expect("its end");
    assert_eq!((status, out.as_str()), (Some(0), "g/f 0.0.2 k\n"), "{err}");
    let requests = platform.requests.lock().expect("not poisoned");
    let body = requests[1].split("\r\n\r\n").nth(1).expect("a body");
    let sent: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(
        sent["annotations"],
        json!([{"key": "exec", "value": "python:3.11"},
        {"key": "slo-mean-ms", "value": 1}, {"key": "slo-p99-ms", "value": 9.0}])
    );
}

#[test]
fn a_share_replaces_a_tolerance_and_is_replaced_by_one() {
    for (kept, value, option, given, sent_value) in [
        ("latency-tolerance", json!(5), "--local-share", "300", json!(300)),
        ("local-share", json!(300), "--latency-tolerance", "5", json!(5.0)),
    ] {
        let before = json!({"annotations": [{"key": kept, "value": value}]});
        let made =
            json!({"namespace": "g", "name": "f", "version": "0.0.2", "exec": {"kind": "k"}});
        let platform = FakePlatform::answering(vec![document(200, &before), document(200, &made)]);
        let file = tempfile::Builder::new().suffix(".py").tempfile().expect("a file");
        let path = file.path().display().to_string();
        let call = ["deploy", path.as_str(), "--name", "f", option, given];
        let (status, _, err) = parts(&platform.farfork(&call));
        assert_eq!(status, Some(0), "{err}");
        let requests = platform.requests.lock().expect("not poisoned");
        let body = requests[1].split("\r\n\r\n").nth(1).expect("a body");
        let sent: Value = serde_json::from_str(body).expect("JSON");
        let key = option.trim_start_matches('-');
        assert_eq!(sent["annotations"], json!([{"key": key, "value": sent_value}]));
    }
}

#[test]
fn invalid_responses_are_described() {
    let cut = b"HTTP/1.1 200 x\r\nContent-Length: 99\r\n\r\n{".to_vec();
    for (given, words) in [
        (b"SSH-2.0-x\r\n".to_vec(), "the response is not HTTP"),
        (Vec::new(), "closed without a response"),
        (cut, "the response is truncated"),
        (answer(200, "<html>"), "no error of a platform"),
        (answer(503, "busy"), "status 503"),
        (
            document(401, &json!({"error": "It is invalid.", "code": "1"})),
            "use another key (--key-file)",
        ),
        (document(200, &json!({"not": "a list"})), "cannot list functions"),
    ] {
        let platform = FakePlatform::answering(vec![given]);
        let (status, out, err) = parts(&platform.farfork(&["functions"]));
        assert_eq!((status, out.as_str()), (Some(1), ""), "{err}");
        assert!(err.starts_with("farfork: ") && err.contains(words), "{words}: {err}");
        assert!(!err.contains("os error"), "{err}");
    }
    let platform = FakePlatform::answering(vec![answer(200, "<html>\n")]);
    let (status, _, err) = parts(&platform.farfork(&["top", "--once"]));
    assert!(status == Some(1) && err.contains("not a platform of this farfork version"), "{err}");
}
