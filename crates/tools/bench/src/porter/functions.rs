//! The functions of CXLfork's Table 1.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::slow_pool::SlowPool;
use super::systems::StartMode;
use crate::error::{BenchError, io};
use crate::progress;
use crate::protocol::Example;
use crate::subject::{computing_in, examples};

/// The server of a function that is a program of its own.
const SERVER: &str = "bench/programs/in_container.py";
/// Different calls of each function.
const EXAMPLES: u64 = 16;

/// Names, memory limit of an instance in megabytes, and objective for the P99 in milliseconds: five
/// warm calls and the start of a clone.
const FUNCTIONS: [(&str, u64, u64); 10] = [
    ("float", 128, 60),
    ("linpack", 128, 60),
    ("json", 128, 140),
    ("pyaes", 128, 100),
    ("chameleon", 128, 60),
    ("html", 128, 200),
    ("cnn", 384, 200),
    ("rnn", 256, 200),
    ("bfs", 384, 900),
    ("bert", 900, 700),
];

/// The names of all functions.
pub fn names() -> [&'static str; 10] {
    FUNCTIONS.map(|(name, ..)| name)
}

/// All functions.
pub struct Functions {
    all: BTreeMap<&'static str, Function>,
}

/// One function.
pub struct Function {
    /// Code for the runtime's own server.
    code: Value,
    /// A program that serves that code itself.
    program: Value,
    examples: Vec<Example>,
}

impl Function {
    /// The action to deploy, so that instances start in this mode.
    pub fn action(&self, start_mode: StartMode) -> &Value {
        match start_mode {
            StartMode::Image | StartMode::BaseImage => &self.code,
            StartMode::Program => &self.program,
        }
    }
}

impl Functions {
    /// Reads the functions below `root`, and gets the expected answers from a fresh process of each.
    /// `slow` adds the delays of a slow pool.
    pub fn load(root: &Path, slow: Option<&SlowPool>) -> Result<Functions, BenchError> {
        let server = root.join(SERVER);
        let server = fs::read_to_string(&server).map_err(io("read", &server))?;
        let load = |(name, memory, objective): (&'static str, u64, u64)| {
            progress(&format!("getting answers of a fresh process of {name}"));
            let path = root.join("functions").join(name).join("main.py");
            let code = fs::read_to_string(&path).map_err(io("read", path))?;
            let code = slow.map_or(code.clone(), |slow| slow.slowed(name, &code));
            let code = with_environment(root, &code);
            let action = |kind: &str, code: &str| {
                json!({
                    "exec": {"kind": kind, "code": code},
                    "limits": {"memory": memory, "timeout": 60_000},
                    "annotations": [{"key": "slo-p99-ms", "value": objective}],
                })
            };
            let program = action("blackbox", &program(root, &server, &code));
            let code = action("python:default", &code);
            let examples = examples(root, name, 1, EXAMPLES)?;
            Ok((name, Function { code, program, examples }))
        };
        let all = FUNCTIONS.into_iter().map(load).collect::<Result<_, BenchError>>()?;
        Ok(Functions { all })
    }

    /// All functions, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Function)> {
        self.all.iter().map(|(name, function)| (*name, function))
    }

    /// Input and expected answer of call number `number` of a function.
    pub fn example(&self, name: &str, number: usize) -> Option<&Example> {
        let examples = &self.all.get(name)?.examples;
        examples.get(number % examples.len().max(1))
    }
}

/// The code, preceded by lines that set the environment: directory of the models, and one thread.
/// Functions of a platform do not inherit the environment of this process.
fn with_environment(root: &Path, code: &str) -> String {
    let models = ("FARFORK_MODELS", root.join("build/models").display().to_string());
    let variables: BTreeMap<&str, String> = computing_in(1).into_iter().chain([models]).collect();
    // A dictionary of strings has the same syntax in Python as in JSON.
    let variables = json!(variables);
    format!("import os\nos.environ.update({variables})\n{code}")
}

/// A program that serves the code: a script for the platform's interpreter.
fn program(root: &Path, server: &str, code: &str) -> String {
    let python = root.join(".venv/bin/python");
    // A string has the same syntax in Python as in JSON.
    format!("#!{}\n{server}\n\n_serve({})\n", python.display(), json!(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_interpreter_and_serves_by_the_last_line() {
        let code = "def main(args):\n    return {\"a\": 'é'}\n";
        let program = program(Path::new("/opt/f"), "def _serve(code): ...", code);
        let lines: Vec<&str> = program.lines().collect();
        let last = r#"_serve("def main(args):\n    return {\"a\": 'é'}\n")"#;
        assert_eq!(lines, ["#!/opt/f/.venv/bin/python", "def _serve(code): ...", "", last]);
    }

    #[test]
    fn code_gets_its_environment_before_its_own_lines() {
        let code = with_environment(Path::new("/a \"b\""), "\"\"\"Says.\"\"\"\nimport x\n");
        let mut lines = code.lines();
        assert_eq!(lines.next(), Some("import os"));
        let variables = lines.next().unwrap();
        assert!(variables.contains(r#""FARFORK_MODELS":"/a \"b\"/build/models""#), "{variables}");
        assert!(variables.contains(r#""FARFORK_BERT_THREADS":"1""#), "{variables}");
        assert_eq!(lines.next(), Some("\"\"\"Says.\"\"\""));
    }
}
