//! A C program forks itself by libfarfork: its clones start on both nodes.

use std::path::{Path, PathBuf};
use std::process::Command;

use farfork_tests::compile::profile_dir;
use farfork_tests::nodes::{AWAY, HOME, SOON, demand};
use farfork_tests::subject::Subject;
use farfork_tests::{Outcome, Trouble, farfork, testbed};

use crate::bed::Bed;
use crate::children;

/// What a clone writes: all numbers are as they were at the moment of the fork.
const SUM: &str = "sum 7340032\n";

/// The example, with the library beside the tests.
fn example(directory: &Path) -> Outcome<PathBuf> {
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/storage/objects");
    let libraries = profile_dir()?.join("deps");
    if !libraries.join("libfarfork.so").is_file() {
        return Err(Trouble::Skipped("no libfarfork.so: build farfork-objects".into()));
    }
    let program = directory.join("fork");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    cc.arg(objects.join("include")).arg(objects.join("examples/fork.c")).arg("-o").arg(&program);
    cc.arg("-L").arg(&libraries).arg("-lfarfork");
    cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
    farfork::must_run(cc)?;
    Ok(program)
}

/// The program on a node, with what the command needs there.
fn on(bed: &Bed, side: &str, arguments: &[&str], program: &Path) -> Outcome<Command> {
    let mut command = bed.inside(side);
    for (name, value) in bed.on(side, &[])?.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("FARFORK_BIN", farfork::binary()?).current_dir("/");
    command.arg(program).args(arguments);
    Ok(command)
}

fn await_sum(file: &Path) -> Outcome {
    let written = || std::fs::read_to_string(file).unwrap_or_default();
    testbed::eventually("a clone has written its sum", || Ok(written().ends_with('\n')))?;
    demand(written() == SUM, SUM, &written())?;
    std::fs::remove_file(file).map_err(|error| Trouble::during("removing the sum", error))
}

/// `ff_prepare` returns in the process and in each clone, `ff_resume` starts clones on both nodes, and
/// `ff_reclaim` ends the seed.
pub fn c_calls() -> Outcome {
    let bed = Bed::set("c-calls")?;
    let program = example(bed.directory())?;
    let file = bed.directory().join("sum");
    let name = file.display().to_string();
    let mut parent = Subject::start("parent", &mut on(&bed, HOME, &[&name], &program)?, SOON)?;
    await_sum(&file)?;
    testbed::eventually("the parent has its clone", || {
        parent.hear(std::time::Duration::from_millis(20));
        Ok(parent.after("clone").len() == 1)
    })?;
    let seed = parent.after("seed").join(" ");
    let words: Vec<&str> = seed.split(' ').collect();
    demand(words.len() == 3 && words[0].starts_with("10.78.0.1:"), "a seed", &seed)?;
    let arguments = [&[&*name][..], &words].concat();
    farfork::must_run(on(&bed, AWAY, &arguments, &program)?)?;
    await_sum(&file)?;
    // Another key is another handle.
    let wrong = [&name, words[0], words[1], "1"];
    let output = farfork::run(on(&bed, AWAY, &wrong, &program)?)?;
    let said = farfork::text(&output);
    demand(said.contains("does not know the handle"), "a refusal", &said)?;
    parent.send_byte();
    demand(parent.finish()?.code() == Some(0), "exit status 0", &parent.transcript())?;
    demand(parent.said("reclaimed") && !file.exists(), "one end", &parent.transcript())?;
    demand(children(&parent).is_empty(), "no children", &())
}

/// Without the command there is no seed, and the process goes on with an error that says so.
pub fn c_calls_without_the_command() -> Outcome {
    let bed = Bed::set("c-none")?;
    let program = example(bed.directory())?;
    let mut command = on(&bed, HOME, &["/nowhere"], &program)?;
    command.env("FARFORK_BIN", "/nowhere/farfork");
    let output = farfork::run(command)?;
    let said = farfork::text(&output);
    demand(output.status.code() == Some(1), "exit status 1", &said)?;
    demand(said.contains("ff_prepare:") && said.contains("/nowhere/farfork"), "a reason", &said)
}
