//! JSON that is kept as text.

use std::sync::Arc;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::Fields;

/// The text of a JSON value. Copies share it. A tree could take a hundred times as much memory.
#[derive(Clone, Debug)]
pub struct Document(Arc<Box<RawValue>>);

/// Why a text is not the result of an action. The message is for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// It is not JSON.
    #[error("The action did not return a dictionary or array: its answer is not JSON.")]
    NotJson,
    /// It is another value.
    #[error("The action did not return a dictionary or array.")]
    NotContainer,
    /// It has too many levels.
    #[error("The action's result is nested deeper than {MOST_LEVELS} levels.")]
    TooDeep,
    /// A text in it has half a character.
    #[error(
        "The action's result has a text that is not Unicode: a surrogate (\\ud800 to \\udfff) without \
        its other half."
    )]
    NotUnicode,
}

/// Most levels of a result. Readers of JSON often have a limit of 127, and an activation has levels
/// around its result.
const MOST_LEVELS: usize = 120;

impl Document {
    /// The result of an action, from its text: an object or array with numbers of any size.
    pub fn result(text: Vec<u8>) -> Result<Document, ResultError> {
        let text = String::from_utf8(text).map_err(|_| ResultError::NotJson)?;
        // Without a tree, and so without its limits.
        let text = RawValue::from_string(text).map_err(|_| ResultError::NotJson)?;
        let result = Document(Arc::new(text));
        if !result.is_container() {
            return Err(ResultError::NotContainer);
        }
        check(result.text())?;
        Ok(result)
    }

    /// The text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// The value as a tree, for a moment. Its numbers have 64 bits; null if one is too large.
    pub fn value(&self) -> Value {
        self.tree().unwrap_or_default()
    }

    /// The value as a tree, for a moment. Its numbers have 64 bits.
    ///
    /// # Errors
    /// A number is too large for them.
    pub fn tree(&self) -> serde_json::Result<Value> {
        serde_json::from_str(self.text())
    }

    /// Whether it is an object or array.
    pub fn is_container(&self) -> bool {
        self.text().starts_with(['{', '['])
    }

    /// Whether it is an object with this field.
    pub fn has_field(&self, name: &str) -> bool {
        let fields: serde_json::Result<Fields<'_>> = serde_json::from_str(self.text());
        fields.is_ok_and(|fields| fields.names().any(|other| other == name))
    }
}

impl From<Value> for Document {
    fn from(value: Value) -> Document {
        // Writing a tree to memory does not fail.
        Document(Arc::new(to_raw_value(&value).unwrap_or_default()))
    }
}

impl PartialEq for Document {
    fn eq(&self, other: &Document) -> bool {
        self.text() == other.text()
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        Box::deserialize(deserializer).map(|text| Document(Arc::new(text)))
    }
}

/// Checks what the syntax of JSON leaves open.
fn check(text: &str) -> Result<(), ResultError> {
    let (mut levels, mut is_text) = (0, false);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' => {
                let letters = 1 + escaped(&text[at..])?;
                bytes.nth(letters - 1);
            }
            b'{' | b'[' if !is_text => levels += 1,
            b'}' | b']' if !is_text => levels -= 1,
            _ => {}
        }
        if levels > MOST_LEVELS {
            return Err(ResultError::TooDeep);
        }
    }
    Ok(())
}

/// The letters after a backslash, less one, that belong to it: of two halves of a character, both.
fn escaped(text: &str) -> Result<usize, ResultError> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => Ok(10),
        (Some(0xd800..0xe000), _) => Err(ResultError::NotUnicode),
        (Some(_), _) => Ok(4),
        (None, _) => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<String, ResultError> {
        Document::result(text.as_bytes().to_vec()).map(|result| result.text().to_owned())
    }

    #[test]
    fn results_are_kept_as_they_are() {
        let deep = "[".repeat(MOST_LEVELS) + &"]".repeat(MOST_LEVELS);
        let large = format!("{{\"a\":{}}}", "9".repeat(400));
        for text in [
            "{}",
            "[1,2]",
            &deep,
            &large,
            r#"{"a":18446744073709551616,"b":1e999}"#,
            r#"["\ud83d\ude00","\\ud800","\"{[","\u0041"]"#,
            r#"{"error":123456789012345678901234567890}"#,
        ] {
            assert_eq!(of(text).as_deref(), Ok(text));
        }
        let error = Document::result(format!("{{\"error\":{}}}", "9".repeat(400)).into()).unwrap();
        assert!(error.has_field("error") && error.tree().is_err());
        assert!(!Document::result(b"[1]".to_vec()).unwrap().has_field("error"));
    }

    #[test]
    fn what_cannot_be_a_result_has_its_reason() {
        let deep = "[".repeat(MOST_LEVELS + 1) + &"]".repeat(MOST_LEVELS + 1);
        for (text, reason) in [
            ("5", ResultError::NotContainer),
            ("null", ResultError::NotContainer),
            ("", ResultError::NotJson),
            ("{", ResultError::NotJson),
            ("{\"a\":NaN}", ResultError::NotJson),
            (&deep, ResultError::TooDeep),
            (r#"["\ud800"]"#, ResultError::NotUnicode),
            (r#"["\udc00"]"#, ResultError::NotUnicode),
            (r#"["\ud800\u0041"]"#, ResultError::NotUnicode),
            (r#"{"\ud800x":1}"#, ResultError::NotUnicode),
        ] {
            assert_eq!(of(text), Err(reason), "{text}");
        }
        assert_eq!(Document::result(b"[\"\xff\"]".to_vec()).unwrap_err(), ResultError::NotJson);
    }
}
