//! Man pages and completions, as packages generate them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn generate(directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfork"));
    command.arg("generate").arg(directory).output().expect("farfork starts")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_command_has_a_man_page_and_each_shell_its_completions() {
    let directory = tempfile::tempdir().expect("a directory");
    let share = directory.path().join("new/share");
    let output = generate(&share);
    assert!(output.status.success(), "{output:?}");
    let page = |name: &str| read(&share.join(format!("man/man1/{name}.1")));
    assert!(page("farfork").contains("farfork\\-checkpoint(1)"));
    assert!(page("farfork-pool-create").contains("\\-\\-size"));
    assert!(!share.join("man/man1/farfork-generate.1").exists(), "it is hidden");
    for (path, part) in [
        ("bash-completion/completions/farfork", "--inherit-fd"),
        ("zsh/vendor-completions/_farfork", "#compdef farfork"),
        ("fish/vendor_completions.d/farfork.fish", "complete -c farfork"),
    ] {
        assert!(read(&share.join(path)).contains(part), "{path}");
    }
}

#[test]
fn bash_completes_by_the_script() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(generate(directory.path()).status.success());
    let script = directory.path().join("bash-completion/completions/farfork");
    let line = "COMP_WORDS=(farfork pool de); COMP_CWORD=2; _farfork farfork de pool; \
                echo \"${COMPREPLY[@]}\"";
    let command = format!(". {}; {line}", script.display());
    let output = Command::new("bash").args(["-c", &command]).output().expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "destroy\n", "{output:?}");
}

#[test]
fn a_directory_that_cannot_be_created_is_named() {
    let output = generate(Path::new("/proc/none"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("cannot write below /proc/none: "), "{message}");
}
