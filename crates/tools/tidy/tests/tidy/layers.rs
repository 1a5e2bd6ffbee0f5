//! Crates form layers, and dependencies point down: a crate uses only crates of lower layers.

use crate::manifests::dependencies;
use crate::tree::{Complaint, File, Tree};
use toml::Table;

/// From the bottom up. Crates of one layer do not depend on each other.
const LAYERS: &[&[&str]] = &[
    &["types"],
    &["sys", "policy", "handle", "caches"],
    &["plan", "caches-qemu", "profile", "scheduler"],
    &["restorer", "pool", "objects", "fabric", "mount", "minivmm"],
    &["image", "malloc"],
    &["pages", "far", "pageserver"],
    &["checkpoint", "restore", "doctor", "audit"],
    &["node", "seed"],
    &["platform"],
    &["sim"],
    &["bench", "cli"],
    &["tests", "tidy", "fuzz"],
];

/// What measures does not belong to the product: each of these is used by no crates but some.
const MEASURING: &[(&str, &[&str])] =
    &[("farfork-bench", &[]), ("farfork-caches", &["farfork-bench", "farfork-caches-qemu"])];

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
        .filter_map(|dependency| {
            let is_below = layer(&dependency).is_some_and(|other| other < own);
            let why = match is_below {
                false => "is not below it",
                true if !may_use(name, &dependency) => "does not belong to the product",
                true => return None,
            };
            Some(file.complaint(0, format!("`{name}` uses `{dependency}`, which {why}")))
        })
        .collect()
}

fn may_use(name: &str, dependency: &str) -> bool {
    MEASURING.iter().all(|(measuring, by)| *measuring != dependency || by.contains(&name))
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
    fn a_product_that_links_what_measures_is_seen() {
        for (name, dependency) in
            [("farfork-profile", "farfork-caches"), ("farfork-tests", "farfork-bench")]
        {
            let sample = manifest(name, "dependencies", dependency);
            assert_complains(
                rule,
                &[("crates/a/Cargo.toml", &sample)],
                "not belong to the product",
            );
        }
        let sample = manifest("farfork-bench", "dependencies", "farfork-caches");
        assert_accepts(rule, &[("crates/a/Cargo.toml", &sample)]);
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
