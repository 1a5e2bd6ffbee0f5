//! Names of functions' images.

use sha2::{Digest, Sha256};

use crate::api::{Action, Name};
use crate::store::{Store, StoreError};

/// Most bytes of a part of a name: two parts and the rest must fit into the catalog's limit.
const LONGEST_PART: usize = 60;

/// The image name of this version of an action: `NAMESPACE/ACTION:VERSION-DIGEST`. Image names
/// allow fewer characters than names of actions, so the digest is needed to make them unique.
pub fn name(action: &Action) -> String {
    let digest = digest(&[
        action.namespace.as_str(),
        action.name.as_str(),
        &action.version.to_string(),
        // An action that was deleted and created again repeats its versions.
        &action.updated_ms.to_string(),
    ]);
    let (user, function) = (user(&action.namespace), part(action.name.as_str()));
    format!("{user}/{function}:{}-{digest}", action.version)
}

/// The image names of all actions, whether or not the images exist.
pub fn names(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for namespace in store.namespaces()? {
        names.extend(store.actions(&namespace, 0, usize::MAX)?.iter().map(name));
    }
    Ok(names)
}

/// The image user of a namespace.
pub fn user(namespace: &Name) -> String {
    let plain = part(namespace.as_str());
    if plain == namespace.as_str() {
        return plain;
    }
    format!("{plain}-{}", digest(&[namespace.as_str()]))
}

fn part(text: &str) -> String {
    let fit = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    text.chars().take(LONGEST_PART).map(|letter| if fit(letter) { letter } else { '_' }).collect()
}

fn digest(parts: &[&str]) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        sha.update(part.as_bytes());
        sha.update([0]);
    }
    sha.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ActionPut, Runtimes};
    use serde_json::json;

    fn action(namespace: &str, name: &str, now_ms: u64) -> Action {
        let exec = json!({"exec": {"kind": "python", "code": "x"}});
        let put: ActionPut = serde_json::from_value(exec).unwrap();
        let names = [namespace, name].map(|name| name.parse().unwrap());
        let runtimes = Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true };
        put.apply((&names[0], &names[1]), None, &runtimes, now_ms).unwrap().action
    }

    #[test]
    fn image_names_are_valid_in_the_catalog() {
        let seen = name(&action("guest", "hello", 1));
        assert!(seen.starts_with("guest/hello:0.0.1-"), "{seen}");
        let long = "a b@c".repeat(50);
        for (namespace, function) in [("guest", "sp ace@x.y"), ("a@b", "x"), (&long, &long)] {
            let text = name(&action(namespace, function, 1));
            let parsed: farfork_image::catalog::ImageName = text.parse().unwrap();
            assert_eq!(parsed.user(), user(&namespace.parse().unwrap()));
        }
    }

    #[test]
    fn different_functions_have_different_images() {
        let all = [
            name(&action("guest", "a b", 1)),
            name(&action("guest", "a@b", 1)),
            name(&action("guest", "a_b", 1)),
            name(&action("guest", "a b", 2)),
            name(&action("gu@st", "a b", 1)),
            name(&action("gu_st", "a b", 1)),
        ];
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name}");
        }
        assert_ne!(user(&"a@b".parse().unwrap()), user(&"a_b".parse().unwrap()));
    }
}
