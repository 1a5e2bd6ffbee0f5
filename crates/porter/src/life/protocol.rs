//! OpenWhisk's action protocol: what is posted to an instance, and what its answers mean.

use hyper::body::Bytes;
use serde_json::{Value, json};

use super::Call;
use super::code::{Code, Form};
use crate::api::{Action, Outcome, Response};
use crate::clock::now_ms;
use crate::confine;

/// What `/init` is posted. Beside OpenWhisk's `value` stands what is our own: whom the server has to
/// become before it loads anything, and where the files of an archive are.
pub fn init(action: &Action, code: &Code) -> Bytes {
    let main = action.exec.main.as_deref().unwrap_or("main");
    let (text, folder) = match &code.form {
        Form::Text(text) => (&**text, None),
        Form::Folder(path) => ("", Some(path)),
    };
    encoded(&json!({
        "value": {
            "name": action.name,
            "main": main,
            "code": text,
            "binary": action.exec.binary,
            "env": {
                "__OW_ACTION_NAME": format!("/{}", action.path()),
                "__OW_ACTION_VERSION": action.version,
                "__OW_NAMESPACE": action.namespace,
            },
        },
        "confinement": confine::document(code.user),
        "folder": folder,
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
        Ok(result @ Value::Object(_)) => Response::of(result),
        _ => Response::failure(
            Outcome::DeveloperError,
            "The action did not return a dictionary: its answer is no JSON object.",
        ),
    }
}

/// What the server says went wrong, or these words.
fn failure(otherwise: &str, body: &[u8]) -> Response {
    let told = serde_json::from_slice::<Value>(body).ok();
    let words = told.as_ref().and_then(|told| told["error"].as_str()).unwrap_or(otherwise);
    Response::failure(Outcome::DeveloperError, words)
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
}
