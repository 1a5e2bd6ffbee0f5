//! The arguments of web actions.

use serde_json::{Value, json};

use super::{Web, listed};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const FORM: [(&str, &str); 1] = [("content-type", "application/x-www-form-urlencoded")];
const TEXT: [(&str, &str); 1] = [("content-type", "text/plain")];
const HELLO: &str = "guest/default/hello.json";

/// The arguments without the context.
fn given(mut seen: Value) -> Value {
    let fields = seen.as_object_mut().unwrap();
    for key in ["__ow_method", "__ow_headers", "__ow_path"] {
        fields.remove(key).unwrap_or_else(|| panic!("no {key}"));
    }
    seen
}

#[test]
fn the_request_is_passed_to_the_function() {
    let web = Web::new();
    let seen = web.seen("PUT", "/a%20b/../c//d?x=%20", &[("X-One", "1"), ("x-one", "2")], b"");
    assert_eq!(seen["__ow_method"], "put");
    assert_eq!(seen["__ow_path"], "/a%20b/../c//d");
    let headers =
        json!({"host": "x", "connection": "close", "content-length": "0", "x-one": "1, 2"});
    assert_eq!(seen["__ow_headers"], headers);
    assert_eq!(given(seen), json!({"x": " "}));
    for (rest, path) in [("", ""), ("/", "/"), ("/a", "/a"), ("?a=/b/c", "")] {
        assert_eq!(web.seen("GET", rest, &[], b"")["__ow_path"], path, "{rest}");
    }
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    assert_eq!(web.seen("GET", "", &cookies, b"")["__ow_headers"]["cookie"], "a=1; b=2");
}

#[test]
fn a_body_overrides_the_query_and_the_query_the_action() {
    let web = Web::new();
    let all = json!({"a": "action", "b": "action", "c": "action", "d": "action"});
    web.put("hello", json!({"parameters": listed(all)}));
    let query = "?b=query&c=query&d=query&e=q%2Bu+e&e=%C3%A4&f";
    let expected =
        |c: Value| json!({"a": "action", "b": "query", "c": c, "d": "", "e": "ä", "f": ""});
    let seen = web.seen("POST", query, &JSON, b"{\"c\": [1, null], \"d\": \"\"}");
    assert_eq!(given(seen), expected(json!([1, null])));
    let seen = web.seen("POST", query, &FORM, b"c=b%20o+dy&d=x&d=");
    assert_eq!(given(seen), expected(json!("b o dy")));
    let kind = [("content-type", "application/vnd.api+json; charset=utf-8")];
    let seen = web.seen("POST", query, &kind, b"{\"c\": 1, \"d\": \"\"}");
    assert_eq!(given(seen), expected(json!(1)));
}

#[test]
fn final_parameters_are_not_overridden() {
    let web = Web::new();
    let parameters = listed(json!({"a": 1, "b": null}));
    web.put("hello", json!({ "parameters": parameters }));
    assert_eq!(given(web.seen("GET", "?a=2", &[], b"")), json!({"a": "2", "b": null}));
    web.annotate("hello", json!({"web-export": true, "final": true}));
    web.bed.caller.recorded();
    let path = format!("{HELLO}?a=2");
    web.get(&path).assert_error(400, "final or reserved");
    web.send("POST", HELLO, &JSON, b"{\"a\": 1}").assert_error(400, "final or reserved");
    web.send("POST", HELLO, &FORM, b"c=1&a=").assert_error(400, "final or reserved");
    assert!(web.bed.caller.recorded().is_empty());
    let seen = given(web.seen("POST", "?b=2", &JSON, b"{\"c\": 3}"));
    assert_eq!(seen, json!({"a": 1, "b": "2", "c": 3}));
}

#[test]
fn reserved_parameters_cannot_be_set() {
    let web = Web::new();
    for key in ["method", "headers", "path", "user", "body", "query"] {
        let key = format!("__ow_{key}");
        let body = json!({ &key: "x" }).to_string();
        let form = format!("{key}=x");
        for answer in [
            web.get(&format!("{HELLO}?a=1&{key}=x")),
            web.get(&format!("{HELLO}?%5F_{}=x", &key[2..])),
            web.send("POST", HELLO, &JSON, body.as_bytes()),
            web.send("POST", HELLO, &FORM, form.as_bytes()),
        ] {
            answer.assert_error(400, "final or reserved");
        }
    }
    assert!(web.bed.caller.recorded().is_empty());
    assert_eq!(web.seen("GET", "?__ow_other=1", &[], b"")["__ow_other"], "1");
}

