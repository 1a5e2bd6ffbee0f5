//! Trying an image before it counts.

use std::error::Error;
use std::path::PathBuf;

use farfork_node::client::Client;
use farfork_node::paths;
use farfork_types::Cid;
use farfork_types::wire::{DEFAULT_TIMEOUT_S, Verified, VerifyCall};

use crate::{error_text, node};

/// Whether and how to try.
#[derive(clap::Args)]
pub(crate) struct TrialArgs {
    /// Start a clone of the image in namespaces of its own before the name moves, up to where it would run.
    /// If that fails, no image is made. Always so with --kill, before anything is killed.
    #[arg(long)]
    verify: bool,
    /// Leave that out with --kill.
    #[arg(long, conflicts_with = "verify")]
    no_verify: bool,
    /// Seconds that it may take.
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S)]
    verify_timeout: u64,
    /// Node to try it on.
    #[arg(long, env = "FARFORK_NODE", value_parser = node::name, default_value = paths::DEFAULT_NODE)]
    node: String,
}

impl TrialArgs {
    /// The trial, if there is to be one of a process that is killed or not.
    pub(crate) fn wanted(&self, kills: bool) -> Option<&TrialArgs> {
        ((kills || self.verify) && !self.no_verify).then_some(self)
    }

    /// Tries the image `cid`.
    pub(crate) fn run(&self, pool: PathBuf, cid: Cid) -> Result<Verified, Box<dyn Error>> {
        let call = VerifyCall { pool, cid: cid.to_string(), timeout_s: self.verify_timeout };
        Ok(Client::connect_or_start(&self.node)?.verify(call)?)
    }
}

/// The message when no clone can start.
pub(crate) fn refused(pid: i32, error: &(dyn Error + 'static)) -> String {
    let why = error_text(error);
    format!(
        "process {pid} goes on, and no image was made, since no clone could start from it: {why}\n\
         to make the image all the same, use --no-verify with --kill, or leave out --verify"
    )
}

/// Reports a trial that was passed.
pub(crate) fn show(verified: &Verified) {
    let Verified { ran, skipped, us } = verified;
    let ms = *us as f64 / 1e3;
    eprintln!("verified: {ran} operations ran in {ms:.1} ms, {} did not", skipped.len());
    for skipped in skipped {
        eprintln!("  not tried: {} ({})", skipped.op, skipped.why);
    }
}
