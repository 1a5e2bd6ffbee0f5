//! The command `farfork`: one file per subcommand; those that talk to a platform are in `platform`.
//!
//! Exit status: 0 done, 1 the work failed, 2 the call was wrong. With `--json` stdout holds one
//! JSON document and nothing else.

/// Prints a line on standard output, and ends the command where that cannot be written.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
/// Prints a line on standard error, without control characters of others.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}

mod archive;
mod bench;
mod checkpoint;
mod clone_counts;
mod clones;
mod doctor;
mod far;
mod function_profile;
mod generate;
mod ghost;
mod help;
mod hot;
mod images;
mod inherit;
mod log;
mod named;
mod node;
mod output;
mod platform;
mod pool;
mod pool_directory;
mod printable;
mod profile;
mod progress;
mod promote;
#[cfg(test)]
mod reference;
mod region;
mod replay;
mod restore;
mod resume;
mod run;
mod seeds;
mod serve;
mod sim;
mod size;
mod tier;
mod trial;
mod unfinished;
mod vm;

use clap::{FromArgMatches, Parser, Subcommand};
use farfork_sys::words;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// What a subcommand returns.
type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// Exit status of a call that was wrong.
const USAGE: u8 = 2;

/// Clone warm processes: checkpoint once into shared memory, start clones in about a millisecond.
#[derive(Parser)]
#[command(name = "farfork", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what this machine can do, and what to do about the rest.
    Doctor(doctor::Args),
    /// Create, inspect, check and delete pools.
    #[command(subcommand)]
    Pool(pool::Command),
    /// Create, inspect, check and delete regions for objects in shared memory.
    #[command(subcommand)]
    Region(region::Command),
    /// Checkpoint a running process into a pool.
    Checkpoint(checkpoint::Args),
    /// Run a program without io_uring, so that it can be checkpointed.
    Run(run::Args),
    /// Start clones of an image.
    Restore(restore::Args),
    /// Prepare a running process to be forked on any node, and print the handle of its seed.
    Prepare(seeds::PrepareArgs),
    /// Start clones of a seed, on this node or another.
    Resume(resume::Args),
    /// End a seed: no clone starts from it any more.
    Reclaim(seeds::ReclaimArgs),
    /// List the seeds of this machine.
    Seeds(seeds::ListArgs),
    /// Keep a seed. Started by prepare.
    #[command(hide = true)]
    SeedKeeper(seeds::KeeperArgs),
    /// Serve images to other nodes, and look at those of other nodes.
    #[command(subcommand)]
    Far(far::Command),
    /// Wait until a clone exits, and exit with its status.
    Wait(clones::WaitArgs),
    /// Send a signal to a clone.
    Kill(clones::KillArgs),
    /// List clones.
    Ps(clones::PsArgs),
    /// Manage ghosts: containers that wait to become clones.
    #[command(subcommand)]
    Ghost(ghost::Command),
    /// List, inspect, remove, export and import images.
    #[command(subcommand)]
    Images(images::Command),
    /// Import, export, inspect, serve, map and repack snapshots of virtual machines.
    #[command(subcommand)]
    Vm(vm::Command),
    /// Declare which memory of an image is hot: its pages become local when clones touch them.
    #[command(subcommand)]
    Hot(hot::Command),
    /// Copy pages of a running clone from the pool into local memory.
    Promote(promote::Args),
    /// Profile a function: latency and memory by payload and share of near memory.
    Profile(function_profile::Args),
    /// Run a benchmark.
    Bench(bench::Args),
    /// Run the platform: functions behind OpenWhisk's REST interface, scaled by clones.
    Serve(serve::Args),
    /// Deploy a function, or a new version of it.
    Deploy(platform::deploy::Args),
    /// Call a function, and print its result.
    Invoke(platform::invoke::Args),
    /// Show what functions have printed.
    Logs(platform::logs::Args),
    /// List or delete functions.
    Functions(platform::functions::Args),
    /// Watch the platform: nodes, functions, instances and their memory.
    Top(platform::top::Args),
    /// Replay a decision journal and report differences.
    Replay(replay::Args),
    /// Simulate the platform on a trace of calls: latencies, starts and memory before buying hardware.
    Sim(sim::Args),
    /// Create, list and revoke keys of namespaces.
    #[command(subcommand)]
    Keys(platform::keys::Command),
    /// Run the agent of this machine. Other commands start it when they need it.
    Node(node::Args),
    /// Write man pages and shell completions.
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    let matches = help::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if !matches!(cli.command, Command::Run(_)) {
        // An agent that this command starts must not keep the caller's pipes open. Without the call
        // (Linux before 5.11) it does.
        let _ = farfork_sys::inherited::close_on_exec_from(3);
    }
    let result = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Pool(command) => pool::run(&command),
        Command::Region(command) => region::run(&command),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Prepare(args) => seeds::prepare(&args),
        Command::Resume(args) => resume::run(&args),
        Command::Reclaim(args) => seeds::reclaim(&args),
        Command::Seeds(args) => seeds::list(&args),
        Command::SeedKeeper(args) => seeds::keep(&args),
        Command::Far(command) => far::run(&command),
        Command::Wait(args) => clones::wait(&args),
        Command::Kill(args) => clones::kill(&args),
        Command::Ps(args) => clones::ps(&args),
        Command::Ghost(command) => ghost::run(&command),
        Command::Images(command) => images::run(&command),
        Command::Vm(command) => vm::run(&command),
        Command::Hot(command) => hot::run(&command),
        Command::Promote(args) => promote::run(&args),
        Command::Profile(args) => function_profile::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Deploy(args) => platform::deploy::run(&args),
        Command::Invoke(args) => platform::invoke::run(&args),
        Command::Logs(args) => platform::logs::run(&args),
        Command::Functions(args) => platform::functions::run(&args),
        Command::Top(args) => platform::top::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Keys(command) => platform::keys::run(&command),
        Command::Node(args) => node::run(&args),
        Command::Generate(args) => generate::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("farfork: {}", error_text(&*error));
        ExitCode::FAILURE
    })
}

/// Makes a panic of any thread abort the process, as in release builds: an agent or gateway must not
/// go on without one of its threads. Tests need unwinding, and a program without it would compile all
/// crates twice.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// The message of an error. Errors of the system are shown in words, without their number.
fn error_text(error: &(dyn Error + 'static)) -> String {
    error.downcast_ref::<io::Error>().map_or_else(|| error.to_string(), words::of)
}

/// Reports a wrong call.
fn usage_error(message: &str) -> ExitCode {
    eprintln!("farfork: {message}");
    ExitCode::from(USAGE)
}
