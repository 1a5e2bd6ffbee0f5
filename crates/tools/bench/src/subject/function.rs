//! The sample functions, under the function runtime.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Forking, LISTEN_FD, Subject, WARM_CALLS};
use crate::error::{BenchError, io};
use crate::protocol::{Example, Function};
use crate::{Options, progress};

/// Footprints in megabytes, rough values for planning memory. The exact size is measured.
const FOOTPRINTS: [(&str, u64); 13] = [
    ("hello", 12),
    ("float", 12),
    ("linpack", 40),
    ("json", 30),
    ("pyaes", 20),
    ("chameleon", 30),
    ("html", 45),
    ("cnn", 130),
    ("rnn", 80),
    ("bfs", 140),
    ("bert", 850),
    ("heat", 60),
    ("embed", 350),
];
/// The functions of CXLfork's Table 1, one that writes all of its data, and one more model.
const OF_THE_PAPERS: [&str; 12] = [
    "float",
    "linpack",
    "json",
    "pyaes",
    "chameleon",
    "html",
    "cnn",
    "rnn",
    "bfs",
    "bert",
    "heat",
    "embed",
];
/// Environment variables for the number of threads, of libraries and functions.
const THREADS: [&str; 4] = [
    "OPENBLAS_NUM_THREADS",
    "FARFORK_CNN_THREADS",
    "FARFORK_BERT_THREADS",
    "FARFORK_EMBED_THREADS",
];

impl Subject {
    /// A function below `root` that uses `threads`, with `examples` different inputs. A fresh process is
    /// started to get the expected answers.
    pub fn function(
        root: &Path,
        name: &str,
        threads: usize,
        examples: u64,
    ) -> Result<Subject, BenchError> {
        let path = |relative: &str| root.join(relative).display().to_string();
        let (python, function) = (path(".venv/bin/python"), path(&format!("functions/{name}")));
        let mut environment = computing_in(threads);
        environment.push(("ORT_DISABLE_TELEMETRY", "1".to_owned()));
        let examples = self::examples(root, name, threads, examples.max(WARM_CALLS))?;
        let fd = LISTEN_FD.to_string();
        let module = ["-m", "farfork.runtime"].map(str::to_owned);
        let serve = [function.clone(), "--listen-fd".to_owned(), fd.clone()];
        let warm: Value =
            examples.iter().take(WARM_CALLS as usize).map(|e| &e.args).cloned().collect();
        let server = path("bench/programs/fork_server.py");
        let forker = [python.clone(), server, function, fd, warm.to_string()];
        Ok(Subject {
            name: name.to_owned(),
            megabytes: FOOTPRINTS.iter().find(|(known, _)| *known == name).map_or(100, |(_, m)| *m),
            protocol: Box::new(Function::new(examples)),
            forking: match threads {
                1 => Forking::Server(forker.into()),
                _ => Forking::Impossible("a fork drops the threads that the function computes in"),
            },
            prepare: Some(Function::operation("prepare")),
            arguments: [python].into_iter().chain(module).chain(serve).collect(),
            environment,
        })
    }

    /// The selected functions of the papers, with `examples` inputs each. They use one thread, because a
    /// fork has only one. `others` are further subjects of the benchmark, which may be selected, too.
    pub fn functions(
        root: &Path,
        options: &Options,
        examples: u64,
        others: &[&str],
    ) -> Result<Vec<Subject>, BenchError> {
        options.check(&[&OF_THE_PAPERS[..], others].concat())?;
        let wanted = OF_THE_PAPERS.iter().filter(|name| options.wants(name));
        wanted
            .map(|name| {
                progress(&format!("getting answers of a fresh process of {name}"));
                Subject::function(root, name, 1, examples)
            })
            .collect()
    }

    /// The sample function `embed`, which uses `threads`.
    pub fn embed(root: &Path, threads: usize) -> Result<Subject, BenchError> {
        let subject = Subject::function(root, "embed", threads, EMBED_TEXTS)?;
        Ok(Subject { name: format!("embed-{threads}t"), ..subject })
    }
}

/// Different inputs of `embed`.
const EMBED_TEXTS: u64 = 64;

/// Environment of a process that computes in `threads`.
pub fn computing_in(threads: usize) -> Vec<(&'static str, String)> {
    THREADS.map(|variable| (variable, threads.to_string())).into()
}

/// The first calls of a function below `root`, answered by a fresh process that uses `threads`.
pub fn examples(
    root: &Path,
    name: &str,
    threads: usize,
    count: u64,
) -> Result<Vec<Example>, BenchError> {
    let (python, function) = (root.join(".venv/bin/python"), root.join("functions").join(name));
    let mut command = Command::new(&python);
    command.arg(root.join("bench/programs/examples.py")).arg(&function).arg(count.to_string());
    command.envs(computing_in(threads)).env("ORT_DISABLE_TELEMETRY", "1");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(io("start", python))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let examples: Result<Vec<Example>, _> = text.lines().map(serde_json::from_str).collect();
    let wrong = |reason: String| BenchError::Answer { case: format!("{name}/fresh"), reason };
    let examples = examples.map_err(|error| wrong(format!("invalid JSON: {error}")))?;
    if output.status.success() && examples.len() as u64 == count {
        return Ok(examples);
    }
    Err(wrong(format!("it answered {} of {count} calls", examples.len())))
}
