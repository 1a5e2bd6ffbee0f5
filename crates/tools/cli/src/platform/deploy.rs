//! `farfork deploy`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::parameters::{Parameters, listed, pairs};
use super::remote::{Question, Remote, path, web_path};
use super::{kind, package};
use crate::output::print_json;
use crate::{CommandResult, size, usage_error};

const MIB: u64 = 1 << 20;

/// What to deploy.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file in Python or JavaScript with main(args), a directory or zip archive with __main__.py, index.js or
    /// package.json on top, or with --kind blackbox a program that speaks OpenWhisk's action interface. With a
    /// function in Python are sent the packages that a requirements.txt on top names.
    file: PathBuf,
    #[command(flatten)]
    remote: Remote,
    /// What the function is called; the file's name without it.
    #[arg(long)]
    name: Option<String>,
    /// Runtime, as python:3.11, nodejs:20 or blackbox; without it, what the end of the file's name says, and
    /// what is in an archive.
    #[arg(long)]
    kind: Option<String>,
    /// Python whose pip installs packages; of the platform's version, if any of them is not in Python alone.
    #[arg(long, value_name = "PATH", env = "FARFORK_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Send no packages, though a requirements.txt names some.
    #[arg(long)]
    no_packages: bool,
    /// What is called in it, if that is not main.
    #[arg(long, value_name = "FUNCTION")]
    main: Option<String>,
    /// Memory that an instance may take, in whole MiB, as 256M.
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// How long a call may take, in milliseconds.
    #[arg(short, long = "timeout-ms", visible_alias = "timeout", value_name = "MS")]
    timeout_ms: Option<u64>,
    /// The 99th percentile of latency that the function should keep to, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = objective)]
    slo_p99_ms: Option<f64>,
    /// The mean latency that the function should keep to, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = objective)]
    slo_mean_ms: Option<f64>,
    /// Whether plain HTTP calls the function without a key; as it is if this is not said. Only --web is
    /// --web true; then no request overrides the function's own parameters.
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, default_missing_value = "true")]
    web: Option<Web>,
    /// Annotation; VALUE is JSON, or else a text. May be given again.
    #[arg(short, long = "annotation", num_args = 2, value_names = ["KEY", "VALUE"], allow_hyphen_values = true)]
    annotation: Vec<String>,
    #[command(flatten)]
    parameters: Parameters,
    /// Print one JSON document: the function as it is deployed.
    #[arg(long)]
    json: bool,
}

/// How plain HTTP calls a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Web {
    /// Fields of query and body are parameters.
    #[value(alias = "yes")]
    True,
    /// Query and body are parameters as they are.
    Raw,
    /// Not at all.
    #[value(alias = "no")]
    False,
}

