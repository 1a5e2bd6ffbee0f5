//! Parameters and annotations of the command line: `--param KEY VALUE`, as with `wsk`.

use std::error::Error;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use farfork_sys::words;
use serde_json::{Map, Value, json};

/// The file name that means stdin.
const STANDARD: &str = "-";

/// Parameters of a call.
#[derive(clap::Args)]
pub(crate) struct Parameters {
    /// Parameter. VALUE is JSON, or else a string. May be repeated.
    #[arg(short, long = "param", num_args = 2, value_names = ["KEY", "VALUE"], allow_hyphen_values = true)]
    param: Vec<String>,
    /// File with a JSON object of parameters; - is stdin. --param overrides it.
    #[arg(short = 'P', long, value_name = "FILE")]
    param_file: Option<PathBuf>,
}

impl Parameters {
    /// All parameters.
    pub(crate) fn all(&self) -> Result<Map<String, Value>, Box<dyn Error>> {
        let mut all = match &self.param_file {
            Some(path) => object(path)?,
            None => Map::new(),
        };
        all.extend(pairs(&self.param));
        Ok(all)
    }
}

/// Pairs of keys and values that alternate.
pub(crate) fn pairs(words: &[String]) -> impl Iterator<Item = (String, Value)> {
    words.chunks_exact(2).map(|pair| (pair[0].clone(), value(&pair[1])))
}

/// JSON, or else a string.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// OpenWhisk's list of keys and values.
pub(crate) fn listed(all: impl IntoIterator<Item = (String, Value)>) -> Vec<Value> {
    all.into_iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
}

fn object(path: &Path) -> Result<Map<String, Value>, String> {
    let read = match path == Path::new(STANDARD) {
        true => {
            let mut text = String::new();
            io::stdin().lock().read_to_string(&mut text).map(|_| text)
        }
        false => fs::read_to_string(path),
    };
    let shown = path.display();
    let text = read
        .map_err(|error| format!("cannot read parameters from {shown}: {}", words::of(&error)))?;
    serde_json::from_str(&text)
        .map_err(|wrong| format!("invalid parameters in {shown} (expected a JSON object): {wrong}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_json_or_strings() {
        let words = ["n", "1", "who", "Ada", "list", "[1, \"a\"]", "quoted", "\"1\"", "none", ""];
        let all: Map<String, Value> = pairs(&words.map(str::to_owned)).collect();
        let expected = json!({"n": 1, "who": "Ada", "list": [1, "a"], "quoted": "1", "none": ""});
        assert_eq!(Value::Object(all), expected);
    }

    #[test]
    fn the_command_line_overrides_the_file() {
        let directory = std::env::temp_dir().join(format!("farfork-params-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("p.json");
        let with = |text: &str| {
            fs::write(&path, text).unwrap();
            let param = ["a", "2"].map(str::to_owned).to_vec();
            Parameters { param, param_file: Some(path.clone()) }.all()
        };
        let all = with("{\"a\": 1, \"b\": null}").unwrap();
        assert_eq!(Value::Object(all), json!({"a": 2, "b": null}));
        for bad in ["[1]", "{", ""] {
            assert!(with(bad).unwrap_err().to_string().contains("expected a JSON object"), "{bad}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
