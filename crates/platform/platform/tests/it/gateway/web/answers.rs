//! Results as HTTP responses.

use serde_json::{Value, json};

use super::Web;

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

#[test]
fn a_result_sets_status_headers_and_body() {
    let web = Web::new();
    for (result, status, kind, body) in [
        (json!({"body": "<p>ä</p>"}), 200, Some(HTML), "<p>ä</p>"),
        (json!({"body": {"a": [1]}}), 200, Some(JSON), "{\"a\":[1]}"),
        (json!({"body": [1.5]}), 200, Some(JSON), "[1.5]"),
        (json!({"body": false}), 200, Some(JSON), "false"),
        (json!({}), 204, None, ""),
        (json!({"a": 1}), 204, None, ""),
        (json!({"body": ""}), 204, None, ""),
        (json!({"body": null, "headers": {"content-type": "text/plain"}}), 204, None, ""),
        (json!({"statusCode": 200}), 200, None, ""),
        (json!({"statusCode": 418, "body": "x"}), 418, Some(HTML), "x"),
        (json!({"statusCode": "404", "body": "x"}), 404, Some(HTML), "x"),
        (json!({"statusCode": 201.0}), 201, None, ""),
        (json!({"statusCode": 599}), 599, None, ""),
    ] {
        for extension in ["", ".http"] {
            let answer = web.returns(extension, result.clone());
            assert_eq!((answer.status, answer.header("content-type")), (status, kind), "{result}");
            assert_eq!(answer.bytes, body.as_bytes(), "{result}");
            assert!(answer.header("x-openwhisk-activation-id").is_some(), "{result}");
        }
    }
    let moved = json!({"statusCode": 302, "headers": {"Location": "https://a.example/?b=c"}});
    let moved = web.returns("", moved);
    assert_eq!((moved.status, moved.header("location")), (302, Some("https://a.example/?b=c")));
}

#[test]
fn a_body_is_encoded_by_its_content_type() {
    let web = Web::new();
    let returned = |kind: &str, body: Value| {
        web.returns("", json!({"headers": {"Content-Type": kind}, "body": body}))
    };
    for (kind, body, expected, bytes) in [
        ("image/png", json!("iVBORwD/"), "image/png", &b"\x89PNG\0\xff"[..]),
        ("application/octet-stream", json!("YQ"), "application/octet-stream", b"a"),
        ("image/svg+xml", json!("PHN2Zy8+"), "image/svg+xml", b"<svg/>"),
        ("text/plain", json!("YWJj"), "text/plain; charset=utf-8", b"YWJj"),
        ("text/css;charset=US-ASCII", json!("a{}"), "text/css;charset=US-ASCII", b"a{}"),
        ("application/xml", json!("<a/>"), "application/xml", b"<a/>"),
        ("application/json", json!("[1]"), JSON, b"[1]"),
        ("application/json", json!("WzFd"), JSON, b"[1]"),
        ("application/json", json!("true"), JSON, b"true"),
        ("application/json", json!([1]), JSON, b"[1]"),
        ("application/hal+json", json!({"a": 1}), "application/hal+json", b"{\"a\":1}"),
    ] {
        let answer = returned(kind, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some(expected));
        assert_eq!(answer.bytes, bytes, "{kind}");
    }
    for (kind, body, words) in [
        ("image/png", json!("no base64!"), "not base64"),
        ("image/png", json!([1]), "not a text"),
        ("text/plain", json!({"a": 1}), "not a text"),
        ("xyzbar", json!("a"), "not a media type"),
        ("", json!("a"), "not a media type"),
        ("image/ä", json!("a"), "not a media type"),
    ] {
        returned(kind, body).assert_error(400, words);
    }
}

