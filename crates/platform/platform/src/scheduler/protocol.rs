//! OpenWhisk's action protocol: what is posted to an instance, and what its answers mean.

use std::collections::BTreeMap;
use std::env;

use hyper::body::Bytes;
use serde_json::{Value, json};

use super::Call;
use super::code::{Code, Form};
use crate::api::{Action, Outcome, Response};
use crate::clock::now_ms;
use crate::confine;
use crate::runtimes::Server;

/// What of the operator's environment programs see that are launched.
const KEPT: [&str; 3] = ["PATH", "LANG", "LC_ALL"];

/// What `/init` is posted. Beside OpenWhisk's `value` stands what is our own: whom the server has to
/// become before it loads anything, if it has not when it was launched, and where the files of an archive
/// are.
pub fn init(action: &Action, code: &Code) -> Bytes {
    let main = action.exec.main.as_deref().unwrap_or("main");
    let (text, folder) = match &code.form {
        Form::Text(text) => (&**text, None),
        Form::Folder(path) => ("", Some(path)),
    };
    let value = json!({
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
    if action.exec.is_blackbox() {
        // It may be strict.
        return encoded(&json!({ "value": value }));
    }
    let confinement = code.server.is_none().then(|| confine::document(code.user));
    encoded(&json!({ "value": value, "confinement": confinement, "folder": folder }))
}

/// What `/launch` is posted: whom the server has to become, and then, which program.
pub fn launch(code: &Code, server: &Server) -> Bytes {
    let variables = KEPT.iter().filter_map(|name| Some((*name, env::var(name).ok()?)));
    let home = ("HOME", confine::SCRATCH[0].to_owned());
    let environment: BTreeMap<&str, String> = variables.chain([home]).collect();
    encoded(&json!({
        "confinement": confine::document(code.user),
        "program": server.program,
        "arguments": server.arguments,
        "environment": environment,
        "folder": server.folder,
    }))
}

/// What `/run` is posted; its names become `__OW_…` in the action's environment, and those of the trace
/// what OpenTelemetry calls them, too.
pub fn run(call: &Call) -> Bytes {
    let Call { action, .. } = call;
    encoded(&json!({
        "value": call.args,
        "activation_id": call.id,
        "action_name": format!("/{}", action.path()),
        "action_version": action.version,
        "namespace": action.namespace,
        "deadline": (now_ms() + action.limits.timeout_ms).to_string(),
        "traceparent": call.trace.parent,
        "tracestate": call.trace.state,
    }))
}

fn encoded(document: &Value) -> Bytes {
    document.to_string().into()
}

/// What an answer to `/launch` means, which there is only if the program has not begun.
pub fn not_launched((_, body): (u16, &[u8])) -> Response {
    let why = told(body).unwrap_or_else(|| "its program does not begin".to_owned());
    let words = format!("The action failed to initialize: {why}.");
    Response::failure(Outcome::DeveloperError, &words)
}

/// What the answer to `/init` means, if that is a failure.
pub fn initialised((status, body): (u16, &[u8])) -> Option<Response> {
    (status != 200).then(|| failure("The action failed to initialize", body))
}

/// What the answer to `/run` means.
pub fn ran((status, body): (u16, &[u8])) -> Response {
    if status != 200 {
        return failure("The action failed", body);
    }
    match serde_json::from_slice(body) {
        Ok(result @ Value::Object(_)) => Response::from_result(result),
        _ => Response::failure(
            Outcome::DeveloperError,
            "The action did not return a dictionary: its answer is no JSON object.",
        ),
    }
}

/// What the server says went wrong, or these words.
fn failure(otherwise: &str, body: &[u8]) -> Response {
    let words = told(body).unwrap_or_else(|| otherwise.to_owned());
    Response::failure(Outcome::DeveloperError, &words)
}

/// What a server says.
fn told(body: &[u8]) -> Option<String> {
    let told = serde_json::from_slice::<Value>(body).ok()?;
    Some(told["error"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_results_only_if_they_are_objects() {
        assert_eq!(ran((200, b"{\"a\":1}")).status, Outcome::Success);
        assert_eq!(ran((200, b"{\"error\":1}")).status, Outcome::ApplicationError);
        for body in [&b"[1]"[..], b"1", b"", b"{", b"null"] {
            assert_eq!(ran((200, body)).status, Outcome::DeveloperError, "{body:?}");
        }
        let failed = ran((502, b"{\"error\":\"it raised\"}"));
        assert_eq!(failed.status, Outcome::DeveloperError);
        assert_eq!(failed.result, json!({"error": "it raised"}));
        assert_eq!(ran((502, b"<html>")).result, json!({"error": "The action failed"}));
        assert_eq!(ran((500, b"{\"error\": 7}")).status, Outcome::DeveloperError);
    }

    #[test]
    fn code_that_does_not_load_is_its_owners_affair() {
        assert_eq!(initialised((200, b"{\"ok\":true}")), None);
        let failed = initialised((502, b"{\"error\":\"no main\"}")).unwrap();
        assert_eq!(failed.result, json!({"error": "no main"}));
        assert_eq!(failed.status, Outcome::DeveloperError);
        assert!(initialised((404, b"")).is_some());
    }

    #[test]
    fn a_program_that_does_not_begin_is_its_owners_affair() {
        let failed = not_launched((502, b"{\"error\":\"cannot execute a\"}"));
        assert_eq!(failed.status, Outcome::DeveloperError);
        let words = "The action failed to initialize: cannot execute a.";
        assert_eq!(failed.result, json!({ "error": words }));
        assert!(not_launched((404, b"")).result.to_string().contains("does not begin"));
    }
}
