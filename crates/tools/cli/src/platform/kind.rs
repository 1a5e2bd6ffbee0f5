//! The runtime of a file, for a function deployed without `--kind`.

use std::fs::File;
use std::path::Path;

use zip::ZipArchive;

const PYTHON: &str = "python:default";
const NODEJS: &str = "nodejs:default";
const BLACKBOX: &str = "blackbox";

/// The kind of a file, by its extension; of an archive or a directory, by the files at its top.
pub(super) fn from_file(file: &Path) -> Option<&'static str> {
    if file.is_dir() {
        return by_names(|name| file.join(name).is_file());
    }
    match file.extension()?.to_str()? {
        "py" => Some(PYTHON),
        "js" | "mjs" | "cjs" => Some(NODEJS),
        // An archive that cannot be read fails later, when it is sent.
        "zip" => Some(in_archive(file).unwrap_or(PYTHON)),
        _ => None,
    }
}

fn in_archive(file: &Path) -> Option<&'static str> {
    let archive = ZipArchive::new(File::open(file).ok()?).ok()?;
    by_names(|name| archive.index_for_name(name).is_some())
}

fn by_names(has: impl Fn(&str) -> bool) -> Option<&'static str> {
    if ["__main__.py", "main.py", "handler.py"].into_iter().any(&has) {
        Some(PYTHON)
    } else if ["package.json", "index.js"].into_iter().any(&has) {
        Some(NODEJS)
    } else {
        has("exec").then_some(BLACKBOX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    #[test]
    fn extensions_and_files_of_archives_decide_the_runtime() {
        for (name, kind) in [
            ("a/hello.py", Some(PYTHON)),
            ("hello.js", Some(NODEJS)),
            ("hello.mjs", Some(NODEJS)),
            ("hello", None),
            ("hello.txt", None),
            ("/nowhere/hello.zip", Some(PYTHON)),
        ] {
            assert_eq!(from_file(Path::new(name)), kind, "{name}");
        }
        let place = std::env::temp_dir().join(format!("farfork-kind-{}.zip", std::process::id()));
        for (names, kind) in [
            (&["__main__.py", "index.js"][..], PYTHON),
            (&["package.json", "lib/a.js"], NODEJS),
            (&["index.js"], NODEJS),
            (&["exec", "data"], BLACKBOX),
            (&["lib/index.js", "lib/exec"], PYTHON),
        ] {
            let mut archive = ZipWriter::new(File::create(&place).unwrap());
            for name in names {
                archive.start_file(*name, SimpleFileOptions::default()).unwrap();
                archive.write_all(b"x").unwrap();
            }
            archive.finish().unwrap();
            assert_eq!(from_file(&place), Some(kind), "{names:?}");
        }
        std::fs::remove_file(&place).unwrap();
    }
}
