//! Files of shared keys: one word, `ffk1-` and base64url of name (16 bytes) and secret (32 bytes).

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use farfork_fabric::SharedKey;

use crate::error::FarError;

const BEGIN: &str = "ffk1-";
/// More than any key has.
const MOST_BYTES: usize = 256;

/// The key in a file that only its owner may read.
///
/// # Errors
/// [`FarError::Io`], [`FarError::NotAKey`], [`FarError::ExposedKey`].
pub fn key_at(path: &Path) -> Result<SharedKey, FarError> {
    let read = FarError::io("read the key of far memory", path);
    let text = fs::read_to_string(path).map_err(read)?;
    let found = fs::metadata(path).map_err(FarError::io("look at", path))?;
    if found.mode() & 0o077 != 0 {
        return Err(FarError::ExposedKey { path: path.to_owned() });
    }
    let not_a_key = || FarError::NotAKey { path: path.to_owned() };
    parse(text.trim()).ok_or_else(not_a_key)
}

/// The key in the first line of a stream, of which nothing else is read.
///
/// # Errors
/// [`FarError::Io`], [`FarError::NotAKey`].
pub fn key_from(mut stream: impl Read) -> Result<SharedKey, FarError> {
    let name = Path::new("standard input");
    let mut line = Vec::new();
    let mut byte = [0];
    // What follows is another reader's.
    while line.len() < MOST_BYTES {
        let read = stream.read(&mut byte);
        match read.map_err(FarError::io("read the key of far memory from", name))? {
            0 => break,
            _ if byte == *b"\n" => break,
            _ => line.push(byte[0]),
        }
    }
    let text = String::from_utf8(line).unwrap_or_default();
    parse(text.trim()).ok_or_else(|| FarError::NotAKey { path: name.to_owned() })
}

/// The key in a file; if there is none, it is made with a new key.
///
/// # Errors
/// As with [`key_at`].
pub fn new_key_at(path: &Path) -> Result<SharedKey, FarError> {
    let mut options = OpenOptions::new();
    let mut file = match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return key_at(path),
        made => made.map_err(FarError::io("make the key of far memory", path))?,
    };
    let failed = || FarError::io("write the key of far memory", path);
    let key = SharedKey::random().map_err(|error| failed()(error.into()))?;
    file.write_all(format!("{}\n", show(&key)).as_bytes()).map_err(failed())?;
    Ok(key)
}

/// Makes a file with this key, in the place of any other.
///
/// # Errors
/// The file cannot be written.
pub fn write_key_at(path: &Path, key: &SharedKey) -> Result<(), FarError> {
    let failed = || FarError::io("write the key of far memory", path);
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(format!("{}\n", show(key)).as_bytes()))
        .map_err(failed())
}

fn show(key: &SharedKey) -> String {
    let bytes = [&key.id()[..], key.secret()].concat();
    format!("{BEGIN}{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn parse(text: &str) -> Option<SharedKey> {
    let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(BEGIN)?).ok()?;
    let (id, secret) = bytes.split_first_chunk::<16>()?;
    Some(SharedKey::new(*id, secret.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(key_at(&path), Err(FarError::Io { .. })));
        let made = new_key_at(&path).unwrap();
        for read in [new_key_at(&path).unwrap(), key_at(&path).unwrap()] {
            assert_eq!((read.id(), read.secret()), (made.id(), made.secret()));
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert!(matches!(key_at(&path), Err(FarError::ExposedKey { .. })));
    }

    #[test]
    fn a_key_is_the_first_line_of_a_stream() {
        let key = SharedKey::random().unwrap();
        let text = format!("{}\nwhat follows", show(&key));
        let mut stream = text.as_bytes();
        assert_eq!(key_from(&mut stream).unwrap().secret(), key.secret());
        assert_eq!(stream, b"what follows");
        assert_eq!(key_from(show(&key).as_bytes()).unwrap().id(), key.id());
        for wrong in ["", "\n", "ffk1-\n", &"f".repeat(1 << 20)] {
            assert!(matches!(key_from(wrong.as_bytes()), Err(FarError::NotAKey { .. })));
        }
    }

    #[test]
    fn other_texts_are_not_keys() {
        let key = SharedKey::random().unwrap();
        let text = show(&key);
        assert!(parse(&text).is_some());
        for wrong in ["", "ffk1-", &text[1..], &text[..text.len() - 1], &format!("{text}A")] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
