//! `farfork deploy`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use farfork_types::LocalShare;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::parameters::{Parameters, listed, pairs};
use super::remote::{Remote, Request, path, web_path};
use super::{kind, package};
use crate::output::print_json;
use crate::{CommandResult, size, usage_error};

const MIB: u64 = 1 << 20;

/// The function to deploy.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A Python or JavaScript file with main(args); a directory or zip archive with __main__.py,
    /// index.js or package.json at its top; or, with --kind blackbox, a program with OpenWhisk's action
    /// interface. The packages in a requirements.txt at the top are sent with a Python function.
    file: PathBuf,
    #[command(flatten)]
    remote: Remote,
    /// Name of the function. Default: the name of the file.
    #[arg(long)]
    name: Option<String>,
    /// Runtime, e.g. python:3.11, nodejs:20 or blackbox. Default: by the extension of the file, or the
    /// contents of the archive.
    #[arg(long)]
    kind: Option<String>,
    /// Python whose pip installs packages. It needs the platform's version if a package has compiled
    /// code.
    #[arg(long, value_name = "PATH", env = "FARFORK_PYTHON", default_value = "python3")]
    python: PathBuf,
    /// Ignore requirements.txt.
    #[arg(long)]
    no_packages: bool,
    /// Function to call in the code. Default: main.
    #[arg(long, value_name = "FUNCTION")]
    main: Option<String>,
    /// Memory limit of an instance, in whole MiB, e.g. 256M.
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Time limit of a call, in milliseconds.
    #[arg(short, long = "timeout-ms", visible_alias = "timeout", value_name = "MS")]
    timeout_ms: Option<u64>,
    /// Objective for the P99 of latency, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = objective)]
    slo_p99_ms: Option<f64>,
    /// Objective for the mean latency, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = objective)]
    slo_mean_ms: Option<f64>,
    /// By how much calls may be slower than with all memory of an instance near, in percent. Instances then start with a
    /// share of the image near, which the policy of shares chooses (by default one that learns from calls). Default:
    /// unchanged; without one, shares are not decided.
    #[arg(long, value_name = "PERCENT", value_parser = tolerance)]
    latency_tolerance: Option<f64>,
    /// Share of the image's memory that is near in clones of tiering mow, in thousandths, instead of one that a policy of
    /// shares chooses. It replaces a latency tolerance, and is replaced by one. Default: unchanged.
    #[arg(long, value_name = "PERMILLE", conflicts_with = "latency_tolerance")]
    local_share: Option<LocalShare>,
    /// Region for objects of the function's namespace (farfork region create NAMESPACE/NAME --pool DIR). Instances
    /// find its path in the variable FARFORK_REGION. Empty: none. Default: unchanged.
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Let plain HTTP requests call the function without a key. They cannot override the parameters
    /// that the function was deployed with. --web is --web true. Default: unchanged.
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, default_missing_value = "true")]
    web: Option<Web>,
    /// Annotation. VALUE is JSON, or else a string. May be repeated.
    #[arg(short, long = "annotation", num_args = 2, value_names = ["KEY", "VALUE"], allow_hyphen_values = true)]
    annotation: Vec<String>,
    #[command(flatten)]
    parameters: Parameters,
    /// Print one JSON document: the deployed function.
    #[arg(long)]
    json: bool,
}

/// How plain HTTP calls a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Web {
    /// fields of query and body are parameters
    #[value(alias = "yes")]
    True,
    /// query and body are passed unparsed
    Raw,
    /// only calls with a key
    #[value(alias = "no")]
    False,
}

