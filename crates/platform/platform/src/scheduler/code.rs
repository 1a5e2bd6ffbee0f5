//! The code that an instance without an image loads, and its user.

use std::path::PathBuf;
use std::sync::Arc;

use super::image;
use super::shared::Shared;
use crate::api::Action;
use crate::confine::{self, Contents, FolderError};
use crate::runtimes::Server;

/// The code of a function.
#[derive(Debug)]
pub struct Code {
    /// The user id that it runs as.
    pub user: u32,
    /// Its text or files.
    pub form: Form,
    /// The directory in which it works: that of its files, or an empty one. It belongs to its user.
    pub directory: PathBuf,
    /// Its server, if that is not Python's.
    pub server: Option<Server>,
}

/// The form of code.
#[derive(Debug)]
pub enum Form {
    /// A text.
    Text(String),
    /// The files of an archive, or a program, in its directory.
    Files,
}

/// The code cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCode {
    /// The platform cannot provide it, for this reason.
    Lost(String),
    /// What the action's owner has sent is invalid.
    Wrong(String),
}

impl Shared {
    /// The current version of an action, and its code.
    pub async fn with_code(&self, action: &Action) -> Result<(Action, Arc<Code>), NoCode> {
        let (namespace, name) = (action.namespace.clone(), action.name.clone());
        let found = self.ask_store(move |store| {
            let (action, code) = (store.action(&namespace, &name)?, store.code(&namespace, &name)?);
            Ok((action, code, store.number(&namespace)?))
        });
        let (action, text, number) = match found.await {
            Ok((Some(action), Some(code), number)) => (action, code, number),
            Ok(_) => {
                let why = "the action was deleted before the call was made";
                return Err(NoCode::Lost(why.to_owned()));
            }
            Err(error) => return Err(NoCode::Lost(error.to_string())),
        };
        let user = confine::user(number);
        let (form, directory) = match action.exec.binary || action.exec.is_blackbox() {
            true => (Form::Files, self.folder(&action, user, text).await?),
            false => {
                // It is made once for a user, so that this does not wait for the disk.
                let directory = self.folders.ensure_empty(user);
                (Form::Text(text), directory.map_err(|error| NoCode::Lost(error.to_string()))?)
            }
        };
        let server = self.others.server(&action, &directory);
        let server = server.map_err(|none| NoCode::Lost(none.to_string()))?;
        Ok((action, Arc::new(Code { user, form, directory, server })))
    }

    async fn folder(&self, action: &Action, user: u32, code: String) -> Result<PathBuf, NoCode> {
        let (folders, name) = (self.folders.clone(), image::name(action));
        let is_blackbox = action.exec.is_blackbox();
        let had = tokio::task::spawn_blocking(move || {
            let contents = if is_blackbox { Contents::Program } else { Contents::Archive };
            folders.ensure(&name, user, contents(&code))
        });
        let had =
            had.await.map_err(|_| NoCode::Lost("the platform is shutting down".to_owned()))?;
        had.map_err(|error| match error {
            FolderError::Archive(_) | FolderError::Program(_) => NoCode::Wrong(error.to_string()),
            error => NoCode::Lost(error.to_string()),
        })
    }

    /// Removes the files of a version that no longer exists.
    pub async fn remove_folder(&self, action: &Action) {
        let (folders, name) = (self.folders.clone(), image::name(action));
        let removed = tokio::task::spawn_blocking(move || folders.remove(&name)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "cannot remove the files of a function");
        }
    }
}
