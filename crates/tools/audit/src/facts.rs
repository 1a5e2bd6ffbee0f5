//! What is known of a process: names and values.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::io;

use farfork_sys::words;

/// What is known of a process, by name, e.g. `thread 1/status/SigBlk`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts(BTreeMap<String, String>);

/// A fact that is not the same for two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub fact: String,
    /// Its value for the parent, if it has one.
    pub parent: Option<String>,
    /// Its value for the clone, if it has one.
    pub clone: Option<String>,
}

impl Facts {
    /// Notes a fact.
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// Notes a fact, or the error of the question.
    pub fn add_result<T: Display>(&mut self, name: String, value: Result<T, impl Into<io::Error>>) {
        let words = |error| format!("error: {}", words::of(&error));
        let value = value.map_err(Into::into);
        self.add(name, value.map_or_else(words, |it| it.to_string()));
    }

    /// Notes each line `key: value` of a file.
    pub fn add_lines(&mut self, prefix: &str, text: &str) {
        for line in text.lines() {
            let (key, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            self.add(format!("{prefix}/{}", key.trim()), value);
        }
    }

    /// The value of a fact.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// In what two processes differ.
pub fn differences(parent: &Facts, clone: &Facts) -> Vec<Difference> {
    let mut names: Vec<&String> = parent.0.keys().chain(clone.0.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differ = names.into_iter().filter(|name| parent.0.get(*name) != clone.0.get(*name));
    let difference = |fact: &String| Difference {
        fact: fact.clone(),
        parent: parent.0.get(fact).cloned(),
        clone: clone.0.get(fact).cloned(),
    };
    differ.map(difference).collect()
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{}: parent {}, clone {}", self.fact, shown(&self.parent), shown(&self.clone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_that_is_not_the_same_is_a_difference() {
        let (mut parent, mut clone) = (Facts::default(), Facts::default());
        parent.add_lines("status", "Umask:\t0022\nSigIgn:\t00\nNoNewPrivs:\t0\n");
        clone.add_lines("status", "Umask:\t0022\nSigIgn:\t01\nTHP_enabled:\t1\n");
        let found: Vec<String> =
            differences(&parent, &clone).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "status/NoNewPrivs: parent 0, clone nothing",
                "status/SigIgn: parent 00, clone 01",
                "status/THP_enabled: parent nothing, clone 1",
            ]
        );
    }
}
