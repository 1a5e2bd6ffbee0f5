//! A shell with a pipeline in the background, which it asks and is answered by.

use std::process::Command;
use std::time::Duration;

use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, testbed};

use crate::serving;

/// Reads a word from its input, sends it through the pipeline, and prints what comes back.
const SCRIPT: &str = r#"
coproc pipeline { while read -r word; do echo "${word^^}"; done | stdbuf -oL sed 's/$/!/'; }
echo READY
while read -r word; do
    echo "$word" >&"${pipeline[1]}"
    read -r answer <&"${pipeline[0]}"
    echo "$answer"
done
"#;

/// It is a tree: refused, and it goes on.
pub fn with_pipeline_is_refused() -> Outcome {
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT]).current_dir(testbed::work_dir("bash")?);
    let mut shell = Subject::start("bash", &mut command, Duration::from_secs(30))?;
    shell.await_ready()?;
    for (word, answer) in [("before\n", "BEFORE!"), ("after\n", "AFTER!")] {
        shell.send(word.as_bytes());
        shell.await_line(answer)?;
        serving::must_refuse_checkpoint(shell.pid(), "test/bash", &["child process"])?;
    }
    Ok(())
}
