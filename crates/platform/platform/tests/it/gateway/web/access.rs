//! Which clients may call which web actions.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Web, listed};
use crate::gateway::bed::{Bed, GUEST, OTHER};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const HELLO: &str = "guest/default/hello.json";

fn basic(key: &str) -> String {
    format!("Basic {}", STANDARD.encode(key))
}

#[test]
fn calls_need_no_key_and_the_owner_has_the_record() {
    let web = Web::new();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let answer = web.send("GET", HELLO, &[("traceparent", &parent)], b"");
    let id = answer.header("x-openwhisk-activation-id").unwrap().to_owned();
    assert_eq!(answer.good()["__ow_method"], "get");
    assert_eq!(web.bed.caller.recorded(), ["call guest/hello accepted=false"]);
    let record = web.bed.get(&format!("activations/{id}")).good();
    assert_eq!((&record["namespace"], &record["subject"]), (&json!("guest"), &json!("guest")));
    let annotations = record["annotations"].as_array().unwrap();
    let span = annotations.iter().find(|one| one["key"] == "traceparent").unwrap();
    assert!(span["value"].as_str().unwrap().contains(trace), "{span}");
}

#[test]
fn actions_that_are_not_exported_do_not_exist() {
    let web = Web::new();
    web.put("plain", json!({}));
    web.annotate("closed", json!({"web-export": false}));
    web.annotate("odd", json!({"web-export": "true", "final": true}));
    let mut said = Vec::new();
    for path in [
        "guest/default/plain",
        "guest/default/closed.json",
        "guest/default/odd",
        "guest/default/none",
        "guest/default/hello.xml",
        "guest/default/hello.JSON",
        "guest/default/.json",
        "guest/default/a%2Fb",
        "guest/default/%00",
        "guest/package/hello",
        "guest/_/hello",
        "other/default/hello",
        "nobody/default/hello",
        "_/default/hello",
        "-/default/hello",
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            let answer = web.send(method, path, &[], b"");
            answer.assert_error(404, "no web action has this name");
            assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
            said.push(answer.body["error"].clone());
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    web.get("guest/default").assert_error(404, "no such path");
    web.get("guest/default/%FF").assert_error(400, "path");
    assert!(web.bed.caller.recorded().is_empty());
}

#[test]
fn all_methods_except_those_for_proxies_call() {
    let web = Web::new();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(web.seen(method, "", &[], b"")["__ow_method"], method.to_lowercase());
    }
    web.bed.caller.recorded();
    let head = web.send("HEAD", HELLO, &[], b"");
    assert_eq!((head.status, head.bytes.len()), (200, 0));
    assert_eq!(web.bed.caller.recorded().len(), 1);
    for method in ["TRACE", "FETCH", "get"] {
        web.send(method, HELLO, &[], b"").assert_error(405, "method");
    }
    assert!(web.bed.caller.recorded().is_empty());
}

#[test]
fn a_key_is_required_if_the_action_says_so() {
    let web = Web::new();
    web.annotate("hello", json!({"web-export": true, "require-whisk-auth": true}));
    let wrong = [basic("guest-key:wrong"), basic("nobody:secret"), "Bearer x".to_owned()];
    let mut refused = vec![web.get(HELLO)];
    refused.extend(wrong.iter().map(|key| web.send("GET", HELLO, &[("authorization", key)], b"")));
    // Nothing of it is read.
    refused.push(web.send("POST", HELLO, &[], &[b'x'; (1 << 20) + 1]));
    for answer in refused {
        answer.assert_error(401, "authentication is invalid");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Basic realm="));
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    }
    assert!(web.bed.caller.recorded().is_empty());
    for (key, user) in [(GUEST, "guest"), (OTHER, "other")] {
        let seen = web.seen("GET", "", &[("authorization", &basic(key))], b"");
        assert_eq!(seen["__ow_user"], user);
        assert!(seen["__ow_headers"].get("authorization").is_none(), "{seen}");
    }
    assert_eq!(web.bed.caller.recorded(), ["call guest/hello accepted=false"; 2]);
}

#[test]
fn a_secret_is_required_if_the_action_says_so() {
    let web = Web::new();
    let status = |wanted: serde_json::Value, shown: Option<&str>| {
        web.annotate("hello", json!({"web-export": true, "require-whisk-auth": wanted}));
        let headers: Vec<_> =
            shown.map(|shown| ("X-Require-Whisk-Auth", shown)).into_iter().collect();
        web.send("GET", HELLO, &headers, b"").status
    };
    assert_eq!(status(json!("my Secret"), Some("my Secret")), 200);
    assert_eq!(status(json!(17), Some("17")), 200);
    for shown in [None, Some(""), Some("my secret"), Some("my Secret2"), Some("my")] {
        assert_eq!(status(json!("my Secret"), shown), 401, "{shown:?}");
    }
    for shown in [None, Some("017"), Some("1")] {
        assert_eq!(status(json!(17), shown), 401, "{shown:?}");
    }
    assert_eq!(status(json!(false), None), 200);
    for odd in [json!(null), json!({}), json!(["a"])] {
        for shown in [None, Some(""), Some("null"), Some("a")] {
            assert_eq!(status(odd.clone(), shown), 401, "{odd} {shown:?}");
        }
    }
}

