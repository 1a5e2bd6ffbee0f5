//! `farfork keys`.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use farfork_platform::api::Name;
use farfork_platform::operator::{KeyReply, KeyRequest, ask};
use farfork_sys::words;
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
        /// Write the key to FILE, which must not exist, with mode 0600. Default: print the key.
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        out: Option<PathBuf>,
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
    if let Command::Create { namespace, out: Some(out), state } = command {
        return create_in(out, namespace, &state.state);
    }
    let (question, args) = match command {
        Command::Create { namespace, state, .. } => (KeyRequest::Create(namespace.clone()), state),
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

/// Creates a key in a file that only its owner can read. The file comes first: a key whose secret is lost
/// would stay valid.
fn create_in(out: &Path, namespace: &Name, state: &Path) -> CommandResult {
    let failed =
        |error: &io::Error| format!("cannot write {}: {}", out.display(), words::of(error));
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(out);
    let mut file = opened.map_err(|error| failed(&error))?;
    let written =
        ask(state, &KeyRequest::Create(namespace.clone())).map_err(Box::from).and_then(|reply| {
            match reply {
                KeyReply::Made { user, secret } => {
                    writeln!(file, "{user}:{secret}").map_err(|error| failed(&error).into())
                }
                _ => Err(Box::<dyn Error>::from(
                    "cannot create a key: unexpected reply of the platform",
                )),
            }
        });
    written.inspect_err(|_| {
        // It has no valid key.
        let _ = fs::remove_file(out);
    })?;
    eprintln!("wrote the key to {}", out.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use farfork_platform::store::Embedded;

    use super::*;

    #[test]
    fn a_key_file_is_its_owners_and_replaces_no_other() {
        let state = tempfile::tempdir().unwrap();
        drop(Embedded::open(&state.path().join("store.redb")).unwrap());
        let out = state.path().join("team.key");
        let create = |name: &str| create_in(&out, &name.parse().unwrap(), state.path());
        assert!(create("farfork").is_err(), "a reserved name");
        assert!(!out.exists(), "no file without a key");
        create("team").unwrap();
        assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&out).unwrap();
        assert_eq!(text.trim_end().split_once(':').unwrap().1.len(), 64, "{text}");
        assert!(create("team").unwrap_err().to_string().contains("team.key"));
        assert_eq!(fs::read_to_string(&out).unwrap(), text);
    }
}
