//! What an image can be called.

use std::fmt;
use std::str::FromStr;

/// Bytes of a whole name, its tag included.
pub const MAX_NAME_BYTES: usize = 255;
const DEFAULT_TAG: &str = "latest";

/// `user/function[:tag]`; without a tag, `latest`. Each part consists of letters, digits, `.`, `_`
/// and `-` and starts with a letter, a digit or `_`; the whole has at most 255 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName {
    user: String,
    function: String,
    tag: String,
}

/// The text is not the name of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid image name {text:?}: {why}; write USER/FUNCTION or USER/FUNCTION:TAG")]
pub struct ParseNameError {
    text: String,
    why: &'static str,
}

impl ImageName {
    /// Whose image it is.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// What it runs.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// User, function and tag.
    pub fn parts(&self) -> [&str; 3] {
        [&self.user, &self.function, &self.tag]
    }

    /// Which of several; `latest` if none was given.
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.user, self.function, self.tag)
    }
}

impl FromStr for ImageName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<ImageName, ParseNameError> {
        parse(text).map_err(|why| ParseNameError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<ImageName, &'static str> {
    let (user, rest) = text.split_once('/').ok_or("it has no slash")?;
    let (function, tag) = rest.split_once(':').unwrap_or((rest, DEFAULT_TAG));
    for part in [user, function, tag] {
        check_part(part)?;
    }
    let name = ImageName { user: user.into(), function: function.into(), tag: tag.into() };
    match name.to_string().len() {
        ..=MAX_NAME_BYTES => Ok(name),
        _ => Err("it has more than 255 bytes"),
    }
}

fn check_part(part: &str) -> Result<(), &'static str> {
    let first = part.bytes().next().ok_or("a part of it is empty")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !part.bytes().all(|byte| plain(byte) || matches!(byte, b'.' | b'-')) {
        return Err("a part of it has characters other than letters, digits, '.', '_' and '-'");
    }
    if plain(first) { Ok(()) } else { Err("a part of it starts with '.' or '-'") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tag_may_be_left_out() {
        let name: ImageName = "guest/hello".parse().unwrap();
        assert_eq!(name, "guest/hello:latest".parse().unwrap());
        assert_eq!((name.user(), name.function(), name.tag()), ("guest", "hello", "latest"));
        assert_eq!(name.to_string(), "guest/hello:latest");
    }

    #[test]
    fn invalid_names_are_refused() {
        let long = format!("u/{}", "f".repeat(250));
        let texts = [
            "", "/", "a", "a/", "/b", "a/b:", "a//b", "a/b/c", "a/b:c:d", "a b/c", "ä/b", "a/.b",
            "a/-b", "../b", "a/b\n", &long,
        ];
        for text in texts {
            assert!(text.parse::<ImageName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_longest_name_counts_its_tag() {
        let fits = format!("u/{}", "f".repeat(255 - "u/:latest".len()));
        assert_eq!(fits.parse::<ImageName>().unwrap().to_string().len(), 255);
        assert!(format!("{fits}f").parse::<ImageName>().is_err());
    }

    proptest! {
        #[test]
        fn names_survive_being_printed(text in "[a-z0-9_][A-Za-z0-9._-]{0,9}/[a-z][a-z.-]{0,9}(:v[0-9.]{1,5})?") {
            let name: ImageName = text.parse().unwrap();
            prop_assert_eq!(name.to_string().parse::<ImageName>().unwrap(), name);
        }
    }
}
