//! Modules of a crate: no two need each other, and no file is left out. A module and what lies inside of it
//! count as one.
//!
//! A module needs another if it imports from it, or names a path into it. `pub use` needs nothing: it
//! is a signpost, and a path that leads over one is followed to where it points. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::tree::{Complaint, File, Tree};

type Path = Vec<String>;

/// One file of a crate.
#[derive(Default)]
struct Module {
    file: String,
    declares: BTreeSet<String>,
    /// Names that `pub use` gives, and where each points.
    signposts: BTreeMap<String, Path>,
    /// Absolute paths within the crate that its code names.
    names: BTreeSet<Path>,
}

type Modules = BTreeMap<Path, Module>;

/// No modules of a crate need each other.
pub fn circles(tree: &Tree) -> Vec<Complaint> {
    crates(tree).values().flat_map(circles_of).collect()
}

/// Every source file is a module of its crate.
pub fn unused(tree: &Tree) -> Vec<Complaint> {
    let crates = crates(tree);
    let of_crate = |modules: &Modules| -> Vec<Complaint> {
        let is_lost = |path: &Path| match path.split_last() {
            Some((name, above)) => {
                modules.get(above).is_none_or(|above| !above.declares.contains(name))
            }
            None => false,
        };
        let lost = modules.iter().filter(|(path, _)| is_lost(path));
        lost.map(|(_, module)| complaint(&module.file, "no module declares this file")).collect()
    };
    crates.values().flat_map(of_crate).collect()
}

fn complaint(file: &str, what: impl Into<String>) -> Complaint {
    Complaint { path: file.to_owned(), line: 0, what: what.into() }
}

/// The modules of each crate, by the path of the crate.
fn crates(tree: &Tree) -> BTreeMap<String, Modules> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for file in tree.files().filter(|file| file.is("rs")) {
        let Some((root, inside)) = file.path.split_once("/src/") else { continue };
        let path = module_path(inside);
        let module = read(&file, &path);
        // A program beside a library has the crate's root, too; what either needs counts.
        let known = crates.entry(root.to_owned()).or_default().entry(path).or_default();
        known.file = module.file;
        known.declares.extend(module.declares);
        known.signposts.extend(module.signposts);
        known.names.extend(module.names);
    }
    crates
}

fn module_path(inside: &str) -> Path {
    let stem = inside.trim_end_matches(".rs");
    let mut path: Path = stem.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod") || path == ["lib"] || path == ["main"] {
        path.pop();
    }
    path
}

fn read(file: &File<'_>, path: &Path) -> Module {
    let mut module = Module { file: file.path.to_owned(), ..Module::default() };
    // What does not parse is the size rule's business.
    let Ok(parsed) = file.parsed() else { return module };
    let mut reader = Reader { path: path.clone(), module: &mut module };
    reader.visit_file(parsed);
    module
}

struct Reader<'m> {
    path: Path,
    module: &'m mut Module,
}

impl Reader<'_> {
    /// The path from the root of the crate on; none of another crate's, or of a local name.
    fn absolute(&self, segments: &[String]) -> Option<Path> {
        let mut path = self.path.clone();
        let mut rest = segments;
        match segments.first()?.as_str() {
            "crate" => path.clear(),
            "self" => {}
            "super" => {}
            first if self.module.declares.contains(first) => {
                path.extend(segments.iter().cloned());
                return Some(path);
            }
            _ => return None,
        }
        if segments[0] != "super" {
            rest = &rest[1..];
        }
        while rest.first().is_some_and(|segment| segment == "super") {
            path.pop()?;
            rest = &rest[1..];
        }
        path.extend(rest.iter().cloned());
        Some(path)
    }

    fn import(&mut self, tree: &UseTree, before: &mut Path, is_signpost: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, is_signpost);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.import(item, before, is_signpost));
            }
            UseTree::Name(name) => self.imported(&name.ident, &name.ident, before, is_signpost),
            UseTree::Rename(both) => self.imported(&both.ident, &both.rename, before, is_signpost),
            UseTree::Glob(_) => {
                let path = self.absolute(before);
                self.module.names.extend(path.filter(|_| !is_signpost));
            }
        }
    }

    fn imported(
        &mut self,
        name: &syn::Ident,
        known_as: &syn::Ident,
        before: &Path,
        is_signpost: bool,
    ) {
        let mut segments = before.clone();
        if name != "self" {
            segments.push(name.to_string());
        }
        let Some(path) = self.absolute(&segments) else { return };
        if is_signpost {
            self.module.signposts.insert(known_as.to_string(), path);
        } else {
            self.module.names.insert(path);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_for_tests = |list: &syn::MetaList| list.tokens.to_string() == "test";
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(is_for_tests)
    })
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_file(&mut self, file: &'a syn::File) {
        for item in &file.items {
            if let Item::Mod(module) = item {
                self.module.declares.insert(module.ident.to_string());
            }
        }
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let is_signpost = !matches!(item.vis, Visibility::Inherited);
        self.import(&item.tree, &mut Vec::new(), is_signpost);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments: Path = path.segments.iter().map(|it| it.ident.to_string()).collect();
            let found = self.absolute(&segments);
            self.module.names.extend(found);
        }
        visit::visit_path(self, path);
    }
}

