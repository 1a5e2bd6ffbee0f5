//! Keys of namespaces.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{KeyInfo, KeyReply, KeyRequest, OperatorError};
use crate::api::Name;
use crate::clock::now_ms;
use crate::store::{Key, Store};

/// Handles a request.
pub fn handle(store: &dyn Store, ask: &KeyRequest) -> Result<KeyReply, OperatorError> {
    Ok(match ask {
        KeyRequest::Create(namespace) if namespace.is_reserved_namespace() => {
            return Err(OperatorError::Reserved(namespace.clone()));
        }
        KeyRequest::Create(namespace) => {
            let (user, secret) = generate()?;
            store_key(store, namespace, &user, &secret)?;
            KeyReply::Made { user, secret }
        }
        KeyRequest::List(namespace) => {
            let mut keys = store.keys(namespace.as_ref())?;
            keys.sort_by(|a, b| (&a.namespace, a.created_ms).cmp(&(&b.namespace, b.created_ms)));
            KeyReply::Keys(keys.into_iter().map(shown).collect())
        }
        KeyRequest::Revoke(namespace) => KeyReply::Revoked(store.revoke(namespace)?),
    })
}

fn shown(key: Key) -> KeyInfo {
    KeyInfo { user: key.user, namespace: key.namespace, created_ms: key.created_ms }
}

/// The public and the secret part of a new key.
fn generate() -> Result<(String, String), OperatorError> {
    Ok((random()?, random()? + &random()?))
}

/// Stores a key, with only the digest of its secret.
fn store_key(
    store: &dyn Store,
    namespace: &Name,
    user: &str,
    secret: &str,
) -> Result<(), OperatorError> {
    let secret_sha256 = Sha256::digest(secret.as_bytes()).into();
    let (user, namespace, created_ms) = (user.to_owned(), namespace.clone(), now_ms());
    Ok(store.put_key(&Key { user, secret_sha256, namespace, created_ms })?)
}

/// Makes sure that the store has a key of the namespace `guest`, and a file for its owner alone
/// holds it.
pub fn ensure_guest_key(store: &dyn Store, guest: &Name, path: &Path) -> Result<(), OperatorError> {
    if opens(store, guest, path)? {
        return Ok(());
    }
    let place = |source| OperatorError::Io { doing: "write", place: path.to_owned(), source };
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(place)?;
    let (user, secret) = generate()?;
    writeln!(file, "{user}:{secret}").map_err(place)?;
    store_key(store, guest, &user, &secret)
}

/// Whether the key in a file opens a namespace.
fn opens(store: &dyn Store, namespace: &Name, path: &Path) -> Result<bool, OperatorError> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let Some((user, secret)) = text.trim_end().split_once(':') else { return Ok(false) };
    let secret_sha256: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
    let key = store.key(user)?.filter(|key| key.secret_sha256 == secret_sha256);
    Ok(key.is_some_and(|key| key.namespace == *namespace))
}

/// 32 hexadecimal digits.
fn random() -> Result<String, OperatorError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| OperatorError::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::store::Embedded;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn the_guests_key_is_readable_by_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        let (guest, path) = (name("guest"), directory.path().join("guest.key"));
        ensure_guest_key(&store, &guest, &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (user, secret) = text.trim_end().split_once(':').unwrap();
        assert_eq!((user.len(), secret.len()), (32, 64));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let key = store.key(user).unwrap().unwrap();
        let expected: [u8; 32] = Sha256::digest(secret.as_bytes()).into();
        assert_eq!((key.secret_sha256, key.namespace.as_str()), (expected, "guest"));
        ensure_guest_key(&store, &guest, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "it stays");
        fs::remove_file(&path).unwrap();
        ensure_guest_key(&store, &guest, &path).unwrap();
        assert_eq!(store.keys(None).unwrap().len(), 2, "a lost key is replaced");
        // As a start leaves it that was killed between the file and the store.
        for dead in ["", "a:b\n", &text.replace(secret, user)] {
            fs::write(&path, dead).unwrap();
            ensure_guest_key(&store, &guest, &path).unwrap();
            assert!(opens(&store, &guest, &path).unwrap(), "{dead}");
        }
    }

    #[test]
    fn reserved_namespaces_get_no_keys() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        for reserved in ["_", "farfork", "whisk.system"] {
            let refused = handle(&store, &KeyRequest::Create(name(reserved))).unwrap_err();
            assert!(refused.to_string().contains("reserved"), "{refused}");
        }
        assert_eq!(store.keys(None).unwrap(), [], "none was stored");
        handle(&store, &KeyRequest::Create(name("farforks"))).unwrap();
    }

    #[test]
    fn keys_are_created_listed_and_revoked_by_namespace() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(&directory.path().join("db")).unwrap();
        let mut made = Vec::new();
        for namespace in ["b", "a", "b"] {
            let KeyReply::Made { user, secret } =
                handle(&store, &KeyRequest::Create(name(namespace))).unwrap()
            else {
                panic!("no key was made")
            };
            assert_eq!(store.key(&user).unwrap().unwrap().namespace.as_str(), namespace);
            made.extend([user, secret]);
        }
        made.sort();
        made.dedup();
        assert_eq!(made.len(), 6, "all differ");
        let list = |namespace: Option<&str>| match handle(
            &store,
            &KeyRequest::List(namespace.map(name)),
        ) {
            Ok(KeyReply::Keys(keys)) => keys.iter().map(|key| key.namespace.to_string()).collect(),
            other => vec![format!("{other:?}")],
        };
        assert_eq!(list(None), ["a", "b", "b"]);
        assert_eq!(list(Some("b")), ["b", "b"]);
        let revoke = || handle(&store, &KeyRequest::Revoke(name("b"))).unwrap();
        assert_eq!((revoke(), revoke()), (KeyReply::Revoked(2), KeyReply::Revoked(0)));
        assert_eq!(list(None), ["a"]);
    }
}