#[test]
fn headers_may_have_several_values_and_types() {
    let web = Web::new();
    let headers = json!({
        "Set-Cookie": ["a=1; Path=/", "b=2"], "X-Number": 17, "x-bool": true, "x-none": [],
        "x-nested": ["a", ["b", [1.5]]], "x-letters": "grüße\tx", "x-empty": "",
    });
    let answer = web.returns("", json!({"headers": headers, "body": "x"}));
    let all = |name: &str| {
        let all = answer.headers.iter().filter(|(key, _)| key == name);
        all.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(all("set-cookie"), ["a=1; Path=/", "b=2"]);
    assert_eq!((all("x-number"), all("x-bool")), (vec!["17"], vec!["true"]));
    assert_eq!(all("x-nested"), ["a", "b", "1.5"]);
    assert_eq!(all("x-letters"), ["grüße\tx"]);
    assert_eq!((all("x-none").len(), all("x-empty")), (0, vec![""]));
    let first = json!({"headers": {"content-type": ["text/css", "text/plain"]}, "body": "x"});
    let first = web.returns("", first);
    assert_eq!(first.header("content-type"), Some("text/css; charset=utf-8"));
    // The platform's own header is sent, once.
    let claimed = web.returns("", json!({"headers": {"X-OpenWhisk-Activation-Id": ["a", "b"]}}));
    let ids = claimed.headers.iter().filter(|(name, _)| name == "x-openwhisk-activation-id");
    let ids: Vec<_> = ids.map(|(_, value)| value.len()).collect();
    assert_eq!(ids, [32]);
}

#[test]
fn invalid_responses_are_explained() {
    let web = Web::new();
    for code in [
        json!(99),
        json!(1000),
        json!("x"),
        json!(199),
        json!(100),
        json!(101),
        json!(600),
        json!(200.5),
        json!(-200),
        json!(1e300),
        json!(""),
        json!("2OO"),
        json!(true),
        json!(null),
        json!([200]),
        json!(65736),
    ] {
        for status in [json!({"statusCode": code}), json!({"statusCode": code, "body": "x"})] {
            web.returns("", status).assert_error(400, "'statusCode' is not an integer");
        }
        let error = json!({"error": {"statusCode": code}});
        web.returns(".json", error).assert_error(400, "'statusCode' is not an integer");
    }
    for (name, value) in [
        ("x-a", json!("a\r\nX-Injected: 1")),
        ("x-a", json!("a\nX-Injected: 1")),
        ("x-a", json!("a\u{0}")),
        ("x-a", json!("a\u{7f}")),
        ("x-a", json!(["a", "\r\nX-Injected: 1"])),
        ("x-a", json!({"a": 1})),
        ("x-a", json!(null)),
        ("x-a\r\nX-Injected", json!("1")),
        ("x a", json!("1")),
        ("x:a", json!("1")),
        ("", json!("1")),
        ("ä", json!("1")),
        (&"a".repeat(100_000), json!("1")),
    ] {
        let answer = web.returns("", json!({"headers": {name: value}, "body": "x"}));
        answer.assert_error(400, "needs a text, number or boolean");
        assert_eq!(answer.header("x-injected"), None);
        assert!(answer.bytes.len() < 500, "{}", answer.bytes.len());
        assert!(answer.header("x-openwhisk-activation-id").is_some());
    }
    for headers in [json!([]), json!("a: b"), json!(null), json!(1)] {
        web.returns("", json!({ "headers": headers }))
            .assert_error(400, "'headers' is not an object");
    }
    let many: Vec<u8> = vec![1; 300];
    web.returns("", json!({"headers": {"x-a": many}})).assert_error(400, "more than 256");
    let names = (0..40_000).map(|number| (format!("x-{number}"), json!(1)));
    let many = Value::Object(names.collect());
    web.returns("", json!({ "headers": many })).assert_error(400, "more than 256");
    let words = "not an HTTP response: it is not an object";
    web.returns("", json!([1])).assert_error(400, words);
}

#[test]
fn a_function_cannot_set_where_its_response_ends() {
    let web = Web::new();
    let path = "/api/v1/web/guest/default/hello";
    for (headers, body, status) in [
        (json!({"Content-Length": 3}), "longer", 200),
        (json!({"content-length": "1000"}), "short", 200),
        (json!({"Transfer-Encoding": "chunked"}), "5\r\n", 200),
        (
            json!({"Connection": "close", "Keep-Alive": "x", "Upgrade": "h2c", "Trailer": "a"}),
            "a",
            200,
        ),
        (json!({}), "unexpected", 204),
        (json!({}), "unexpected", 304),
    ] {
        let result = json!({"statusCode": status, "headers": headers, "body": body});
        let args = json!({"do": "return", "result": result}).to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{args}\
             GET {path}?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            args.len()
        );
        let first = web.bed.raw(request.as_bytes());
        assert_eq!(first.status, status, "{headers}");
        let own = ["connection", "keep-alive", "upgrade", "trailer", "transfer-encoding"];
        assert!(own.iter().all(|name| first.header(name).is_none()), "{first:?}");
        let body = if status == 200 { body } else { "" };
        let rest = first.bytes.strip_prefix(body.as_bytes()).unwrap();
        assert!(rest.starts_with(b"HTTP/1.1 204 No Content\r\n"), "{headers}: {first:?}");
    }
}

