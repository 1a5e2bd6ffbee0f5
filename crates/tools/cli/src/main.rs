//! The command `farfork`: one file per subcommand; those that talk to a platform are in `platform`.
//!
//! Exit status: 0 done, 1 the work failed, 2 the call was wrong. With `--json` stdout holds one
//! JSON document and nothing else.

mod archive;
mod bench;
mod checkpoint;
mod clones;
mod doctor;
mod ghost;
mod hot;
mod images;
mod inherit;
mod node;
mod output;
mod place;
mod platform;
mod pool;
mod profile;
mod progress;
mod promote;
mod replay;
mod restore;
mod serve;
mod size;
mod trial;

use clap::{Parser, Subcommand};
use farfork_sys::words;
use std::error::Error;
use std::io;
use std::process::ExitCode;

/// What a subcommand ends with.
type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// Exit status of a call that was wrong.
const USAGE: u8 = 2;

/// Clones warm processes: checkpoint once into shared memory, start copies in about a millisecond.
#[derive(Parser)]
#[command(name = "farfork", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tell what this machine can do: each capability yes or no, and why not.
    Doctor(doctor::Args),
    /// Make, describe and check pools.
    #[command(subcommand)]
    Pool(pool::Command),
    /// Checkpoint a running process into a pool.
    Checkpoint(checkpoint::Args),
    /// Start clones of an image.
    Restore(restore::Args),
    /// Wait for the end of a clone, and end with its exit status.
    Wait(clones::WaitArgs),
    /// Send a signal to a clone.
    Kill(clones::KillArgs),
    /// List clones.
    Ps(clones::PsArgs),
    /// Containers that wait to become clones.
    #[command(subcommand)]
    Ghost(ghost::Command),
    /// The catalog of images.
    #[command(subcommand)]
    Images(images::Command),
    /// Declare which memory of an image is hot, so that its pages become local when clones touch
    /// them, or take that back.
    #[command(subcommand)]
    Hot(hot::Command),
    /// Make pages of a running clone local that it maps from the pool.
    Promote(promote::Args),
    /// Run a benchmark.
    Bench(bench::Args),
    /// Run functions behind OpenWhisk's REST interface, and scale them by clones.
    Serve(serve::Args),
    /// Deploy a function to a platform, or a new version of it.
    Deploy(platform::deploy::Args),
    /// Call a function of a platform, and print its result.
    Invoke(platform::invoke::Args),
    /// Show what functions of a platform have printed.
    Logs(platform::logs::Args),
    /// The functions of a platform.
    Functions(platform::functions::Args),
    /// Show what a platform does: its nodes, functions, instances and their memory.
    Top(platform::top::Args),
    /// Make decisions of a platform again, and tell which are others by now, or by other settings.
    Replay(replay::Args),
    /// Keys of a platform's namespaces.
    #[command(subcommand)]
    Keys(platform::keys::Command),
    /// Run the agent of this machine; other commands start it when they need it.
    Node(node::Args),
}

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    // An agent that this command starts must not keep the caller's pipes open. Without the call
    // (Linux before 5.11) it does.
    let _ = farfork_sys::inherited::close_on_exec_from(3);
    let result = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Pool(command) => pool::run(&command),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Wait(args) => clones::wait(&args),
        Command::Kill(args) => clones::kill(&args),
        Command::Ps(args) => clones::ps(&args),
        Command::Ghost(command) => ghost::run(&command),
        Command::Images(command) => images::run(&command),
        Command::Hot(command) => hot::run(&command),
        Command::Promote(args) => promote::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Deploy(args) => platform::deploy::run(&args),
        Command::Invoke(args) => platform::invoke::run(&args),
        Command::Logs(args) => platform::logs::run(&args),
        Command::Functions(args) => platform::functions::run(&args),
        Command::Top(args) => platform::top::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Keys(command) => platform::keys::run(&command),
        Command::Node(args) => node::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("farfork: {}", told(&*error));
        ExitCode::FAILURE
    })
}

/// Has a panic of any thread end the process, as in builds that do not unwind: no agent or gateway goes on with a
/// thread less. Tests have to unwind, and all crates would be compiled twice if this program did not.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// What people are told of an error.
fn told(error: &(dyn Error + 'static)) -> String {
    error.downcast_ref::<io::Error>().map_or_else(|| error.to_string(), words::of)
}

/// Refuses a call that cannot be right.
fn usage_error(message: &str) -> ExitCode {
    eprintln!("farfork: {message}");
    ExitCode::from(USAGE)
}
