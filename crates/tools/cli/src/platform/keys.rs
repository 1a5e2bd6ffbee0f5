//! `farfork keys`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use farfork_platform::api::Name;
use farfork_platform::operator::{KeyReply, KeyRequest, ask};
use serde::Serialize;

use crate::CommandResult;
use crate::output::print_json;

/// Where a platform keeps its state.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Where the platform keeps its state, as farfork serve has it.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/farfork")]
    state: PathBuf,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// What to do with keys.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a key for a namespace, which need not be there yet, and print it: USER:SECRET. The secret is
    /// kept nowhere.
    Create {
        /// The namespace.
        namespace: Name,
        #[command(flatten)]
        place: Place,
    },
    /// List keys without their secrets.
    List {
        /// The namespace; all without it.
        namespace: Option<Name>,
        #[command(flatten)]
        place: Place,
    },
    /// Have no key of a namespace open anything any more. Its functions stay.
    Revoke {
        /// The namespace.
        namespace: Name,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Serialize)]
struct Revoked {
    revoked: usize,
}

/// Runs the subcommand.
pub(crate) fn run(command: &Command) -> CommandResult {
    let (question, place) = match command {
        Command::Create { namespace, place } => (KeyRequest::Create(namespace.clone()), place),
        Command::List { namespace, place } => (KeyRequest::List(namespace.clone()), place),
        Command::Revoke { namespace, place } => (KeyRequest::Revoke(namespace.clone()), place),
    };
    match (ask(&place.state, &question)?, place.json) {
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
        (KeyReply::Revoked(revoked), false) => eprintln!("{revoked} revoked"),
        (made, true) => print_json(&made)?,
        (KeyReply::Made { user, secret }, false) => println!("{user}:{secret}"),
    }
    Ok(ExitCode::SUCCESS)
}
