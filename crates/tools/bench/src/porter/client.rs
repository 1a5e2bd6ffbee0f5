//! Whoever calls the platform, over HTTP.

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

/// Longer than the platform waits for a call.
const PATIENCE: Duration = Duration::from_secs(90);
/// For so long it is asked what became of a call for which it does not wait any more.
pub const LONGEST: Duration = Duration::from_secs(300);
/// How often.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A client that keeps its connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    address: String,
    authorization: HeaderValue,
}

/// What the platform says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Of HTTP.
    pub status: u16,
    /// As it came.
    pub body: Bytes,
}

impl Answer {
    /// The body, null if that is no JSON.
    pub fn document(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// All of it.
    pub fn in_words(&self) -> String {
        format!("status {}: {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

impl Client {
    /// One of the platform at `HOST:PORT`, with a key.
    pub fn new(address: &str, key: &str) -> Result<Client, BenchError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let authorization = format!("Basic {}", STANDARD.encode(key.trim()));
        let authorization = HeaderValue::try_from(authorization);
        let authorization = authorization.map_err(|error| BenchError::Platform {
            doing: "being asked".to_owned(),
            reason: format!("its key is none: {error}"),
        })?;
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Ok(Client { http, address: address.to_owned(), authorization })
    }

    /// Asks; in words, why there is no answer.
    pub async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(AUTHORIZATION, &self.authorization)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let answered = async {
            let answer = self.http.request(request).await.map_err(|error| in_words(&error))?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.map_err(|error| in_words(&error))?;
            Ok(Answer { status, body: body.to_bytes() })
        };
        let late = |_| format!("there is no answer after {} s", PATIENCE.as_secs());
        timeout(PATIENCE, answered).await.map_err(late)?
    }

    /// Asks for what has to be done.
    async fn good(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, BenchError> {
        let doing = format!("asked for {method} {path}");
        let answered = self.ask(method, path, body).await;
        match answered {
            Ok(answer) if answer.status < 300 => Ok(answer),
            Ok(answer) => Err(BenchError::Platform { doing, reason: answer.in_words() }),
            Err(reason) => Err(BenchError::Platform { doing, reason }),
        }
    }

    /// Posts a document, and is answered with one.
    pub async fn post(&self, path: &str, document: &Value) -> Result<Value, String> {
        let answer = self.ask(Method::POST, path, document.to_string().into()).await?;
        match answer.status {
            200 => Ok(answer.document()),
            _ => Err(answer.in_words()),
        }
    }

    /// Makes a function.
    pub async fn deploy(&self, function: &str, action: &Value) -> Result<(), BenchError> {
        let path = format!("/api/v1/namespaces/_/actions/{function}?overwrite=true");
        self.good(Method::PUT, &path, action.to_string().into()).await.map(drop)
    }

    /// Calls a function and waits for its activation, also if the platform waits for that no more.
    pub async fn call(&self, function: &str, args: &Value) -> Result<Answer, String> {
        let path = format!("/api/v1/namespaces/_/actions/{function}?blocking=true");
        let answer = self.ask(Method::POST, &path, args.to_string().into()).await?;
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
                let answer = self.ask(Method::GET, &path, Bytes::new()).await?;
                if answer.status != 404 {
                    return Ok(answer);
                }
                sleep(ASK_AGAIN).await;
            }
        };
        let late = |_| format!("there is no record of it after {} s", LONGEST.as_secs());
        timeout(LONGEST, asked).await.map_err(late)?
    }

    /// What goes on at the platform.
    pub async fn snapshot(&self) -> Result<Snapshot, BenchError> {
        let answer = self.good(Method::GET, "/dashboard/snapshot", Bytes::new()).await?;
        serde_json::from_slice(&answer.body).map_err(|error| BenchError::Platform {
            doing: "asked what goes on".to_owned(),
            reason: error.to_string(),
        })
    }
}

/// An error with what it comes from, and without the numbers that errors of the system have.
fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let system = error.downcast_ref::<std::io::Error>().map(words::of);
    let told = system.unwrap_or_else(|| error.to_string());
    match error.source() {
        Some(source) => format!("{told}: {}", in_words(source)),
        None => told,
    }
}
