//! `farfork keys`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use farfork_platform::api::Name;
use farfork_platform::operator::{KeyReply, KeyRequest, ask};
use serde::Serialize;

use crate::CommandResult;
use crate::output::print_json;

/// The platform, by its state directory.
#[derive(clap::Args)]
pub(crate) struct StateArgs {
    /// State directory of the platform (farfork serve --state).
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farfork")]
    state: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// What to do with keys.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Create a key for a namespace, which need not exist yet, and print it: USER:SECRET. The secret
    /// is not stored.
    Create {
        /// The namespace.
        namespace: Name,
        #[command(flatten)]
        state: StateArgs,
    },
    /// List keys without their secrets.
    List {
        /// The namespace. Default: all namespaces.
        namespace: Option<Name>,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Revoke all keys of a namespace. Its functions stay.
    Revoke {
        /// The namespace.
        namespace: Name,
        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(Serialize)]
struct Revoked {
    revoked: usize,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    let (question, args) = match command {
        Command::Create { namespace, state } => (KeyRequest::Create(namespace.clone()), state),
        Command::List { namespace, state } => (KeyRequest::List(namespace.clone()), state),
        Command::Revoke { namespace, state } => (KeyRequest::Revoke(namespace.clone()), state),
    };
    match (ask(&args.state, &question)?, args.json) {
        (KeyReply::Keys(keys), true) => print_json(&keys)?,
        (KeyReply::Keys(keys), false) => {
            for key in keys {
                let created = UNIX_EPOCH + Duration::from_millis(key.created_ms);
                let created = humantime::format_rfc3339_seconds(created);
                println!("{}  {created}  {}", key.user, key.namespace);
            }
        }
        (KeyReply::Revoked(0), _) => return Err("the namespace has no keys".into()),
        (KeyReply::Revoked(revoked), true) => print_json(&Revoked { revoked })?,
        (KeyReply::Revoked(revoked), false) => eprintln!("{revoked} keys revoked"),
        (created, true) => print_json(&created)?,
        (KeyReply::Made { user, secret }, false) => println!("{user}:{secret}"),
    }
    Ok(ExitCode::SUCCESS)
}
