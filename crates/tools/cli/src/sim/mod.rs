//! `farfork sim`: one run, or many, and traces for them.

mod generate;
mod options;
mod output;
mod run;
mod sample;
mod sweep;

use crate::CommandResult;

/// One run, or a subcommand.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::RunArgs,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Simulate many runs from one file, side by side: budgets, windows, policies, node counts.
    Sweep(sweep::Args),
    /// Generate a synthetic trace from published statistics.
    Generate(generate::Args),
    /// Cut a trace down to some functions, and report how far that is from the whole.
    Sample(sample::Args),
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.command {
        Some(Command::Sweep(args)) => sweep::run(args),
        Some(Command::Generate(args)) => generate::run(args),
        Some(Command::Sample(args)) => sample::run(args),
        None => run::run(&args.run),
    }
}