#[test]
fn a_key_that_is_not_required_is_passed_to_the_function() {
    let web = Web::new();
    for key in [basic(GUEST), "Bearer x".to_owned()] {
        let seen = web.seen("GET", "", &[("authorization", &key)], b"");
        assert_eq!(seen["__ow_headers"]["authorization"], key);
        assert!(seen.get("__ow_user").is_none(), "{seen}");
    }
}

#[test]
fn pages_of_any_origin_may_call() {
    let web = Web::new();
    let methods = "OPTIONS, GET, DELETE, POST, PUT, HEAD, PATCH";
    let headers = "Authorization, Origin, X-Requested-With, Content-Type, Accept, User-Agent";
    let asked = [("access-control-request-headers", "X-A, X-B")];
    web.annotate("hello", json!({"web-export": true, "require-whisk-auth": true}));
    let known = web.send("OPTIONS", HELLO, &[], b"");
    let wanted = web.send("OPTIONS", HELLO, &asked, b"");
    assert!(web.bed.caller.recorded().is_empty(), "preflights do not call the function");
    web.annotate("hello", json!({"web-export": true}));
    let called = web.send("GET", HELLO, &asked, b"");
    let wrong = web.send("GET", &format!("{HELLO}?__ow_path=a"), &[], b"");
    for (answer, status, allowed) in [
        (&known, 200, headers),
        (&wanted, 200, "X-A, X-B"),
        (&called, 200, "X-A, X-B"),
        (&wrong, 400, headers),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        assert_eq!(answer.header("access-control-allow-methods"), Some(methods));
        assert_eq!(answer.header("access-control-allow-headers"), Some(allowed));
    }
    assert!(known.bytes.is_empty() && wanted.bytes.is_empty());
}

#[test]
fn a_function_may_set_cors_headers_itself() {
    let web = Web::new();
    let secured =
        [json!({}), json!({"require-whisk-auth": true}), json!({"require-whisk-auth": "x"})];
    for annotations in secured {
        let mut all = json!({"web-export": true, "web-custom-options": true});
        all.as_object_mut().unwrap().extend(annotations.as_object().unwrap().clone());
        web.annotate("hello", all);
        let key = basic("guest-key:wrong");
        let answer = web.send("OPTIONS", HELLO, &[("authorization", &key)], b"");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        let seen = answer.good();
        assert_eq!(seen["__ow_method"], "options");
        let is_wanted = annotations["require-whisk-auth"] == true;
        assert_eq!(seen["__ow_headers"].get("authorization").is_none(), is_wanted);
    }
    assert_eq!(web.get(HELLO).status, 401, "only that is open");
    // Without the annotation, its header overrides the platform's, and is sent once.
    web.annotate("hello", json!({"web-export": true}));
    let own = json!({"Access-Control-Allow-Origin": "https://a.example"});
    let answer = web.returns("", json!({ "headers": own }));
    let all = answer.headers.iter().filter(|(name, _)| name == "access-control-allow-origin");
    let all: Vec<_> = all.map(|(_, value)| value.as_str()).collect();
    assert_eq!(all, ["https://a.example"]);
    assert!(answer.header("access-control-allow-methods").is_some());
}

#[test]
fn too_many_calls_are_refused() {
    let web = Web::new();
    let exec = json!({"kind": "python", "code": "x"});
    let annotations = listed(json!({"web-export": true}));
    let put = json!({"exec": exec, "annotations": annotations}).to_string();
    let path = "/api/v1/namespaces/_/actions/a";
    web.bed.ask(Some("crowd:x"), "PUT", path, put.as_bytes()).good();
    web.bed.caller.recorded();
    web.get("crowded/default/a").assert_error(429, "1000 calls");
    assert!(web.bed.caller.recorded().is_empty());
}

#[test]
fn calls_are_admitted_again_after_the_body_was_read() {
    let web = Web::new();
    let mut stream = TcpStream::connect(web.bed.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = "POST /api/v1/web/guest/default/hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                Content-Length: 4\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let caller = &web.bed.caller;
    let begun = Instant::now();
    while caller.admitted.load(Ordering::Acquire) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it was not admitted again");
        std::thread::sleep(Duration::from_millis(5));
    }
    caller.is_full.store(true, Ordering::Release);
    stream.write_all(b"late").unwrap();
    Bed::answer(stream).assert_error(429, "1000 calls");
    assert!(caller.recorded().is_empty(), "it is not made");
}

#[test]
fn a_client_that_waits_too_long_gets_the_id() {
    let web = Web::on(Bed::in_no_time());
    let answer = web.does("", json!({"do": "wait"}));
    let id = answer.header("x-openwhisk-activation-id").unwrap();
    assert_eq!((answer.status, &answer.body), (202, &json!({ "activationId": id })));
    web.does("", json!({"do": "lose"})).assert_error(500, "was lost");
}
