//! The operator's socket: server and client.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use hyper::body::Bytes;
use tokio::net::{UnixListener, UnixStream};

use super::keys::handle;
use super::{KeyReply, KeyRequest, OperatorError};
use crate::http::Connection;
use crate::store::{Embedded, Store};

/// A platform's socket for its operator.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
}

fn path(state: &Path) -> PathBuf {
    state.join("operator.sock")
}

impl Listener {
    /// Listens in the state directory, replacing the socket of an earlier platform. The caller's
    /// umask limits the socket to its owner, and no other platform has the state.
    pub fn bind(state: &Path) -> Result<Listener, OperatorError> {
        let path = path(state);
        let place = |source| OperatorError::Io { doing: "listen at", place: path.clone(), source };
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(place(error)),
            _ => {}
        }
        Ok(Listener { listener: UnixListener::bind(&path).map_err(place)? })
    }

    /// Answers requests until the task ends.
    pub async fn serve(self, store: Arc<dyn Store>) -> io::Result<()> {
        let router = Router::new().route("/", post(respond)).with_state(store);
        axum::serve(self.listener, router).await
    }
}

/// The reply, or an error message.
type Outcome = Result<KeyReply, String>;

async fn respond(
    State(store): State<Arc<dyn Store>>,
    Json(ask): Json<KeyRequest>,
) -> Json<Outcome> {
    // It writes to disk, which must not block calls.
    let reply = tokio::task::spawn_blocking(move || handle(&*store, &ask)).await;
    Json(match reply {
        Ok(reply) => reply.map_err(|error| error.to_string()),
        Err(_) => Err("the platform is shutting down".to_owned()),
    })
}

/// Sends a request to the platform that serves `state`, or handles it here if none does.
pub fn ask(state: &Path, ask: &KeyRequest) -> Result<KeyReply, OperatorError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let place = |source| OperatorError::Io { doing: "reach", place: path(state), source };
    match runtime.map_err(place)?.block_on(over_socket(state, ask))? {
        Some(reply) => reply.map_err(OperatorError::Failed),
        None => handle(&open(state)?, ask),
    }
}

fn open(state: &Path) -> Result<Embedded, OperatorError> {
    let path = state.join("store.redb");
    if !path.exists() {
        return Err(OperatorError::NoState(state.to_owned()));
    }
    Ok(Embedded::open(&path)?)
}

/// The platform's reply; nothing if none runs.
async fn over_socket(state: &Path, ask: &KeyRequest) -> Result<Option<Outcome>, OperatorError> {
    let path = path(state);
    let stream = match UnixStream::connect(&path).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            // A killed platform leaves its socket.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            _ => return Err(OperatorError::Io { doing: "reach", place: path, source: error }),
        },
    };
    let no_answer = || OperatorError::NoAnswer(path.clone());
    let mut connection = Connection::handshake(stream).await.map_err(|_| no_answer())?;
    let body = serde_json::to_vec(ask).map_err(|_| no_answer())?;
    let (_, body) = connection.post("/", Bytes::from(body)).await.map_err(|_| no_answer())?;
    serde_json::from_slice(&body).map(Some).map_err(|_| no_answer())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    fn make(state: &Path) -> Result<KeyReply, OperatorError> {
        ask(state, &KeyRequest::Create("team".parse().unwrap()))
    }

    #[test]
    fn without_a_platform_the_state_is_used_directly() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        assert!(matches!(make(state), Err(OperatorError::NoState(_))));
        assert_eq!(fs::read_dir(state).unwrap().count(), 0, "nothing is made");
        drop(Embedded::open(&state.join("store.redb")).unwrap());
        assert!(matches!(make(state), Ok(KeyReply::Made { .. })));
    }

    #[test]
    fn a_running_platform_is_asked_and_a_killed_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(&state.join("store.redb")).unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let serving = Arc::clone(&store);
        let listener = {
            let _in_runtime = runtime.enter();
            Listener::bind(state).unwrap()
        };
        runtime.spawn(listener.serve(serving));
        let Ok(KeyReply::Made { user, .. }) = make(state) else { panic!("no key") };
        assert!(store.key(&user).unwrap().is_some(), "the platform has it at once");
        drop(runtime);
        // Not what a listener leaves: a process that another test has just forked may have it, too.
        fs::remove_file(path(state)).unwrap();
        mknodat(CWD, path(state), FileType::Socket, Mode::RUSR, 0).unwrap();
        assert!(
            matches!(make(state), Err(OperatorError::Store(_))),
            "another has the database open"
        );
        drop(store);
        assert!(path(state).exists() && matches!(make(state), Ok(KeyReply::Made { .. })));
    }
}
