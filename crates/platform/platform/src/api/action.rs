//! Actions.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ApiError, Code, Exec, ExecPut, Limits, LimitsPut, Name, Parameters, Runtimes, Version, region,
};

/// An action, without its code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// Its namespace.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
    /// Its version, raised by every update.
    pub version: Version,
    /// Whether other namespaces may see it.
    pub publish: bool,
    /// What it executes.
    pub exec: Exec,
    /// Default arguments of calls.
    pub parameters: Parameters,
    /// Its annotations.
    pub annotations: Parameters,
    /// Limits of its activations.
    pub limits: Limits,
    /// When it was last changed, in milliseconds since 1970.
    #[serde(rename = "updated")]
    pub updated_ms: u64,
}

/// An action as a client sends it. Fields left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ActionPut {
    exec: Option<ExecPut>,
    parameters: Option<Parameters>,
    annotations: Option<Parameters>,
    limits: Option<LimitsPut>,
    publish: Option<bool>,
}

/// The action after a client's request.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The action.
    pub action: Action,
    /// Its code, if it has changed.
    pub code: Option<Code>,
}

impl ActionPut {
    /// Applies the request to the action `before`, or makes a new action.
    pub fn apply(
        self,
        (namespace, name): (&Name, &Name),
        before: Option<&Action>,
        runtimes: &Runtimes,
        now_ms: u64,
    ) -> Result<Change, ApiError> {
        let put = self.exec.map(|exec| exec.check(runtimes)).transpose()?;
        let (exec, code) = match (put, before) {
            (Some((exec, code)), _) => (exec, Some(code)),
            (None, Some(before)) => (before.exec.clone(), None),
            (None, None) => {
                return Err(ApiError::BadRequest("a new action needs exec".to_owned()));
            }
        };
        let limits = before.map_or_else(Limits::default, |before| before.limits);
        let kept = |put: Option<Parameters>, field: fn(&Action) -> &Parameters| {
            put.or_else(|| before.map(|before| field(before).clone())).unwrap_or_default()
        };
        let mut annotations = kept(self.annotations, |action| &action.annotations);
        annotations.set("exec", exec.kind.as_str());
        annotations.check("Annotations")?;
        region::check(&annotations)?;
        let parameters = kept(self.parameters, |action| &action.parameters);
        parameters.check("Parameters")?;
        let action = Action {
            namespace: namespace.clone(),
            name: name.clone(),
            version: before.map_or(Version::FIRST, |before| before.version.next()),
            publish: self.publish.or(before.map(|before| before.publish)).unwrap_or(false),
            parameters,
            annotations,
            limits: self.limits.unwrap_or_default().change(limits)?,
            exec,
            updated_ms: now_ms,
        };
        Ok(Change { action, code })
    }
}

/// An action in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary<'a> {
    namespace: &'a Name,
    name: &'a Name,
    version: Version,
    publish: bool,
    annotations: &'a Parameters,
    limits: Limits,
    exec: Value,
    updated: u64,
}

