//! HTTP requests to servers that only this program reaches: an instance's, or the platform's own.

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// Most bytes of a response body.
pub const MOST_ANSWER_BYTES: usize = 1 << 20;

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// Nothing of the request was sent.
    NotSent,
    /// The connection has ended. How far the server came is not known.
    Lost,
    /// The response is longer than [`MOST_ANSWER_BYTES`].
    TooLong,
    /// The response is not valid HTTP.
    InvalidHttp,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Begins HTTP over a stream of bytes.
    pub async fn handshake(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Connection, HttpError> {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|_| HttpError::NotSent)?;
        // If the connection fails, so do the requests on it.
        let driver = tokio::spawn(async { drop(connection.await) });
        Ok(Connection { sender, driver })
    }

    /// Posts a document; returns status and body of the response.
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
