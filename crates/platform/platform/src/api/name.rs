//! Names of namespaces and actions.

use std::fmt;
use std::str::FromStr;

use super::text::as_text;

/// A name: 1 to 256 letters, digits, `_`, `@`, `.`, `-` and spaces, with a letter, digit or `_` first
/// and no space last.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// The text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name '{0}': use 1 to 256 letters, digits, '_', '@', '.', '-' and spaces, with a letter, \
    digit or '_' first and no space last"
)]
pub struct NameError(String);

const LONGEST: usize = 256;
/// `_` means the key's own namespace, `farfork` owns the base images in the pool, and `whisk.system` is
/// OpenWhisk's.
const RESERVED: [&str; 3] = ["_", "farfork", "whisk.system"];

impl Name {
    /// The namespace that exists from the first start on.
    pub fn guest() -> Name {
        Name("guest".to_owned())
    }

    /// Whether no user may have a namespace of this name.
    pub fn is_reserved_namespace(&self) -> bool {
        RESERVED.contains(&self.as_str())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_fit = |letter: char| is_word(letter) || "@.- ".contains(letter);
        let is_name = text.len() <= LONGEST
            && text.starts_with(is_word)
            && !text.ends_with(' ')
            && text.chars().all(is_fit);
        if is_name { Ok(Name(text.to_owned())) } else { Err(NameError(shown(text))) }
    }
}

/// A client's text, shortened and escaped for a message.
fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

as_text!(Name);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_openwhisks() {
        for good in ["a", "_x", "sp ace@x.y", "A-1", &"a".repeat(256)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", " a", "a ", "-a", ".", "@x", "a/b", "ä", "a\n", "a\0", &"a".repeat(257)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Name>("\"a/b\"").is_err());
        let message = "a\u{1b}[31m".parse::<Name>().unwrap_err().to_string();
        assert!(!message.contains('\u{1b}'), "{message}");
    }
}
