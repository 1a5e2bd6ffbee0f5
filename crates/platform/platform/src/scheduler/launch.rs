//! Making an instance's server execute another program, which then serves the function.
//!
//! ```text
//!  POST /launch ──► the connection is reset by execve    or an answer with the error
//!  connect, retried until the program listens ──► the first connection
//! ```

use std::io;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::sleep;

use super::nodes::Connect;
use super::protocol;
use crate::api::Response;
use crate::http::{Connection, HttpError};

/// Period of connection attempts.
const RETRY: Duration = Duration::from_millis(5);

/// Makes the server execute the program in `document`. Returns the failure if it refuses.
pub async fn launch(connect: &Connect, document: Bytes) -> Result<Option<Response>, HttpError> {
    let stream = connect().await.map_err(|_| HttpError::NotSent)?;
    match Connection::handshake(stream).await?.post("/launch", document).await {
        // The connection ends with execve, or with the process, whose exit is seen elsewhere.
        Err(HttpError::Lost) => Ok(None),
        Err(error) => Err(error),
        Ok((status, body)) => Ok(Some(protocol::not_launched((status, &body)))),
    }
}

/// Waits until the program listens; returns a connection to it.
pub async fn listening(connect: &Connect) -> Result<Connection, HttpError> {
    loop {
        match connect().await {
            Ok(stream) => return Connection::handshake(stream).await,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return Err(HttpError::NotSent),
        }
        sleep(RETRY).await;
    }
}
