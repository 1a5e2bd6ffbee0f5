//! OpenWhisk's action protocol: requests to an instance, and the meaning of its answers.

use std::collections::BTreeMap;
use std::env;

use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::code::{Code, Form};
use crate::api::{Action, Document, Outcome, Response, region};
use crate::clock::now_ms;
use crate::confine;
use crate::runtimes::Server;

/// Variables of the operator's environment that launched programs get.
const KEPT: [&str; 3] = ["PATH", "LANG", "LC_ALL"];

/// The body of `/init`. Beside OpenWhisk's `value` it has extensions: the confinement to enter
/// before loading anything, unless the launch has done so, the directory to work in, the folder with the files
/// of an archive, which is the same, and descriptors to close.
pub fn init(action: &Action, code: &Code, region_bytes: Option<u64>) -> Bytes {
    let main = action.exec.main.as_deref().unwrap_or("main");
    let (text, folder) = match &code.form {
        Form::Text(text) => (&**text, None),
        Form::Files => ("", Some(&code.directory)),
    };
    let mut value = json!({
        "name": action.name,
        "main": main,
        "code": text,
        "binary": action.exec.binary,
        "env": {
            "__OW_ACTION_NAME": format!("/{}", action.path()),
            "__OW_ACTION_VERSION": action.version,
            "__OW_NAMESPACE": action.namespace,
        },
    });
    if region_bytes.is_some() {
        region_variables().for_each(|(name, text)| value["env"][name] = text.into());
    }
    if action.exec.is_blackbox() {
        // The program may refuse unknown fields.
        return encoded(&json!({ "value": value }));
    }
    let confinement = code.server.is_none().then(|| confine::document(code.user, region_bytes));
    let close = if code.server.is_none() { region::unused(region_bytes) } else { &[] };
    encoded(&json!({
        "value": value,
        "confinement": confinement,
        "directory": code.directory,
        "folder": folder,
        "close": close,
    }))
}

/// The body of `/launch`: the confinement to enter, and then the program to execute.
pub fn launch(code: &Code, server: &Server, region_bytes: Option<u64>) -> Bytes {
    let variables = KEPT.iter().filter_map(|name| Some((*name, env::var(name).ok()?)));
    let home = ("HOME", confine::SCRATCH[0].to_owned());
    let region = region_bytes.map(|_| region_variables()).into_iter().flatten();
    let environment: BTreeMap<&str, String> = variables.chain([home]).chain(region).collect();
    encoded(&json!({
        "confinement": confine::document(code.user, region_bytes),
        "close": region::unused(region_bytes),
        "program": server.program,
        "arguments": server.arguments,
        "environment": environment,
        "folder": code.directory,
    }))
}

/// Where an instance finds its region, and the library for it if the operator names one.
fn region_variables() -> impl Iterator<Item = (&'static str, String)> {
    let library = env::var(region::LIBRARY).ok().map(|path| (region::LIBRARY, path));
    [(region::VARIABLE, region::PATH.to_owned())].into_iter().chain(library)
}

/// The body of `/run`. Its fields become `__OW_…` in the action's environment, and the trace also
/// gets OpenTelemetry's names.
pub fn run(call: &Call) -> Bytes {
    let Call { action, .. } = call;
    let mut document = json!({
        "activation_id": call.id,
        "action_name": format!("/{}", action.path()),
        "action_version": action.version,
        "namespace": action.namespace,
        "deadline": (now_ms() + action.limits.timeout_ms).to_string(),
        "traceparent": call.trace.parent,
        "tracestate": call.trace.state,
    })
    .to_string();
    // The arguments are JSON already, and may have megabytes.
    document.pop();
    [&*document, ",\"value\":", call.args.text(), "}"].concat().into()
}

fn encoded(document: &Value) -> Bytes {
    document.to_string().into()
}

/// The failure in an answer to `/launch`, which comes only if the program was not executed.
pub fn not_launched((_, body): (u16, &[u8])) -> Response {
    let why = error_of(body).unwrap_or_else(|| "its program cannot be executed".to_owned());
    let words = format!("The action failed to initialize: {why}.");
    Response::failure(Outcome::DeveloperError, &words)
}

/// The failure in the answer to `/init`, if it is one.
pub fn initialised((status, body): (u16, &[u8])) -> Option<Response> {
    (status != 200).then(|| failure("The action failed to initialize", body))
}

/// The response in the answer to `/run`.
pub fn ran((status, body): (u16, &[u8])) -> Response {
    if status != 200 {
        return failure("The action failed", body);
    }
    match Document::result(body.to_vec()) {
        Ok(result) => Response::from_result(result),
        Err(error) => Response::failure(Outcome::DeveloperError, &error.to_string()),
    }
}

/// A failure with the server's error message, or with this one.
fn failure(otherwise: &str, body: &[u8]) -> Response {
    let words = error_of(body).unwrap_or_else(|| otherwise.to_owned());
    Response::failure(Outcome::DeveloperError, &words)
}

/// The error message in an answer.
fn error_of(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        error: String,
    }
    serde_json::from_slice::<Answer>(body).ok().map(|answer| answer.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_results_only_if_they_are_objects_or_arrays() {
        assert_eq!(ran((200, b"{\"a\":1}")).status, Outcome::Success);
        assert_eq!(ran((200, b"[1]")).status, Outcome::Success);
        assert_eq!(ran((200, b"{\"error\":1}")).status, Outcome::ApplicationError);
        for body in [&b"1"[..], b"", b"{", b"null"] {
            assert_eq!(ran((200, body)).status, Outcome::DeveloperError, "{body:?}");
        }
        let failed = ran((502, b"{\"error\":\"it raised\"}"));
        assert_eq!(failed.status, Outcome::DeveloperError);
        assert_eq!(failed.result.value(), json!({"error": "it raised"}));
        assert_eq!(ran((502, b"<html>")).result.value(), json!({"error": "The action failed"}));
        assert_eq!(ran((500, b"{\"error\": 7}")).status, Outcome::DeveloperError);
    }

    #[test]
    fn code_that_does_not_load_is_a_developer_error() {
        assert_eq!(initialised((200, b"{\"ok\":true}")), None);
        let failed = initialised((502, b"{\"error\":\"no main\"}")).unwrap();
        assert_eq!(failed.result.value(), json!({"error": "no main"}));
        assert_eq!(failed.status, Outcome::DeveloperError);
        assert!(initialised((404, b"")).is_some());
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_a_developer_error() {
        let failed = not_launched((502, b"{\"error\":\"cannot execute a\"}"));
        assert_eq!(failed.status, Outcome::DeveloperError);
        let words = "The action failed to initialize: cannot execute a.";
        assert_eq!(failed.result.value(), json!({ "error": words }));
        assert!(not_launched((404, b"")).result.text().contains("cannot be executed"));
    }
}
