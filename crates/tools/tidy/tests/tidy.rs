//! Style is a test. Each rule reads the tracked files and complains about single lines. Each rule is tested
//! with a sample that breaks it, so that a rule that sees nothing is noticed.

#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/errors.rs"]
mod errors;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/manifests.rs"]
mod manifests;
#[path = "tidy/modules.rs"]
mod modules;
#[path = "tidy/scripts.rs"]
mod scripts;
#[path = "tidy/size.rs"]
mod size;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/unsafety.rs"]
mod unsafety;
#[path = "tidy/words.rs"]
mod words;

use tree::{Rule, Tree};

const RULES: &[(&str, Rule)] = &[
    ("files and functions stay short", size::rule),
    ("unsafe code is confined and explained", unsafety::rule),
    ("manifests describe, pin and inherit", manifests::rule),
    ("dependencies point down", layers::rule),
    ("modules of a crate need each other in one direction", modules::circles),
    ("every source file is a module", modules::unused),
    ("errors are shown in words, without numbers", errors::rule),
    ("nothing unfinished is committed", words::unfinished),
    ("nothing of the building machine is committed", words::machine),
    ("white space is plain", words::white_space),
    ("the language is plain English", language::rule),
    ("shell scripts stop at errors", scripts::rule),
    ("documents name files that exist", docs::links),
    ("the README is short before its reference part", docs::readme_length),
    ("the reading order names files that exist", docs::reading_order),
    ("the changelog has an unreleased section", docs::changelog),
];

#[test]
fn the_tree_is_tidy() {
    let tree = Tree::tracked();
    assert!(tree.has("Cargo.toml") && tree.files().count() > 30, "the tree was not found");
    let mut report = String::new();
    for (name, rule) in RULES {
        for complaint in rule(&tree) {
            report += &format!("\n{complaint} ({name})");
        }
    }
    assert!(report.is_empty(), "{report}");
}
