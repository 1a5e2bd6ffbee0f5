//! Activations: the records of calls.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::text::as_text;
use super::{Action, Document, Limits, Name, Parameters, Version};

/// The id of an activation: 128 random bits, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActivationId(pub u128);

/// The text is not an id of an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an activation's id has 32 hexadecimal digits")]
pub struct ActivationIdError;

impl fmt::Display for ActivationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for ActivationId {
    type Err = ActivationIdError;

    fn from_str(text: &str) -> Result<ActivationId, ActivationIdError> {
        let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
        number.map(ActivationId).ok_or(ActivationIdError)
    }
}

as_text!(ActivationId);

/// How a call got its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartKind {
    /// It existed already.
    Warm,
    /// It was started in a ghost with its image attached.
    Ghost,
    /// It was started as a clone of the function's image.
    Clone,
    /// It was started and loaded the code.
    Cold,
}

impl StartKind {
    /// All of them.
    pub const ALL: [StartKind; 4] =
        [StartKind::Cold, StartKind::Clone, StartKind::Ghost, StartKind::Warm];
}

/// The outcome of a call, by OpenWhisk's words and codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The action returned a result.
    #[serde(rename = "success")]
    Success,
    /// The action reports a failure: its result has the key `error`.
    #[serde(rename = "application error")]
    ApplicationError,
    /// The action's code failed, or took too long.
    #[serde(rename = "action developer error")]
    DeveloperError,
    /// The platform failed.
    #[serde(rename = "whisk internal error")]
    InternalError,
}

impl Outcome {
    /// OpenWhisk's number for it.
    pub fn code(self) -> u8 {
        match self {
            Outcome::Success => 0,
            Outcome::ApplicationError => 1,
            Outcome::DeveloperError => 2,
            Outcome::InternalError => 3,
        }
    }

    /// The HTTP status of a blocking call with this outcome.
    pub fn status(self) -> u16 {
        match self {
            Outcome::Success => 200,
            Outcome::ApplicationError | Outcome::DeveloperError => 502,
            Outcome::InternalError => 500,
        }
    }
}

/// The outcome and result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The outcome in words.
    pub status: Outcome,
    /// The outcome as a number.
    #[serde(rename = "statusCode")]
    pub status_code: u8,
    /// Whether the call succeeded.
    pub success: bool,
    /// What the action returned, or `{"error": …}`.
    pub result: Document,
    /// Bytes of the result.
    pub size: u64,
}

impl Response {
    /// The response for an action's result.
    pub fn from_result(result: Document) -> Response {
        let outcome = match result.has_field("error") {
            true => Outcome::ApplicationError,
            false => Outcome::Success,
        };
        Response::with(outcome, result)
    }

    /// A failure with this message.
    pub fn failure(outcome: Outcome, reason: &str) -> Response {
        Response::with(outcome, json!({ "error": reason }).into())
    }

    fn with(status: Outcome, result: Document) -> Response {
        let success = status == Outcome::Success;
        let size = result.text().len() as u64;
        Response { status, status_code: status.code(), success, result, size }
    }
}

/// The record of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activation {
    /// Its id.
    pub activation_id: ActivationId,
    /// The action's namespace.
    pub namespace: Name,
    /// The action's name.
    pub name: Name,
    /// The action's version.
    pub version: Version,
    /// Whether other namespaces may see it.
    pub publish: bool,
    /// The caller's namespace.
    pub subject: Name,
    /// When the action began, in milliseconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Milliseconds between the two.
    pub duration: u64,
    /// Outcome and result.
    pub response: Response,
    /// The lines that the action printed.
    pub logs: Vec<String>,
    /// `path`, `kind`, `limits`, `waitTime`, `startKind`, and on a cold start `initTime`.
    pub annotations: Parameters,
}

/// The times of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When the action began, in milliseconds since 1970.
    pub start_ms: u64,
    /// When it ended.
    pub end_ms: u64,
    /// From the request until the action began, in milliseconds.
    pub wait_ms: u64,
    /// Loading the code, in milliseconds, if it had to be loaded.
    pub init_ms: Option<u64>,
}

