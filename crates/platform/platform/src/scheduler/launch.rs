//! Having the server of an instance become another program, which serves the function then.
//!
//! ```text
//!  POST /launch ──► the connection is reset: execve    or an answer: why not
//!  connect, again and again, until the program listens ──► the first connection
//! ```

use std::io;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::sleep;

use super::nodes::Connect;
use super::protocol;
use crate::api::Response;
use crate::http::{Connection, HttpError};

/// How soon it is looked again whether a program listens.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Has the server become another program; `document` says which. Why it has not, if that is so.
pub async fn launch(connect: &Connect, document: Bytes) -> Result<Option<Response>, HttpError> {
    let stream = connect().await.map_err(|_| HttpError::NotSent)?;
    match Connection::handshake(stream).await?.post("/launch", document).await {
        // It ends the connection as it begins, or as it dies, which its end tells.
        Err(HttpError::Lost) => Ok(None),
        Err(error) => Err(error),
        Ok((status, body)) => Ok(Some(protocol::not_launched((status, &body)))),
    }
}

/// Waits until the program listens: a connection to it.
pub async fn listening(connect: &Connect) -> Result<Connection, HttpError> {
    loop {
        match connect().await {
            Ok(stream) => return Connection::handshake(stream).await,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return Err(HttpError::NotSent),
        }
        sleep(LOOK_AGAIN).await;
    }
}
