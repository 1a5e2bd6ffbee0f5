//! Options of `farfork sim` in a file.

use std::collections::BTreeMap;
use std::error::Error;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use farfork_sim::trace::Format;
use farfork_sim::{Scheduling, Settings};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{serve, size};

/// The options, named as on the command line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Options {
    trace: Paths,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    profile: Option<Paths>,
    #[serde(default)]
    policies: Option<Value>,
    #[serde(default = "two")]
    nodes: u32,
    #[serde(default = "four_gibibytes", alias = "node_memory")]
    node_memory: Size,
    #[serde(default = "four_gibibytes")]
    pool: Size,
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    processors: Option<NonZero<u32>>,
    #[serde(default)]
    ghosts: bool,
    #[serde(default, alias = "pool_bandwidth")]
    pool_bandwidth: Option<Size>,
    #[serde(default, alias = "far_bandwidth")]
    far_bandwidth: Option<Size>,
    #[serde(default)]
    far: Option<Size>,
    #[serde(default = "one")]
    pub(crate) seed: u64,
}

/// One path or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Paths {
    One(PathBuf),
    Many(Vec<PathBuf>),
}

/// `"4G"`, or a number of bytes.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

fn one() -> u64 {
    1
}

fn two() -> u32 {
    2
}

fn four_gibibytes() -> Size {
    Size::Bytes(4 << 30)
}

impl Size {
    fn bytes(&self) -> Result<u64, String> {
        match self {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => size::parse(text),
        }
    }
}

impl Paths {
    /// Paths are relative to the directory of the file that names them; if nothing is there, to the current one.
    fn all(&self, directory: &Path) -> Vec<PathBuf> {
        let all = match self {
            Paths::One(path) => std::slice::from_ref(path),
            Paths::Many(paths) => paths,
        };
        all.iter().map(|path| resolved(path, directory)).collect()
    }
}

/// A path beside a file, or else as it is.
pub(crate) fn resolved(path: &Path, directory: &Path) -> PathBuf {
    let beside = directory.join(path);
    if beside.exists() { beside } else { path.to_owned() }
}

impl Options {
    /// Options from a document.
    pub(crate) fn from(document: &Map<String, Value>) -> Result<Options, String> {
        let options: Options = serde_json::from_value(Value::Object(document.clone()))
            .map_err(|wrong| wrong.to_string())?;
        if options.nodes == 0 || options.nodes > 10_000 {
            return Err(format!("invalid nodes {} (expected 1 to 10000)", options.nodes));
        }
        Ok(options)
    }

    /// The trace: its files, its format, and the seed.
    pub(crate) fn trace(
        &self,
        directory: &Path,
    ) -> Result<(Vec<PathBuf>, Option<&'static str>, u64), String> {
        let format = self.format.as_deref().map(str::parse::<Format>).transpose()?;
        Ok((self.trace.all(directory), format.map(Format::name), self.seed))
    }

    /// The files of profiles.
    pub(crate) fn profiles(&self, directory: &Path) -> Vec<PathBuf> {
        self.profile.as_ref().map_or_else(Vec::new, |paths| paths.all(directory))
    }

    /// What is simulated. Files with policies are read.
    pub(crate) fn settings(&self, directory: &Path) -> Result<Settings, Box<dyn Error>> {
        let policies = match &self.policies {
            None => farfork_policy::Settings::default(),
            Some(document) => policies(document, directory)?,
        };
        let scheduling = self.policy.as_deref().map(str::parse::<Scheduling>).transpose()?;
        Ok(Settings {
            nodes: self.nodes,
            node_bytes: self.node_memory.bytes()?,
            pool_bytes: self.pool.bytes()?,
            policies,
            scheduling: scheduling.unwrap_or_default(),
            processors: self.processors.map(NonZero::get),
            ghosts: self.ghosts,
            pool_bandwidth: self.pool_bandwidth.as_ref().map(Size::bytes).transpose()?,
            far_bandwidth: self.far_bandwidth.as_ref().map(Size::bytes).transpose()?,
            far_bytes: self.far.as_ref().map(Size::bytes).transpose()?,
        })
    }
}

/// Settings of policies: the name of their file, or themselves.
pub(crate) fn policies(
    document: &Value,
    directory: &Path,
) -> Result<farfork_policy::Settings, Box<dyn Error>> {
    match document {
        Value::String(path) => serve::policies(&resolved(Path::new(path), directory)),
        document => serde_json::from_value(document.clone())
            .map_err(|wrong| format!("invalid settings of policies: {wrong}").into()),
    }
}

/// Sets one option. `policies.keep_alive.long_ms` sets one setting of the policies, which has to exist.
pub(crate) fn set(
    options: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    directory: &Path,
) -> Result<(), Box<dyn Error>> {
    let mut steps = key.split('.');
    let first = steps.next().unwrap_or_default().replace('_', "-");
    let rest: Vec<&str> = steps.collect();
    if rest.is_empty() {
        options.insert(first, value.clone());
        return Ok(());
    }
    if first != "policies" {
        return Err(format!("unknown key '{key}': only settings of policies have parts").into());
    }
    let base = options.get("policies").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let mut whole = serde_json::to_value(policies(&base, directory)?)?;
    if let Value::Object(fields) = &mut whole {
        // It is left out where it is not set.
        fields.entry("share").or_insert(Value::Null);
    }
    let mut place = &mut whole;
    for step in &rest {
        if place.is_null() {
            return Err(format!(
                "cannot set '{key}': 'share' is not set; name its policy in the base, as \
                 policies = {{share = {{policy = \"dynamic\"}}}}, or give whole values of policies.share"
            )
            .into());
        }
        let known: Vec<String> = match &*place {
            Value::Object(fields) => fields.keys().cloned().collect(),
            _ => Vec::new(),
        };
        place = place.get_mut(*step).ok_or_else(|| {
            format!("unknown key '{key}': there is no '{step}' (known here: {})", known.join(", "))
        })?;
    }
    *place = value.clone();
    options.insert(first, whole);
    Ok(())
}

/// Files that several runs share, read once.
pub(crate) type Shared<K, T> = BTreeMap<K, Result<T, String>>;