#[test]
fn extensions_select_a_value_of_the_result() {
    let web = Web::new();
    let text = Some("text/plain; charset=utf-8");
    let pretty = "{\n  \"a\": 1\n}";
    for (extension, result, kind, body) in [
        (
            ".json",
            json!({"body": 1, "statusCode": 404}),
            Some(JSON),
            "{\"body\":1,\"statusCode\":404}",
        ),
        (".html", json!({"html": "<p>"}), Some(HTML), "<p>"),
        (".html", json!({"body": "<b>", "html": "<p>"}), Some(HTML), "<b>"),
        (".svg", json!({"svg": "<svg/>"}), Some("image/svg+xml"), "<svg/>"),
        (".svg", json!({"body": "<g/>", "svg": "<svg/>"}), Some("image/svg+xml"), "<g/>"),
        (".text", json!({"text": "a"}), text, "a"),
        (".text", json!({"body": "b", "text": "a"}), text, "b"),
        (".text", json!({"text": {"a": 1}}), text, pretty),
        (".text", json!({"text": null}), text, "null"),
        (".text", json!({"text": 1.5}), text, "1.5"),
        // The rest of the path is passed to the function.
        (".text/a/b", json!({"text": "a"}), text, "a"),
    ] {
        let answer = web.returns(extension, result.clone());
        assert_eq!((answer.status, answer.header("content-type")), (200, kind), "{result}");
        assert_eq!(answer.bytes, body.as_bytes(), "{result}");
        assert!(answer.header("x-openwhisk-activation-id").is_some());
    }
    for (extension, result, status, words) in [
        (".html", json!({"a": 1}), 400, "not HTML"),
        (".html", json!({"html": 1}), 400, "not HTML"),
        (".svg", json!({"svg": ["a"]}), 400, "not SVG"),
        (".text", json!({"a": 1}), 404, "neither 'body' nor 'text'"),
        (".json", json!("a"), 400, "not an object or a list"),
    ] {
        web.returns(extension, result).assert_error(status, words);
    }
}

#[test]
fn a_functions_error_is_its_response() {
    let web = Web::new();
    for (extension, error, status, body) in [
        ("", json!({"statusCode": 404, "body": "none"}), 404, "none"),
        ("", json!({"statusCode": 200, "body": "all is well"}), 200, "all is well"),
        ("", json!({"body": "no"}), 400, "no"),
        ("", json!({}), 400, ""),
        (".json", json!({"reason": "no"}), 400, "{\"reason\":\"no\"}"),
        (".json", json!({"statusCode": 409}), 409, "{\"statusCode\":409}"),
        (".html", json!("<p>no</p>"), 400, "<p>no</p>"),
        (".text", json!("no"), 400, "no"),
        (".text", json!({"statusCode": 503, "text": "no"}), 503, "no"),
    ] {
        let answer = web.returns(extension, json!({"error": error, "body": "hidden"}));
        assert_eq!(answer.status, status, "{extension} {error}");
        assert_eq!(answer.bytes, body.as_bytes(), "{extension} {error}");
        assert!(answer.header("x-openwhisk-activation-id").is_some());
    }
    web.returns("", json!({"error": "no"})).assert_error(400, "it is not an object");
    web.returns(".json", json!({"error": "no"})).assert_error(400, "not an object or a list");
    web.returns(".html", json!({"error": {"a": 1}})).assert_error(400, "not HTML");
}

#[test]
fn only_the_owner_sees_why_a_function_failed() {
    let web = Web::new();
    for (what, status) in [("crash", 502), ("break", 500)] {
        for extension in ["", ".json", ".html", ".text"] {
            let answer = web.does(extension, json!({ "do": what }));
            answer.assert_error(status, "finds the reason in the activation");
            let id = answer.header("x-openwhisk-activation-id").unwrap();
            assert_eq!(answer.body["code"], id);
            assert_eq!(web.bed.get(&format!("activations/{id}")).good()["name"], "hello");
        }
    }
}

/// Otherwise a page of one tenant could use the key of another that a browser keeps for the API.
#[test]
fn pages_are_of_an_origin_of_their_own() {
    let web = Web::new();
    let headers = json!({
        "Content-Security-Policy": "default-src *", "Service-Worker-Allowed": "/",
        "Clear-Site-Data": "*",
    });
    let results = [json!({"headers": headers, "body": "x"}), json!({"error": {"body": "x"}})];
    for result in results {
        let answer = web.returns("", result);
        let policies = answer.headers.iter().filter(|(name, _)| name == "content-security-policy");
        assert!(policies.into_iter().any(|(_, value)| value.starts_with("sandbox ")), "{answer:?}");
        assert!(answer.headers.iter().all(|(name, value)| {
            !["service-worker-allowed", "clear-site-data"].contains(&name.as_str())
                && !value.contains("allow-same-origin")
        }));
    }
}