impl Activation {
    /// The record of a call of `action`.
    pub fn new(
        id: ActivationId,
        action: &Action,
        response: Response,
        logs: Vec<String>,
        (start, times): (StartKind, Times),
    ) -> Activation {
        let mut annotations = Parameters::from_iter([
            ("path", json!(action.path())),
            ("kind", json!(action.exec.kind)),
            ("limits", limits(action.limits)),
            ("waitTime", json!(times.wait_ms)),
            ("startKind", json!(start)),
        ]);
        if let Some(init_ms) = times.init_ms {
            annotations.set("initTime", init_ms);
        }
        Activation {
            activation_id: id,
            namespace: action.namespace.clone(),
            name: action.name.clone(),
            version: action.version,
            publish: false,
            subject: action.namespace.clone(),
            start: times.start_ms,
            end: times.end_ms,
            duration: times.end_ms.saturating_sub(times.start_ms),
            response,
            logs,
            annotations,
        }
    }

    /// The activation as an entry of a list.
    pub fn summary(&self) -> ActivationSummary {
        ActivationSummary {
            activation_id: self.activation_id,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            version: self.version,
            publish: self.publish,
            start: self.start,
            end: self.end,
            duration: self.duration,
            status_code: self.response.status_code,
            annotations: self.annotations.clone(),
        }
    }
}

/// An activation in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActivationSummary {
    /// Its id.
    pub activation_id: ActivationId,
    /// The action's namespace.
    pub namespace: Name,
    /// The action's name.
    pub name: Name,
    /// The action's version.
    pub version: Version,
    /// Whether other namespaces may see it.
    pub publish: bool,
    /// When the action began, in milliseconds since 1970.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Milliseconds between the two.
    pub duration: u64,
    /// The outcome as a number.
    pub status_code: u8,
    /// The activation's annotations.
    pub annotations: Parameters,
}

#[cfg(test)]
impl Activation {
    /// An activation of an action of the namespace `guest`.
    pub fn example(name: &str, id: u128, start: u64) -> Activation {
        let put = json!({"exec": {"kind": "python", "code": "x"}});
        let put: super::ActionPut = serde_json::from_value(put).unwrap();
        let runtimes = super::Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: false };
        let names = (&Name::guest(), &name.parse().unwrap());
        let action = put.apply(names, None, &runtimes, 1).unwrap().action;
        let times = Times { start_ms: start, end_ms: start, ..Times::default() };
        let (response, logs) = (Response::from_result(json!({}).into()), vec!["a line".to_owned()]);
        Activation::new(ActivationId(id), &action, response, logs, (StartKind::Cold, times))
    }
}

fn limits(limits: Limits) -> Value {
    serde_json::to_value(limits).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = ActivationId(0xabc);
        assert_eq!(id.to_string(), format!("{}abc", "0".repeat(29)));
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "abc", &"g".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
            assert_eq!(bad.parse::<ActivationId>(), Err(ActivationIdError), "{bad}");
        }
    }

    #[test]
    fn outcomes_have_openwhisks_words() {
        let document = |response: Response| serde_json::to_value(response).unwrap();
        let good = document(Response::from_result(json!({"a": 1}).into()));
        let expected = json!({"status": "success", "statusCode": 0, "success": true,
                              "result": {"a": 1}, "size": 7});
        assert_eq!(good, expected);
        assert_eq!(
            document(Response::from_result(json!({"error": "x"}).into()))["status"],
            "application error"
        );
        let failed = document(Response::failure(Outcome::DeveloperError, "it ended"));
        assert_eq!(failed["status"], "action developer error");
        assert_eq!(
            (&failed["statusCode"], &failed["result"]["error"]),
            (&json!(2), &json!("it ended"))
        );
        assert_eq!(document(Response::from_result(json!([1]).into()))["success"], true);
    }
}
