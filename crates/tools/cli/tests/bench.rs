//! `farfork bench` executes the program farfork-bench.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

use farfork_sys::sync::locked;

/// A program cannot be executed while a process that another test has just forked has it open for writing.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    locked(&TURN)
}

/// Runs a copy of farfork in `directory`, with no other program in reach.
fn bench(directory: &Path, arguments: &[&str]) -> Output {
    let program = directory.join("farfork");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_farfork"), &program).expect("a copy");
    }
    let mut command = Command::new(program);
    command.env("PATH", directory.join("bin")).arg("bench").args(arguments);
    command.output().expect("farfork starts")
}

fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, text).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("an executable file");
}

#[test]
fn arguments_output_and_exit_status_are_those_of_the_program() {
    let _turn = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let script = |place: &str| format!("#!/bin/sh\necho {place} \"$@\"\nexit 7\n");
    let arguments = ["fork", "--only", "c-24M", "--json", "--help"];
    for (path, place) in [("bin/farfork-bench", "in-path"), ("farfork-bench", "beside")] {
        write_program(&directory.path().join(path), &script(place));
        let output = bench(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let expected = format!("{place} fork --only c-24M --json --help\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
}

#[test]
fn without_the_program_the_error_says_how_to_build_it() {
    let _turn = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let output = bench(directory.path(), &["fork"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cargo build --release --package farfork-bench"), "{message}");
}