impl Web {
    /// The annotations of the function.
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
        let message = "cannot derive name and runtime of the function from the file: use --name and \
                       --kind";
        return Ok(usage_error(message));
    };
    if args.memory.is_some_and(|bytes| bytes % MIB != 0 || bytes == 0) {
        return Ok(usage_error("invalid --memory (expected whole MiB, e.g. 256M)"));
    }
    let place = path("actions", &name);
    let (code, installed_for) = code(args, &kind)?;
    let mut document = document(args, &kind, code)?;
    if let Some(annotations) = annotations(args, &place)? {
        document.insert("annotations".to_owned(), annotations.into());
    }
    let mut deployed = args
        .remote
        .send(Request {
            method: Method::PUT,
            path: &format!("{place}?overwrite=true"),
            body: Some(Value::Object(document)),
            doing: &format!("deploying {name}"),
        })?
        .success()?;
    if let Some(version) = installed_for {
        warn_of_other_version(&version, &deployed);
    }
    if args.json {
        // The caller has the code already.
        deployed["exec"].as_object_mut().map(|exec| exec.remove("code"));
        print_json(&deployed)?;
    } else {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [namespace, name, version] =
            ["namespace", "name", "version"].map(|key| text(&deployed[key]));
        println!("{namespace}/{name} {version} {}", text(&deployed["exec"]["kind"]));
        if has(&deployed, "web-export") {
            println!("{}", args.remote.url(&web_path(&namespace, &name)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns if packages were installed for another version of Python than the platform's.
fn warn_of_other_version(version: &str, deployed: &Value) {
    let kind = deployed["exec"]["kind"].as_str().unwrap_or_default();
    if kind.strip_prefix("python:").is_some_and(|runs| runs != version) {
        eprintln!(
            "farfork: packages were installed for Python {version}, but the function runs as {kind}"
        );
    }
}

/// Whether an annotation of a function is true.
fn has(deployed: &Value, key: &str) -> bool {
    let all = deployed["annotations"].as_array().into_iter().flatten();
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
    args.kind.clone().or_else(|| kind::from_file(&args.file).map(str::to_owned))
}

/// Annotations of which a function has one at most: the last one that was given.
const SHARES: [&str; 2] = ["latency-tolerance", "local-share"];

/// The new annotations of the function; `None` if they do not change. Annotations that are not given
/// keep their values.
fn annotations(args: &Args, place: &str) -> Result<Option<Vec<Value>>, Box<dyn Error>> {
    let objectives = [
        ("slo-p99-ms", args.slo_p99_ms),
        ("slo-mean-ms", args.slo_mean_ms),
        (SHARES[0], args.latency_tolerance),
    ];
    let objectives =
        objectives.into_iter().filter_map(|(key, ms)| Some((key.to_owned(), json!(ms?))));
    let web = args.web.map(Web::annotations).into_iter().flatten();
    let share = args.local_share.map(|share| (SHARES[1].to_owned(), json!(share.permille())));
    let region = args.region.iter().map(|name| ("region".to_owned(), json!(name)));
    let given: Map<String, Value> =
        web.chain(pairs(&args.annotation)).chain(objectives).chain(share).chain(region).collect();
    if given.is_empty() {
        return Ok(None);
    }
    let before = args.remote.get(&format!("{place}?code=false"), "looking for the function")?;
    let mut all = Vec::new();
    if before.status != 404 {
        let kept = before.success()?["annotations"].take();
        let is_replaced = |key: &str| {
            let is_given = |other: &str| given.contains_key(other);
            is_given(key) || SHARES.contains(&key) && SHARES.into_iter().any(is_given)
        };
        let is_kept = |one: &Value| one["key"].as_str().is_some_and(|key| !is_replaced(key));
        all.extend(kept.as_array().into_iter().flatten().filter(|one| is_kept(one)).cloned());
    }
    all.extend(listed(given));
    Ok(Some(all))
}

/// The request's body. Settings that it does not contain stay as they are.
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

/// The code as the platform takes it (text, or an archive or program in base64), and the version of
/// Python that its packages are for.
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
        // An archive can be valid UTF-8.
        Ok(text) if !package::is_archive(text.as_bytes()) => text,
        Ok(archive) => STANDARD.encode(archive),
        Err(archive) => STANDARD.encode(archive.into_bytes()),
    };
    Ok((code, installed_for))
}

fn tolerance(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| {
        format!("invalid tolerance '{text}' (expected percent from 0 to 1000, e.g. 5)")
    })
}

fn objective(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms > 0.0);
    ms.ok_or_else(|| format!("invalid time '{text}' (expected milliseconds, e.g. 12.5)"))
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
    fn the_extension_of_a_file_decides_its_runtime() {
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
    fn settings_not_given_are_not_sent() {
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
    fn web_sets_annotations() {
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
        let one = json!({"annotations": [{"key": "a", "value": true}, {"key": "b", "value": 1}]});
        assert_eq!((has(&one, "a"), has(&one, "b"), has(&json!({}), "a")), (true, false, false));
    }

    #[test]
    fn an_objective_is_a_positive_time() {
        assert_eq!(objective("2.5"), Ok(2.5));
        for bad in ["0", "-1", "inf", "NaN", "fast", ""] {
            assert!(objective(bad).is_err(), "{bad}");
        }
    }
}
