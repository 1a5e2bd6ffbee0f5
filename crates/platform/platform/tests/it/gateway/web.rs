//! Web actions: plain HTTP, without a key.

mod access;
mod answers;
mod requests;

use serde_json::{Map, Value, json};

use crate::gateway::bed::{Answer, Bed};

/// A bed with web actions.
struct Web {
    bed: Bed,
}

/// Keys and values in OpenWhisk's form.
fn listed(all: Value) -> Vec<Value> {
    let Value::Object(all) = all else { unreachable!() };
    all.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

impl Web {
    /// One web action, `hello`, which returns its arguments or does what they say.
    fn new() -> Web {
        Web::on(Bed::new())
    }

    fn on(bed: Bed) -> Web {
        let web = Web { bed };
        web.annotate("hello", json!({"web-export": true}));
        web
    }

    /// Creates an action with these annotations, or sets them.
    fn annotate(&self, name: &str, annotations: Value) {
        self.put(name, json!({"annotations": listed(annotations)}));
    }

    /// Creates or changes an action.
    fn put(&self, name: &str, said: Value) {
        let Value::Object(said) = said else { unreachable!() };
        let exec = json!({"kind": "python", "code": "def main(args): return args"});
        let mut put = Map::from_iter([("exec".to_owned(), exec)]);
        put.extend(said);
        let path = format!("actions/{name}?overwrite=true");
        self.bed.guest("PUT", &path, Value::Object(put)).good();
        self.bed.caller.recorded();
    }

    /// Sends a request to what is below `/api/v1/web/`.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} /api/v1/web/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.bed.raw(&[head.as_bytes(), body].concat())
    }

    /// Sends a request to `hello`, which returns its arguments.
    fn seen(&self, method: &str, rest: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
        self.send(method, &format!("guest/default/hello.json{rest}"), headers, body).good()
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// Makes `hello` return this.
    fn returns(&self, extension: &str, result: Value) -> Answer {
        self.does(extension, json!({"do": "return", "result": result}))
    }

    /// Makes `hello` do what the arguments say.
    fn does(&self, extension: &str, args: Value) -> Answer {
        let json = [("content-type", "application/json")];
        let path = format!("guest/default/hello{extension}");
        self.send("POST", &path, &json, args.to_string().as_bytes())
    }
}