impl Action {
    /// The action as an entry of a list.
    pub fn summary(&self) -> Summary<'_> {
        Summary {
            namespace: &self.namespace,
            name: &self.name,
            version: self.version,
            publish: self.publish,
            annotations: &self.annotations,
            limits: self.limits,
            exec: json!({ "binary": self.exec.binary }),
            updated: self.updated_ms,
        }
    }

    /// The whole document, with its code.
    pub fn with_code(&self, code: &str) -> serde_json::Result<Value> {
        let mut whole = serde_json::to_value(self)?;
        whole["exec"]["code"] = code.into();
        Ok(whole)
    }

    /// The action without parameters and annotations, which may have megabytes.
    pub fn bare(&self) -> Action {
        let (parameters, annotations) = (Parameters::default(), Parameters::default());
        Action { parameters, annotations, ..self.clone() }
    }

    /// `NAMESPACE/NAME`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(put: Value, before: Option<&Action>) -> Result<Change, ApiError> {
        let runtimes = Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true };
        let names = ["guest", "hello"].map(|name| name.parse().unwrap());
        let put: ActionPut = serde_json::from_value(put).unwrap();
        put.apply((&names[0], &names[1]), before, &runtimes, 17)
    }

    fn created() -> Action {
        let put = json!({
            "namespace": "_", "name": "hello",
            "exec": {"kind": "python:default", "code": "def main(a): return a"},
            "parameters": [{"key": "a", "value": 1}],
            "annotations": [{"key": "web-export", "value": true}],
            "limits": {"memory": 512},
        });
        let Change { action, code } = apply(put, None).unwrap();
        assert_eq!(code.as_deref(), Some("def main(a): return a"));
        action
    }

    #[test]
    fn a_new_action_has_what_its_client_sends_and_defaults() {
        let action = created();
        assert_eq!(action.version, Version::FIRST);
        assert_eq!((action.limits.memory_mb, action.limits.timeout_ms), (512, 60_000));
        assert_eq!(action.annotations.get("exec"), Some(json!("python:3.11")));
        assert!(action.annotations.is_set("web-export") && !action.publish);
        assert_eq!(action.path(), "guest/hello");
        assert_eq!(action.with_code("x").unwrap()["exec"]["code"], "x");
        let text = serde_json::to_value(action.summary()).unwrap();
        assert_eq!((&text["exec"]["binary"], &text["updated"]), (&json!(false), &json!(17)));
        assert!(text.get("parameters").is_none());
    }

    #[test]
    fn an_update_changes_only_what_it_names() {
        let before = created();
        let Change { action, code } =
            apply(json!({"limits": {"timeout": 1000}}), Some(&before)).unwrap();
        assert_eq!(code, None);
        let limits = Limits { timeout_ms: 1000, ..before.limits };
        let expected = Action { limits, version: before.version.next(), ..before.clone() };
        assert_eq!(action, expected);
        let Change { action, .. } = apply(json!({"annotations": []}), Some(&before)).unwrap();
        assert_eq!(action.annotations, Parameters::from_iter([("exec", "python:3.11")]));
        assert_eq!(action.parameters, before.parameters);
    }

    #[test]
    fn parameters_and_annotations_have_a_size() {
        let most = crate::api::MOST_PARAMETERS_BYTES as usize;
        // One large entry, or many small ones, including their JSON syntax.
        let one = |bytes: usize| {
            let around = json!([{"key": "k", "value": ""}]).to_string().len();
            json!([{"key": "k", "value": "x".repeat(bytes - around)}])
        };
        let many = |bytes: usize| {
            let each = json!({"key": "", "value": null}).to_string().len() + 1;
            Value::Array(vec![json!({"key": ""}); bytes / each])
        };
        let before = created();
        for (field, what) in [("parameters", "Parameters"), ("annotations", "Annotations")] {
            // The platform adds one to annotations.
            let room = if field == "annotations" { 64 } else { 0 };
            for good in [one(most - room), many(most - room)] {
                assert!(apply(json!({ field: good }), Some(&before)).is_ok());
            }
            for bad in [one(most + 1), many(most + 64)] {
                let refused = apply(json!({ field: bad }), Some(&before)).unwrap_err();
                let words = format!("{what} larger than allowed: ");
                assert_eq!(refused.status(), 413);
                assert!(refused.to_string().starts_with(&words), "{refused}");
                assert!(refused.to_string().ends_with(" > 1048576 bytes."), "{refused}");
            }
        }
    }

    #[test]
    fn an_update_also_checks_the_size_of_unchanged_parameters() {
        let large = Parameters::from_iter([("k", "x".repeat(1 << 20))]);
        let before = Action { parameters: large, ..created() };
        let update = |put: Value| apply(put, Some(&before)).map(|change| change.action);
        assert_eq!(update(json!({"publish": true})).unwrap_err().status(), 413);
        assert!(update(json!({"parameters": []})).is_ok());
    }

    #[test]
    fn a_new_action_needs_something_to_execute() {
        assert_eq!(apply(json!({}), None).unwrap_err().status(), 400);
        assert_eq!(
            apply(json!({"limits": {"memory": 1}}), Some(&created())).unwrap_err().status(),
            400
        );
    }
}
