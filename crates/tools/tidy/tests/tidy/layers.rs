//! Crates form layers, and dependencies point down: a crate uses only crates of lower layers.

use crate::manifests::dependencies;
use crate::tree::{Complaint, File, Tree};
use toml::Table;

/// From the bottom up. Crates of one layer do not depend on each other.
const LAYERS: &[&[&str]] = &[
    &["types", "caches"],
    &["sys", "policy", "handle"],
    &["plan", "caches-qemu", "profile", "scheduler"],
    &["restorer", "pool", "objects", "fabric", "mount", "minivmm"],
    &["image"],
    &["pages", "far", "pageserver"],
    &["checkpoint", "restore", "doctor", "audit"],
    &["node", "seed"],
    &["platform"],
    &["sim"],
    &["bench", "cli"],
    &["tests", "tidy", "fuzz"],
];

fn layer(name: &str) -> Option<usize> {
    let name = name.strip_prefix("farfork-")?;
    LAYERS.iter().position(|layer| layer.contains(&name))
}

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let manifests = tree.files().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.flat_map(|file| check(&file)).collect()
}

fn check(file: &File<'_>) -> Vec<Complaint> {
    // The rule of manifests reports manifests that do not parse.
    let Ok(manifest) = file.text.parse::<Table>() else { return Vec::new() };
    let name = manifest.get("package").and_then(|package| package.get("name")?.as_str());
    let Some(name) = name else { return Vec::new() };
    let Some(own) = layer(name) else {
        return vec![file.complaint(0, format!("`{name}` is not in the table of layers"))];
    };
    let ours = dependencies(&manifest).into_iter().map(|(name, _)| name);
    ours.filter(|dependency| dependency.starts_with("farfork-"))
        // Tests of a crate may depend on it with other features.
        .filter(|dependency| dependency != name)
        .filter(|dependency| layer(dependency).is_none_or(|other| other >= own))
        .map(|dependency| {
            file.complaint(0, format!("`{name}` uses `{dependency}`, which is not below it"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    fn manifest(name: &str, kind: &str, dependency: &str) -> String {
        format!("[package]\nname = \"{name}\"\n[{kind}]\n{dependency}.workspace = true\n")
    }

    #[test]
    fn a_dependency_that_points_up_or_sideways_is_seen() {
        for (name, dependency) in [
            ("farfork-pool", "farfork-node"),
            ("farfork-restore", "farfork-checkpoint"),
            ("farfork-sys", "farfork-unheard-of"),
        ] {
            for kind in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"] {
                let sample = manifest(name, kind, dependency);
                assert_complains(rule, &[("crates/a/Cargo.toml", &sample)], "is not below it");
            }
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_seen() {
        let sample = manifest("farfork-attic", "dependencies", "libc");
        assert_complains(rule, &[("crates/attic/Cargo.toml", &sample)], "table of layers");
    }

    #[test]
    fn pointing_down_is_fine() {
        let sample = manifest("farfork-node", "dependencies", "farfork-types");
        assert_accepts(
            rule,
            &[("crates/fork/node/Cargo.toml", &sample), ("Cargo.toml", "[workspace]")],
        );
    }
}