/// The module that a path leads into, over signposts.
fn target(modules: &Modules, path: &Path) -> Option<Path> {
    let mut path = path.clone();
    for _ in 0..8 {
        let length =
            (0..=path.len()).rev().find(|length| modules.contains_key(&path[..*length]))?;
        let (found, rest) = path.split_at(length);
        let signpost = rest.first().and_then(|name| modules[found].signposts.get(name));
        let Some(points) = signpost else { return Some(found.to_vec()) };
        path = [points, &rest[1..]].concat();
    }
    None
}

fn circles_of(modules: &Modules) -> Vec<Complaint> {
    let needs: BTreeMap<&Path, BTreeSet<Path>> = modules
        .iter()
        .map(|(path, module)| {
            let targets = module.names.iter().filter_map(|name| target(modules, name));
            (path, targets.filter(|target| !is_family(path, target)).collect())
        })
        .collect();
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        needs.keys().map(|path| (*path, reached_from(path, &needs))).collect();
    let mut complaints = Vec::new();
    for (path, needed) in &needs {
        let back =
            needed.iter().filter(|other| reached.get(other).is_some_and(|r| r.contains(path)));
        let names: Vec<String> = back.map(|other| other.join("::")).collect();
        if !names.is_empty() {
            let what = format!("needs {}, which need it again", names.join(", "));
            complaints.push(complaint(&modules[*path].file, what));
        }
    }
    complaints
}

/// Whether one module lies inside of the other: they are one thing, in several files.
fn is_family(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn reached_from<'m>(
    start: &Path,
    needs: &'m BTreeMap<&'m Path, BTreeSet<Path>>,
) -> BTreeSet<&'m Path> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Path> = needs[start].iter().collect();
    while let Some(path) = next.pop() {
        if reached.insert(path) {
            next.extend(needs.get(path).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_accepts, assert_complains};

    const ROOT: (&str, &str) = ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use b::B;\n");

    #[test]
    fn modules_that_need_each_other_are_seen() {
        let b = ("crates/a/src/b.rs", "use crate::c::C;\npub struct B(C);\n");
        let c = ("crates/a/src/c.rs", "pub struct C;\nfn f() { crate::b::g() }\n");
        assert_complains(circles, &[ROOT, b, c], "needs c, which need it again");
        let c = ("crates/a/src/c.rs", "use super::B;\npub struct C(Box<B>);\n");
        assert_complains(circles, &[ROOT, b, c], "needs b, which need it again");
    }

    #[test]
    fn a_module_and_what_lies_inside_are_one() {
        let b = ("crates/a/src/b.rs", "mod d;\nuse d::D;\npub struct B(D);\n");
        let d = ("crates/a/src/b/d.rs", "use super::B;\npub struct D(Box<B>);\n");
        assert_accepts(circles, &[ROOT, b, d, ("crates/a/src/c.rs", "")]);
        let c = ("crates/a/src/c.rs", "use crate::b::B;\n");
        let d = ("crates/a/src/b/d.rs", "use crate::c::C;\n");
        assert_accepts(circles, &[ROOT, b, d, c]);
    }

    #[test]
    fn tests_and_signposts_need_nothing() {
        let b = ("crates/a/src/b.rs", "use crate::c::C;\npub struct B(C);\n");
        let c = (
            "crates/a/src/c.rs",
            "pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n",
        );
        assert_accepts(circles, &[ROOT, b, c]);
        let root = ("crates/a/src/lib.rs", "mod b;\npub use b::B;\n");
        assert_accepts(
            circles,
            &[root, ("crates/a/src/b.rs", "use super::B as _;\npub struct B;\n")],
        );
    }

    #[test]
    fn a_file_that_no_module_declares_is_seen() {
        let files = [ROOT, ("crates/a/src/b.rs", ""), ("crates/a/src/c.rs", "")];
        assert_accepts(unused, &files);
        let lost = ("crates/a/src/d.rs", "");
        assert_complains(unused, &[files[0], files[1], files[2], lost], "no module declares");
    }
}
