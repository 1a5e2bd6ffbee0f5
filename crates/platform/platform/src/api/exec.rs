//! The executable part of an action.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::ApiError;

/// An action's runtime and entry point, without its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The runtime, with its version.
    pub kind: String,
    /// Whether the code is an archive or a program, in base64.
    pub binary: bool,
    /// The function to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main: Option<String>,
}

impl Exec {
    /// Whether its code is the server itself, which speaks OpenWhisk's action protocol.
    pub fn is_blackbox(&self) -> bool {
        self.kind == BLACKBOX
    }
}

/// The code as the client sent it: text, or base64 of an archive or a program.
pub type Code = String;

/// Runtime, code and entry point as a client sends them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ExecPut {
    /// Runtime.
    kind: Option<String>,
    /// Text, or base64.
    code: Option<String>,
    /// Function to call.
    #[serde(default)]
    main: Option<String>,
    /// Container image.
    #[serde(default)]
    image: Option<String>,
}

/// The available runtimes, with the versions found on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtimes {
    /// As in `3.11`.
    pub python: String,
    /// As in `20`, if found.
    pub nodejs: Option<String>,
    /// Whether programs that speak the action protocol are accepted.
    pub blackbox: bool,
}

/// The kind of a program that speaks the action protocol.
pub const BLACKBOX: &str = "blackbox";
/// Most bytes of code.
pub const MOST_CODE_BYTES: u64 = 48 << 20;

impl Runtimes {
    /// The kind that a client names, with its version.
    pub fn resolve(&self, kind: &str) -> Result<String, ApiError> {
        if kind == BLACKBOX && self.blackbox {
            return Ok(kind.to_owned());
        }
        let (language, version) = kind.split_once(':').unwrap_or((kind, "default"));
        let found = match language {
            "python" => Some(&self.python),
            "nodejs" => self.nodejs.as_ref(),
            _ => None,
        };
        let major = |found: &str| found.split('.').next().unwrap_or_default().to_owned();
        let is_it = |found: &&String| {
            version == "default" || version == found.as_str() || version == major(found)
        };
        match found.filter(is_it) {
            Some(found) => Ok(format!("{language}:{found}")),
            None => Err(ApiError::BadRequest(format!(
                "The specified runtime '{kind}' is not supported by this platform. Valid values are: '{}'",
                self.kinds().join("', '")
            ))),
        }
    }

    /// All kinds.
    pub fn kinds(&self) -> Vec<String> {
        let nodejs = self.nodejs.iter().map(|version| format!("nodejs:{version}"));
        let python = [format!("python:{}", self.python)];
        let blackbox = self.blackbox.then(|| BLACKBOX.to_owned());
        python.into_iter().chain(nodejs).chain(blackbox).collect()
    }
}

impl ExecPut {
    /// Validates it.
    pub fn check(self, runtimes: &Runtimes) -> Result<(Exec, Code), ApiError> {
        let wrong = |reason: &str| ApiError::BadRequest(reason.to_owned());
        let kind = self.kind.ok_or_else(|| wrong("exec has no kind"))?;
        let kind = runtimes.resolve(&kind)?;
        if self.image.is_some() {
            return Err(wrong(
                "container images are not supported: send a program that speaks the action \
                protocol as code, with kind blackbox",
            ));
        }
        let code = self.code.filter(|code| !code.is_empty());
        let code = code.ok_or_else(|| wrong("exec has no code"))?;
        if code.len() as u64 > MOST_CODE_BYTES {
            return Err(ApiError::TooLarge { what: "the code", most: MOST_CODE_BYTES });
        }
        let binary = is_binary(&code, if kind == BLACKBOX { &PROGRAMS } else { &ARCHIVES });
        if kind == BLACKBOX && !binary && !code.starts_with(SCRIPT) {
            return Err(wrong(
                "the code of a blackbox must be a script that begins with #!, or base64 of such a script, of an \
                ELF program, or of a zip archive with one named exec at its top",
            ));
        }
        Ok((Exec { kind, binary, main: self.main.filter(|main| !main.is_empty()) }, code))
    }
}

/// The first bytes of a script that names its interpreter.
const SCRIPT: &str = "#!";
/// The first bytes of what a client sends in base64: for a language's runtime, and for a blackbox.
const ARCHIVES: [&[u8]; 3] = [b"PK\x03\x04", b"\x7fELF", b"\x1f\x8b"];
const PROGRAMS: [&[u8]; 3] = [b"PK\x03\x04", b"\x7fELF", SCRIPT.as_bytes()];