#[test]
fn other_bodies_are_passed_unchanged() {
    let web = Web::new();
    for (kind, body, expected) in [
        ("text/plain", "grüße".as_bytes(), json!("grüße")),
        ("text/html; charset=utf-8", b"<p>", json!("<p>")),
        ("application/xml", b"<a/>", json!("<a/>")),
        ("application/json", b"[1, {\"a\": 2}]", json!([1, {"a": 2}])),
        ("application/json", b"\"a\"", json!("a")),
        ("image/png", b"\x89PNG\0\xff", json!("iVBORwD/")),
        ("application/octet-stream", b"abc", json!("YWJj")),
        ("multipart/form-data; boundary=x", b"--x--", json!("LS14LS0=")),
        ("no kind at all", b"abc", json!("YWJj")),
    ] {
        let seen = web.seen("POST", "?a=1", &[("content-type", kind)], body);
        assert_eq!(given(seen), json!({"a": "1", "__ow_body": expected}), "{kind}");
    }
    assert_eq!(given(web.seen("POST", "", &[], b"abc")), json!({"__ow_body": "YWJj"}));
    for headers in [&JSON, &FORM, &TEXT] {
        assert_eq!(given(web.seen("POST", "", headers, b"")), json!({}));
    }
}

#[test]
fn raw_requests_are_passed_unchanged() {
    let web = Web::new();
    web.put("hello", json!({"parameters": listed(json!({"a": 1}))}));
    web.annotate("hello", json!({"web-export": true, "raw-http": true, "final": true}));
    let seen = web.seen("GET", "?a=%20&&b=+&__ow_user=x", &[], b"");
    let query = "a=%20&&b=+&__ow_user=x";
    assert_eq!(given(seen), json!({"a": 1, "__ow_query": query, "__ow_body": ""}));
    for (kind, body, expected) in [
        ("application/json", &b"{\"name\":\"Jane\"}"[..], "eyJuYW1lIjoiSmFuZSJ9"),
        ("application/vnd.api+json", b"{", "ew=="),
        ("application/x-www-form-urlencoded", b"a=%20&__ow_body", "a=%20&__ow_body"),
        ("text/plain", b"a", "a"),
        ("image/png", b"\xff\0", "/wA="),
    ] {
        let seen = web.seen("POST", "", &[("content-type", kind)], body);
        assert_eq!(given(seen), json!({"a": 1, "__ow_query": "", "__ow_body": expected}), "{kind}");
    }
}

#[test]
fn malformed_requests_are_refused() {
    let web = Web::new();
    let deep = "[".repeat(200_000);
    for body in ["{", "{\"a\": 1}x", "{\"a\": NaN}", "\u{0}", &deep] {
        web.send("POST", HELLO, &JSON, body.as_bytes()).assert_error(400, "not JSON");
    }
    for form in [&b"a=%FF"[..], b"a=\xff", b"%C3=1", b"a=%ED%A0%80"] {
        web.send("POST", HELLO, &FORM, form).assert_error(400, "not UTF-8");
    }
    web.send("POST", HELLO, &TEXT, b"\xff").assert_error(400, "not UTF-8");
    for query in ["a=%FF", "%C3=1", "a=%C3&b=%A4"] {
        web.get(&format!("{HELLO}?{query}")).assert_error(400, "query is not UTF-8");
    }
    web.get("guest/default/hello/%FF").assert_error(400, "path");
    assert!(web.bed.caller.recorded().is_empty());
    // An invalid escape is taken literally.
    assert_eq!(
        given(web.seen("GET", "?a=%zz&%=1&=2", &[], b"")),
        json!({"a": "%zz", "%": "1", "": "2"})
    );
    // Headers in other encodings are decoded as far as possible.
    let mut request = format!("GET /api/v1/web/{HELLO} HTTP/1.1\r\nHost: x\r\n").into_bytes();
    request.extend(b"Connection: close\r\nX-Name: J\xfcrgen\r\n\r\n");
    let seen = web.bed.raw(&request).good();
    assert_eq!(seen["__ow_headers"]["x-name"], "J\u{fffd}rgen");
}

#[test]
fn paths_do_not_escape() {
    let web = Web::new();
    for rest in ["/../../../../metrics", "/%2e%2e/%2e%2e/other", "/..%2F..%2F", "/../hello"] {
        assert_eq!(web.seen("GET", rest, &[], b"")["__ow_path"], rest);
    }
    for path in ["guest/default/../hello", "guest/default/%2e%2e/x", "guest/../default/hello"] {
        web.get(path).assert_error(404, "no web action has this name");
    }
}

#[test]
fn requests_that_are_too_large_are_refused() {
    let web = Web::new();
    let announced = format!(
        "POST /api/v1/web/{HELLO} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        (1 << 20) + 1
    );
    web.bed.raw(announced.as_bytes()).assert_error(413, "larger than allowed");
    let mut chunked = format!(
        "POST /api/v1/web/{HELLO} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for _ in 0..17 {
        chunked.extend(b"10000\r\n");
        chunked.extend([b' '; 0x10000]);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    web.bed.raw(&chunked).assert_error(413, "larger than allowed");
    assert!(web.bed.caller.recorded().is_empty());
    let fitting = vec![b'a'; 1 << 20];
    let seen = web.seen("POST", "", &TEXT, &fitting);
    assert_eq!(seen["__ow_body"].as_str().unwrap().len(), 1 << 20);
}
