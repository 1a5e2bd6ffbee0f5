//! A shell with a pipeline in the background, which it asks and is answered by.

use std::process::Command;
use std::time::Duration;

use farfork_tests::subject::Subject;
use farfork_tests::way::{Place, Way};
use farfork_tests::{Outcome, Trouble, farfork, testbed};

use crate::serving;

const PATIENCE: Duration = Duration::from_secs(30);

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

const IMAGE: &str = "test/bash";

/// It is a tree: by every policy, from scratch and in empty ghosts, clones go on with pipelines of their own,
/// beside a parent that notices nothing. None waits with the image.
pub fn with_pipeline_is_cloned() -> Outcome {
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT]).current_dir(testbed::work_dir("bash")?);
    let mut shell = Subject::start("bash", &mut command, PATIENCE)?;
    shell.await_ready()?;
    must_answer(&mut shell, "before", "BEFORE!")?;
    serving::must_refuse_checkpoint(shell.pid(), IMAGE, &["child process", "--tree"])?;
    serving::checkpoint(shell.pid(), IMAGE, &["--tree"])?;
    let pool = testbed::pool()?;
    for way in Way::all() {
        if way.place == Place::AttachedGhost {
            must_not_wait(way)?;
            continue;
        }
        let ghost = match way.place {
            Place::Scratch => None,
            _ => Some(serving::start_ghost(way, IMAGE, &[])?),
        };
        let mut restore = farfork::restore(pool, IMAGE, &way.options(ghost.as_deref()))?;
        let mut clone = Subject::start(&way.name(), &mut restore, PATIENCE)?;
        must_answer(&mut clone, way.tiering, &format!("{}!", way.tiering.to_uppercase()))?;
        must_answer(&mut shell, "meanwhile", "MEANWHILE!")?;
    }
    farfork::forget(pool, IMAGE)
}

fn must_not_wait(way: Way) -> Outcome {
    match serving::start_ghost(way, IMAGE, &[]) {
        Err(Trouble::Failed(text)) if text.contains("several processes") => Ok(()),
        other => Err(Trouble::Failed(format!("expected no ghost with a tree, saw {other:?}"))),
    }
}

fn must_answer(shell: &mut Subject, word: &str, answer: &str) -> Outcome {
    shell.send(format!("{word}\n").as_bytes());
    shell.await_line(answer)
}