impl Web {
    /// The annotations that say so.
    fn annotations(self) -> [(String, Value); 3] {
        let is_open = self != Web::False;
        let is_raw = self == Web::Raw;
        [("web-export", is_open), ("raw-http", is_raw), ("final", is_open)]
            .map(|(key, is_set)| (key.to_owned(), is_set.into()))
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    let (Some(name), Some(kind)) = (name(args), kind(args)) else {
        let words = "the file's name tells neither what the function is called nor its runtime: \
                     give them by --name and --kind";
        return Ok(usage_error(words));
    };
    if args.memory.is_some_and(|bytes| bytes % MIB != 0 || bytes == 0) {
        return Ok(usage_error("--memory is in whole MiB: write 256M, not 256"));
    }
    let place = path("actions", &name);
    let (code, installed_for) = code(args, &kind)?;
    let mut document = document(args, &kind, code)?;
    if let Some(annotations) = annotations(args, &place)? {
        document.insert("annotations".to_owned(), annotations.into());
    }
    let mut made = args
        .remote
        .ask(Question {
            method: Method::PUT,
            path: &format!("{place}?overwrite=true"),
            body: Some(Value::Object(document)),
            doing: &format!("deploying {name}"),
        })?
        .good()?;
    if let Some(version) = installed_for {
        warn_of_other(&version, &made);
    }
    if args.json {
        // Whoever deploys has it.
        made["exec"].as_object_mut().map(|exec| exec.remove("code"));
        print_json(&made)?;
    } else {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [namespace, name, version] =
            ["namespace", "name", "version"].map(|key| text(&made[key]));
        println!("{namespace}/{name} {version} {}", text(&made["exec"]["kind"]));
        if has(&made, "web-export") {
            println!("{}", args.remote.url(&web_path(&namespace, &name)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns if packages were installed for another version of Python than the platform's.
fn warn_of_other(version: &str, made: &Value) {
    let kind = made["exec"]["kind"].as_str().unwrap_or_default();
    if kind.strip_prefix("python:").is_some_and(|runs| runs != version) {
        eprintln!("farfork: packages are those for Python {version}, and it runs as {kind}");
    }
}

/// Whether an annotation of a function is true.
fn has(made: &Value, key: &str) -> bool {
    let all = made["annotations"].as_array().into_iter().flatten();
    all.filter(|one| one["key"] == key).any(|one| one["value"] == true)
}

fn name(args: &Args) -> Option<String> {
    let named = || match args.file.is_dir() {
        true => Some(fs::canonicalize(&args.file).ok()?.file_name()?.to_str()?.to_owned()),
        false => Some(args.file.file_stem()?.to_str()?.to_owned()),
    };
    args.name.clone().or_else(named)
}

fn kind(args: &Args) -> Option<String> {
    args.kind.clone().or_else(|| kind::of(&args.file).map(str::to_owned))
}

/// What is said about the function from here on; nothing if that stays as it is. What it said before
/// and nobody changes now is kept.
fn annotations(args: &Args, place: &str) -> Result<Option<Vec<Value>>, Box<dyn Error>> {
    let objectives = [("slo-p99-ms", args.slo_p99_ms), ("slo-mean-ms", args.slo_mean_ms)];
    let objectives =
        objectives.into_iter().filter_map(|(key, ms)| Some((key.to_owned(), json!(ms?))));
    let web = args.web.map(Web::annotations).into_iter().flatten();
    let said: Map<String, Value> = web.chain(pairs(&args.annotation)).chain(objectives).collect();
    if said.is_empty() {
        return Ok(None);
    }
    let before = args.remote.get(&format!("{place}?code=false"), "looking for the function")?;
    let mut all = Vec::new();
    if before.status != 404 {
        let kept = before.good()?["annotations"].take();
        let is_kept = |one: &Value| one["key"].as_str().is_some_and(|key| !said.contains_key(key));
        all.extend(kept.as_array().into_iter().flatten().filter(|one| is_kept(one)).cloned());
    }
    all.extend(listed(said));
    Ok(Some(all))
}

/// What is not said here stays as it is.
fn document(args: &Args, kind: &str, code: String) -> Result<Map<String, Value>, Box<dyn Error>> {
    let mut exec = json!({ "kind": kind, "code": code });
    if let Some(main) = &args.main {
        exec["main"] = main.as_str().into();
    }
    let limits = [("memory", args.memory.map(|bytes| bytes / MIB)), ("timeout", args.timeout_ms)];
    let limits =
        limits.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into())));
    let mut document = Map::from_iter([
        ("exec".to_owned(), exec),
        ("limits".to_owned(), Value::Object(limits.collect())),
    ]);
    let parameters = args.parameters.all()?;
    if !parameters.is_empty() {
        document.insert("parameters".to_owned(), listed(parameters).into());
    }
    Ok(document)
}

/// The code as the platform takes it: text, or an archive or program in base64; and for which version of
/// Python there are packages in it.
fn code(args: &Args, kind: &str) -> Result<(String, Option<String>), Box<dyn Error>> {
    let file = &args.file;
    let mut bytes = match file.is_dir() {
        true => package::packed(file)?,
        false => fs::read(file)
            .map_err(|error| format!("cannot read {}: {}", file.display(), words::of(&error)))?,
    };
    let mut installed_for = None;
    if package::is_archive(&bytes) && kind.starts_with("python") && !args.no_packages {
        (bytes, installed_for) = package::with_requirements(bytes, file, &args.python)?;
    }
    let code = match String::from_utf8(bytes) {
        // An archive may happen to be a text.
        Ok(text) if !package::is_archive(text.as_bytes()) => text,
        Ok(archive) => STANDARD.encode(archive),
        Err(archive) => STANDARD.encode(archive.into_bytes()),
    };
    Ok((code, installed_for))
}

fn objective(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
    ms.ok_or_else(|| format!("'{text}' is no time in milliseconds, as 12.5 is"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Deploy {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &[&str]) -> Args {
        Deploy::try_parse_from([&["deploy"], words].concat())
            .unwrap_or_else(|_| panic!("{words:?}"))
            .args
    }

    #[test]
    fn the_end_of_a_files_name_tells_its_runtime() {
        for (file, kind_of) in [
            ("a/hello.py", Some("python:default")),
            ("hello.js", Some("nodejs:default")),
            ("hello", None),
        ] {
            let args = parsed(&[file]);
            assert_eq!((name(&args).as_deref(), kind(&args).as_deref()), (Some("hello"), kind_of));
        }
        let args = parsed(&["hello.txt", "--kind", "blackbox", "--name", "x"]);
        assert_eq!((name(&args), kind(&args)), (Some("x".into()), Some("blackbox".into())));
    }

    #[test]
    fn what_is_not_said_is_not_sent() {
        let file = std::env::temp_dir().join(format!("farfork-deploy-{}.py", std::process::id()));
        fs::write(&file, "def main(a): return a").unwrap();
        let path = file.to_str().unwrap();
        let sent = |words: &[&str]| {
            let args = parsed(&[&[path], words].concat());
            let (code, _) = code(&args, "blackbox").unwrap();
            Value::Object(document(&args, "python:3", code).unwrap())
        };
        let exec = json!({"kind": "python:3", "code": "def main(a): return a"});
        assert_eq!(sent(&[]), json!({"exec": exec, "limits": {}}));
        let with = sent(&["--memory", "1G", "--timeout", "5", "-p", "n", "-1", "--main", "go"]);
        assert_eq!(with["limits"], json!({"memory": 1024, "timeout": 5}));
        assert_eq!(with["parameters"], json!([{"key": "n", "value": -1}]));
        assert_eq!(with["exec"]["main"], "go");
        fs::write(&file, b"PK\x03\x04 ascii").unwrap();
        assert_eq!(sent(&[])["exec"]["code"], "UEsDBCBhc2NpaQ==");
        fs::write(&file, b"\x7fELF\xff").unwrap();
        assert_eq!(sent(&[])["exec"]["code"], "f0VMRv8=");
        fs::remove_file(&file).unwrap();
        let failed = code(&parsed(&[path]), "python:3").unwrap_err().to_string();
        assert!(failed.starts_with("cannot read "), "{failed}");
    }

    #[test]
    fn a_function_is_opened_by_annotations() {
        let of = |words: &[&str]| {
            let web = parsed(&[&["a.py"], words].concat()).web;
            web.map(|web| Value::Object(web.annotations().into_iter().collect()))
        };
        let opened = |export: bool, raw: bool| {
            Some(json!({"web-export": export, "raw-http": raw, "final": export}))
        };
        assert_eq!(of(&[]), None);
        for words in [&["--web"][..], &["--web", "true"], &["--web", "yes"], &["--web=true"]] {
            assert_eq!(of(words), opened(true, false), "{words:?}");
        }
        assert_eq!(of(&["--web", "raw"]), opened(true, true));
        assert_eq!(of(&["--web", "no"]), opened(false, false));
        assert!(Deploy::try_parse_from(["deploy", "a.py", "--web", "maybe"]).is_err());
        let made = json!({"annotations": [{"key": "a", "value": true}, {"key": "b", "value": 1}]});
        assert_eq!((has(&made, "a"), has(&made, "b"), has(&json!({}), "a")), (true, false, false));
    }

    #[test]
    fn an_objective_is_a_time() {
        assert_eq!(objective("2.5"), Ok(2.5));
        for bad in ["0", "-1", "inf", "NaN", "fast", ""] {
            assert!(objective(bad).is_err(), "{bad}");
        }
    }
}
