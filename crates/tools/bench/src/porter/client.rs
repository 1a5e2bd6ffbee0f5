//! The HTTP client that calls the platform.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_platform::scheduler::snapshot::Snapshot;
use farfork_sys::words;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::error::BenchError;

/// Limit of a response: more than the platform waits for a call.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long to poll for the record of a call that the platform waits for no longer.
pub const LONGEST: Duration = Duration::from_secs(300);
/// Interval of polls.
const POLL: Duration = Duration::from_millis(200);

/// A client that keeps its connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    address: String,
    authorization: HeaderValue,
}

/// A response of the platform.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON. Null if it is invalid.
    pub fn document(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Status and body as text.
    pub fn describe(&self) -> String {
        format!("status {}: {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

impl Client {
    /// A client of the platform at `HOST:PORT`, with a key.
    pub fn new(address: &str, key: &str) -> Result<Client, BenchError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let authorization = format!("Basic {}", STANDARD.encode(key.trim()));
        let authorization = HeaderValue::try_from(authorization);
        let authorization = authorization.map_err(|error| BenchError::Platform {
            doing: "reading its key".to_owned(),
            reason: format!("invalid key: {error}"),
        })?;
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(Client { http, address: address.to_owned(), authorization })
    }

    /// Sends a request. The error is the reason why there is no response.
    pub async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let answered = async {
            let answer =
                self.http.request(request).await.map_err(|error| describe_error(&error))?;
            let status = answer.status().as_u16();
            let body =
                answer.into_body().collect().await.map_err(|error| describe_error(&error))?;
            Ok(Answer { status, body: body.to_bytes() })
        };
        let late = |_| format!("timed out after {} s", RESPONSE_TIMEOUT.as_secs());
        timeout(RESPONSE_TIMEOUT, answered).await.map_err(late)?
    }

    /// Sends a request that must succeed.
    async fn must_send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, BenchError> {
        let doing = format!("answering {method} {path}");
        let answered = self.send(method, path, body).await;
        match answered {
            Ok(answer) if answer.status < 300 => Ok(answer),
            Ok(answer) => Err(BenchError::Platform { doing, reason: answer.describe() }),
            Err(reason) => Err(BenchError::Platform { doing, reason }),
        }
    }

    /// Posts a document, and returns the document in the response.
    pub async fn post(&self, path: &str, document: &Value) -> Result<Value, String> {
        let answer = self.send(Method::POST, path, document.to_string().into()).await?;
        match answer.status {
            200 => Ok(answer.document()),
            _ => Err(answer.describe()),
        }
    }

    /// Deploys a function.
    pub async fn deploy(&self, function: &str, action: &Value) -> Result<(), BenchError> {
        let path = format!("/api/v1/namespaces/_/actions/{function}?overwrite=true");
        self.must_send(Method::PUT, &path, action.to_string().into()).await.map(drop)
    }

    /// Calls a function and waits for its activation, also if the platform does not wait any longer.
    pub async fn call(&self, function: &str, args: &Value) -> Result<Answer, String> {
        let path = format!("/api/v1/namespaces/_/actions/{function}?blocking=true");
        let answer = self.send(Method::POST, &path, args.to_string().into()).await?;
        match (answer.status, answer.document()["activationId"].as_str()) {
            (202, Some(id)) => self.later(id).await,
            _ => Ok(answer),
        }
    }

    /// Waits for the record of a call.
    async fn later(&self, id: &str) -> Result<Answer, String> {
        let path = format!("/api/v1/namespaces/_/activations/{id}");
        let asked = async {
            loop {
                let answer = self.send(Method::GET, &path, Bytes::new()).await?;
                if answer.status != 404 {
                    return Ok(answer);
                }
                sleep(POLL).await;
            }
        };
        let late = |_| format!("timed out after {} s waiting for its record", LONGEST.as_secs());
        timeout(LONGEST, asked).await.map_err(late)?
    }

    /// The state of the platform.
    pub async fn snapshot(&self) -> Result<Snapshot, BenchError> {
        let answer = self.must_send(Method::GET, "/dashboard/snapshot", Bytes::new()).await?;
        serde_json::from_slice(&answer.body).map_err(|error| BenchError::Platform {
            doing: "reporting its state".to_owned(),
            reason: error.to_string(),
        })
    }
}

/// An error with its sources. Errors of the system are shown in words, without their number.
fn describe_error(error: &(dyn std::error::Error + 'static)) -> String {
    let system = error.downcast_ref::<std::io::Error>().map(words::of);
    let message = system.unwrap_or_else(|| error.to_string());
    match error.source() {
        Some(source) => format!("{message}: {}", describe_error(source)),
        None => message,
    }
}
