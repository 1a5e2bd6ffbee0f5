//! `docs/reference/commands.md` is the command line as clap knows it.
//!
//! `FARFORK_BLESS=1` writes the document anew.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use clap::{Arg, Command};

use crate::help::{self, GROUPS};

const HEAD: &str = "\
# Commands

Commands of `farfork` by task. `farfork COMMAND --help` prints the same. With `--json`, stdout holds one JSON
document and nothing else. Exit status: 0 done, 1 failed, 2 wrong usage. `wait`, a foreground `restore` and
`images profile` exit with the status of what they ran.

The page is generated from the command line: after a change there,
`FARFORK_BLESS=1 cargo test -p farfork-cli reference` writes it anew.
";

fn document() -> String {
    let mut root = help::command().disable_help_subcommand(true);
    root.build();
    let mut text = HEAD.to_owned();
    for group in &GROUPS {
        let _ = writeln!(text, "\n## {}", group.title);
        for name in group.commands {
            add(&mut text, root.find_subcommand(name).expect("a command of the group"));
        }
    }
    text
}

/// Adds a command and its subcommands.
fn add(text: &mut String, command: &Command) {
    let name = command.get_bin_name().expect("its words");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let _ = writeln!(text, "\n### {name}\n\n{}", sentence(about.expect("a text")));
    // Hidden ones are what farfork executes itself.
    let is_shown = |subcommand: &&Command| !subcommand.is_hide_set();
    let subcommands: Vec<&Command> = command.get_subcommands().filter(is_shown).collect();
    if subcommands.is_empty() || !command.is_subcommand_required_set() {
        add_call(text, command);
    }
    subcommands.into_iter().for_each(|subcommand| add(text, subcommand));
}

/// The text in Markdown, with the period that clap removes.
fn sentence(text: String) -> String {
    text.replace('\n', " ").replace("__", "\\_\\_") + "."
}

fn add_call(text: &mut String, command: &Command) {
    let usage = command.clone().render_usage().to_string();
    let usage: Vec<&str> =
        usage.trim_start_matches("Usage: ").lines().map(str::trim_start).collect();
    let _ = writeln!(text, "\n```\n{}\n```", usage.join("\n"));
    let is_usual = |arg: &&Arg| ["help", "version"].contains(&arg.get_id().as_str());
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !is_usual(arg);
    let arguments: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    if arguments.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n| argument | |\n| --- | --- |");
    for argument in arguments {
        let cells = [call_of(argument), description(argument)].map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

/// `--name <NAME>`, or `IMAGE`.
fn call_of(argument: &Arg) -> String {
    let values = argument.to_string();
    match argument.get_short() {
        Some(short) => format!("`-{short}`, `{values}`"),
        None => format!("`{values}`"),
    }
}

fn description(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.map(|help| sentence(help.to_string())).unwrap_or_default();
    let takes_value = argument.get_action().takes_values();
    let values = argument.get_possible_values();
    let values = values.iter().filter(|value| takes_value && !value.is_hide_set());
    let values: Vec<String> = values
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        let _ = write!(text, " Values: {}.", values.join("; "));
    }
    let defaults = argument.get_default_values().iter().filter(|_| takes_value);
    for default in defaults {
        let _ = write!(text, " Default: `{}`.", default.to_string_lossy());
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, " Environment: `{}`.", variable.to_string_lossy());
    }
    text
}

#[test]
fn the_document_is_the_command_line() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/commands.md");
    let expected = document();
    if env::var_os("FARFORK_BLESS").is_some() {
        fs::write(&path, &expected).expect("docs can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let missing = || expected.lines().find(|line| !found.lines().any(|found| found == *line));
    assert!(
        found == expected,
        "docs/reference/commands.md differs from the command line (first missing line: {:?}): run \
         this test with FARFORK_BLESS=1",
        missing()
    );
}

/// The name of an argument says nothing about its unit, its default or its effect.
#[test]
fn every_argument_is_described() {
    fn check(command: &Command) {
        for argument in command.get_arguments() {
            let words = (command.get_name(), argument.get_id());
            assert!(argument.get_help().is_some(), "{words:?} has no help");
        }
        command.get_subcommands().for_each(check);
    }
    check(&help::command());
}
