//! Calls of a server that listens nowhere but for this program: an instance's, or the platform's own.

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// Most bytes of an answer.
pub const MOST_ANSWER_BYTES: usize = 1 << 20;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// Nothing of the request has left.
    NotSent,
    /// The connection has ended, and it is not known how far the server came.
    Lost,
    /// The answer is longer than answers may be.
    TooLong,
    /// The answer is none of HTTP's.
    InvalidHttp,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Speaks HTTP over a stream of bytes.
    pub async fn handshake(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Connection, HttpError> {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|_| HttpError::NotSent)?;
        // What it fails by, the requests on it do, too.
        let driver = tokio::spawn(async { drop(connection.await) });
        Ok(Connection { sender, driver })
    }

    /// Posts a document: the status and the answer's body.
    pub async fn post(&mut self, path: &str, body: Bytes) -> Result<(u16, Bytes), HttpError> {
        self.sender.ready().await.map_err(|_| HttpError::NotSent)?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, "here")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| HttpError::NotSent)?;
        let answer = self.sender.send_request(request).await.map_err(|error| match error {
            error if error.is_canceled() => HttpError::NotSent,
            error if error.is_parse() => HttpError::InvalidHttp,
            _ => HttpError::Lost,
        })?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), MOST_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => HttpError::TooLong,
            None => HttpError::Lost,
        })?;
        Ok((status, body.to_bytes()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
