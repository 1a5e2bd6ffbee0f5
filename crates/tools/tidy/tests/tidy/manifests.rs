//! Every crate has a description, and every dependency has one exact version, named in the root.

use crate::tree::{Complaint, File, Tree};
use toml::{Table, Value};

pub fn rule(tree: &Tree) -> Vec<Complaint> {
    let stand_alone = stand_alone(tree);
    let manifests = tree.files().filter(|file| file.path.ends_with("Cargo.toml"));
    manifests.flat_map(|file| check(&file, &stand_alone)).collect()
}

/// Folders of the crates that cannot inherit from the root.
pub fn stand_alone(tree: &Tree) -> Vec<String> {
    let root = tree.file("Cargo.toml").and_then(|file| file.text.parse::<Table>().ok());
    let list = root.as_ref().and_then(|root| root.get("workspace")?.get("exclude")?.as_array());
    list.into_iter().flatten().filter_map(|path| path.as_str().map(str::to_owned)).collect()
}

fn check(file: &File<'_>, stand_alone: &[String]) -> Vec<Complaint> {
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![file.complaint(0, error.to_string())],
    };
    let stands_alone =
        stand_alone.iter().any(|folder| file.path.strip_suffix("/Cargo.toml") == Some(folder));
    let mut complaints = Vec::new();
    if let Some(package) = manifest.get("package")
        && !has_one_line_description(package)
    {
        complaints.push(file.complaint(0, "no description of one line"));
    }
    for (name, dependency) in dependencies(&manifest) {
        let version = dependency.as_str().or_else(|| dependency.get("version")?.as_str());
        let may_name_versions = stands_alone || manifest.contains_key("workspace");
        let what = match version {
            Some(version) if !version.starts_with('=') => {
                format!("`{name}` is not pinned: write version = \"={version}\"")
            }
            Some(_) if !may_name_versions => {
                format!("`{name}`: name the version in the root, write workspace = true here")
            }
            None if dependency.get("git").is_some() => format!("`{name}` comes from git"),
            _ => continue,
        };
        complaints.push(file.complaint(line_of(file, &name), what));
    }
    complaints
}

fn has_one_line_description(package: &Value) -> bool {
    let description = package.get("description").and_then(Value::as_str).unwrap_or_default();
    !description.trim().is_empty() && !description.contains('\n')
}

/// Every dependency of every kind, also of the workspace and of single targets.
pub fn dependencies(table: &Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in table {
        let Some(inner) = value.as_table() else { continue };
        match key.as_str() {
            "dependencies" | "dev-dependencies" | "build-dependencies" => {
                found.extend(inner.clone());
            }
            "workspace" => found.extend(dependencies(inner)),
            "target" => {
                found.extend(inner.values().filter_map(Value::as_table).flat_map(dependencies))
            }
            _ => {}
        }
    }
    found
}

fn line_of(file: &File<'_>, name: &str) -> usize {
    let defines =
        |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '=', '.']));
    file.lines().find(|(_, line)| defines(line)).map_or(0, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    const PACKAGE: &str = "[package]\nname = \"a\"\ndescription = \"The letter A.\"\n";

    #[test]
    fn a_crate_without_a_description_is_seen() {
        for description in ["", "description = \"\"\n", "description = \"\"\"a\nb\"\"\"\n"] {
            let manifest = format!("[package]\nname = \"a\"\n{description}");
            assert_complains(rule, &[("crates/a/Cargo.toml", &manifest)], "no description");
        }
        assert_accepts(rule, &[("crates/a/Cargo.toml", PACKAGE)]);
    }

    #[test]
    fn a_version_that_floats_is_seen() {
        for table in [
            "[workspace.dependencies]\nlibc = \"0.2\"",
            "[workspace.dependencies]\nlibc = { version = \"0.2\" }",
            "[workspace.dependencies.libc]\nversion = \"^0.2\"",
            "[dev-dependencies]\nlibc = \"0.2\"",
            "[target.'cfg(unix)'.build-dependencies]\nlibc = \"0.2\"",
        ] {
            assert_complains(rule, &[("Cargo.toml", table)], "`libc` is not pinned");
        }
        let root = "[workspace.dependencies]\nlibc = \"=0.2.1\"\na = { path = \"crates/a\" }\n";
        assert_accepts(rule, &[("Cargo.toml", root)]);
        let from_git = "[dependencies]\na = { git = \"https://example.org/a\" }\n";
        assert_complains(rule, &[("crates/a/Cargo.toml", from_git)], "comes from git");
    }

    #[test]
    fn a_version_outside_of_the_root_is_seen() {
        let pinned = format!("{PACKAGE}[dependencies]\nlibc = \"=0.2.1\"\n");
        let root = ("Cargo.toml", "[workspace]\nexclude = [\"crates/alone\"]\n");
        assert_complains(rule, &[root, ("crates/a/Cargo.toml", &pinned)], "in the root");
        assert_accepts(rule, &[root, ("crates/alone/Cargo.toml", &pinned)]);
    }
}
