//! The command line of `farfork`, with a help that groups commands by task.

use std::fmt::Write;

use clap::builder::Styles;
use clap::{Command, CommandFactory};

use crate::Cli;

/// A task, and its commands.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) commands: &'static [&'static str],
}

/// All commands but the hidden ones, in the order of the help.
pub(crate) const GROUPS: [Group; 5] = [
    Group {
        title: "Processes and clones",
        commands: &["run", "checkpoint", "restore", "ps", "wait", "kill", "promote", "ghost"],
    },
    Group {
        title: "Forks of live processes",
        commands: &["prepare", "resume", "reclaim", "seeds"],
    },
    Group {
        title: "Images, pools and regions",
        commands: &["images", "hot", "pool", "region", "far", "vm"],
    },
    Group {
        title: "Platform",
        commands: &[
            "serve",
            "deploy",
            "invoke",
            "logs",
            "functions",
            "keys",
            "top",
            "replay",
            "sim",
            "profile",
        ],
    },
    Group { title: "Machine", commands: &["doctor", "node", "bench"] },
];

/// The whole command line.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    let template = template(&command);
    command.help_template(template)
}

/// The help as clap prints it, but with the list of commands by group: clap has one heading for all
/// subcommands.
fn template(command: &Command) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let width = GROUPS.iter().flat_map(|group| group.commands).map(|name| name.len()).max();
    let width = width.unwrap_or_default();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for group in &GROUPS {
        let _ = write!(text, "\n{header}{}:{header:#}\n", group.title);
        for name in group.commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:width$}{literal:#}  {about}");
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}\n\n");
    text + "\"farfork help COMMAND\" describes a command and its options."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_is_in_one_group() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut names: Vec<&str> = visible.map(Command::get_name).collect();
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, names);
    }

    #[test]
    fn commands_stand_below_the_heading_of_their_group() {
        let help = command().render_help().to_string();
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{help}"));
        assert!(at("\nPlatform:\n") < at("\n  deploy      Deploy a function, or"), "{help}");
        assert!(at("\n  deploy ") < at("\nMachine:\n") && at("\nMachine:\n") < at("\n  doctor "));
        assert!(at("\nOptions:\n") < at("--help") && !help.contains("generate"), "{help}");
    }
}