/// Whether code is base64. OpenWhisk's rule: it is if its decoded bytes begin with a known magic.
fn is_binary(code: &str, magics: &[&[u8]]) -> bool {
    let begins = |bytes: Vec<u8>| magics.iter().any(|magic| bytes.starts_with(magic));
    let is_base64 = code.len().is_multiple_of(4) && code.is_ascii();
    let head = code.get(..8).filter(|_| is_base64);
    head.and_then(|head| STANDARD.decode(head).ok()).is_some_and(begins)
        && STANDARD.decode(code).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtimes() -> Runtimes {
        Runtimes { python: "3.11".to_owned(), nodejs: Some("20".to_owned()), blackbox: true }
    }

    #[test]
    fn kinds_get_the_version_that_is_there() {
        for (asked, found) in [
            ("python", "python:3.11"),
            ("python:default", "python:3.11"),
            ("python:3", "python:3.11"),
            ("python:3.11", "python:3.11"),
            ("nodejs:default", "nodejs:20"),
            ("nodejs:20", "nodejs:20"),
            ("blackbox", "blackbox"),
        ] {
            assert_eq!(runtimes().resolve(asked).unwrap(), found);
        }
        for unknown in ["python:2", "python:3.12", "nodejs:18", "swift:5", "", "python:"] {
            let message = runtimes().resolve(unknown).unwrap_err().to_string();
            assert!(message.contains("'python:3.11', 'nodejs:20', 'blackbox'"), "{message}");
        }
        let without = Runtimes { nodejs: None, ..runtimes() };
        assert!(without.resolve("nodejs:default").is_err());
        let without = Runtimes { blackbox: false, ..runtimes() };
        let message = without.resolve("blackbox").unwrap_err().to_string();
        assert!(message.ends_with("'python:3.11', 'nodejs:20'."), "{message}");
    }

    fn put(kind: &str, code: &str) -> ExecPut {
        let some = |text: &str| Some(text.to_owned());
        ExecPut { kind: some(kind), code: some(code), main: some(""), image: None }
    }

    #[test]
    fn archives_and_programs_are_distinguished_from_text() {
        let encoded = |bytes: &[u8]| STANDARD.encode(bytes);
        let zip = encoded(b"PK\x03\x04rest of it");
        let (exec, code) = put("python", &zip).check(&runtimes()).unwrap();
        assert!(exec.binary && code == zip && exec.main.is_none());
        for text in ["def main(a): return a", "abcd", "UEsDBA==x", &encoded(b"text")] {
            assert!(!put("python", text).check(&runtimes()).unwrap().0.binary, "{text}");
        }
    }

    #[test]
    fn a_blackbox_is_a_program_in_any_encoding() {
        let encoded = |bytes: &[u8]| STANDARD.encode(bytes);
        let binary = |code: &str| {
            let checked = put("blackbox", code).check(&runtimes());
            checked.map(|(exec, _)| exec.is_blackbox() && exec.binary)
        };
        for program in [&b"\x7fELFxx"[..], b"PK\x03\x04rest", b"#!/bin/sh\ntrue\n"] {
            assert_eq!(binary(&encoded(program)), Ok(true), "{program:?}");
        }
        assert_eq!(binary("#!/bin/sh\ntrue\n"), Ok(false), "it is a text");
        for none in ["print()", &*encoded(b"text of no kind"), &*encoded(b"\x1f\x8b\x08\x00....")] {
            assert!(binary(none).unwrap_err().to_string().contains("begins with #!"), "{none}");
        }
        // The same text is also valid Python code.
        let text = encoded(b"#!/bin/sh\ntrue\n");
        assert!(!put("python", &text).check(&runtimes()).unwrap().0.binary);
    }

    #[test]
    fn what_cannot_be_executed_is_refused() {
        let refused = |put: ExecPut| put.check(&runtimes()).unwrap_err().to_string();
        assert!(refused(ExecPut::default()).contains("no kind"));
        assert!(refused(put("python", "")).contains("no code"));
        assert!(refused(put("blackbox", "true")).contains("base64"));
        let image = ExecPut { image: Some("a/b".to_owned()), ..put("blackbox", "x") };
        assert!(refused(image).contains("container images"));
        let large = "x".repeat(MOST_CODE_BYTES as usize + 1);
        assert_eq!(put("python", &large).check(&runtimes()).unwrap_err().status(), 413);
    }
}
