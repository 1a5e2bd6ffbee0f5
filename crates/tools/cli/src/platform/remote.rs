//! URL and key of the platform, and HTTP requests to it.

use std::env;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_sys::words;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use crate::progress::Progress;
use farfork_types::printable;

/// Limit of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a response: more than the platform waits for a call, and enough to upload large code.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval of progress on the terminal.
const INTERVAL: Duration = Duration::from_millis(100);
/// Limit of a body: about ten activations with the largest logs and results.
const MOST_BYTES: usize = 256 << 20;
/// The key that `farfork serve` writes by default.
const GUEST_KEY: &str = "/var/lib/farfork/guest.key";

/// The platform.
#[derive(clap::Args)]
pub(crate) struct UrlArg {
    /// URL of the platform.
    #[arg(long, value_name = "URL", env = "FARFORK_URL", default_value = "http://127.0.0.1:3233")]
    url: String,
}

/// The platform, and the key for it.
#[derive(clap::Args)]
pub(crate) struct Remote {
    #[command(flatten)]
    platform: UrlArg,
    /// File with a key USER:SECRET. Default: the key in $FARFORK_KEY, then the file that farfork serve
    /// writes, /var/lib/farfork/guest.key.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// A response of the platform.
#[derive(Debug)]
pub(crate) struct Response {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The JSON body. Null if it is invalid.
    pub(crate) body: Value,
}

/// A request to the platform.
pub(crate) struct Request<'a> {
    /// The HTTP method.
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: &'a str,
    /// The JSON body.
    pub(crate) body: Option<Value>,
    /// The progress shown on a terminal, e.g. "deploying hello".
    pub(crate) doing: &'a str,
}

impl Response {
    /// The body. An error if the platform refused the request.
    pub(crate) fn success(self) -> Result<Value, Box<dyn Error>> {
        if self.status < 300 && !self.body.is_null() {
            return Ok(self.body);
        }
        Err(self.refusal().into())
    }

    /// The platform's reason to refuse a request.
    pub(crate) fn refusal(&self) -> String {
        let reason = match self.body["error"].as_str() {
            Some(reason) => format!("the platform reports: {}", printable(reason)),
            None => format!("the response has status {} and no error of a platform", self.status),
        };
        match self.status {
            401 => reason + " The key is not valid there; use another key (--key-file)",
            _ => reason,
        }
    }
}

impl UrlArg {
    /// The URL, as it was given.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request without a key.
    pub(crate) fn send(&self, request: Request<'_>) -> Result<Response, Box<dyn Error>> {
        self.send_with(None, request)
    }

    fn send_with(
        &self,
        key: Option<&str>,
        Request { method, path, body, doing }: Request<'_>,
    ) -> Result<Response, Box<dyn Error>> {
        let (authority, prefix) = split_url(&self.url)?;
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(HOST, &authority)
            .header(USER_AGENT, concat!("farfork/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*")
            .header(CONTENT_TYPE, "application/json");
        let request = match key {
            Some(key) => request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(key))),
            None => request,
        };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut progress = Progress::new(doing);
        let exchange = exchange(&authority, request);
        let response = runtime.block_on(with_progress(exchange, &mut progress));
        drop(progress);
        response.map_err(|reason| {
            format!(
                "cannot reach the platform at {}: {reason}; is farfork serve running?",
                self.url
            )
            .into()
        })
    }
}

impl Remote {
    /// The URL of a path of the platform.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.platform.url().trim_end_matches('/'))
    }

    /// Sends a request with the key.
    pub(crate) fn send(&self, request: Request<'_>) -> Result<Response, Box<dyn Error>> {
        self.platform.send_with(Some(&self.key()?), request)
    }

    /// Gets the document at `path`.
    pub(crate) fn get(&self, path: &str, doing: &str) -> Result<Response, Box<dyn Error>> {
        self.send(Request { method: Method::GET, path, body: None, doing })
    }

    fn key(&self) -> Result<String, Box<dyn Error>> {
        let text = match (&self.key_file, env::var("FARFORK_KEY")) {
            (Some(path), _) => key_in(path)?,
            (None, Ok(key)) => key,
            (None, Err(_)) => key_in(GUEST_KEY.as_ref())?,
        };
        let key = text.trim();
        // Anything else, the contents of a wrong file perhaps, must not be sent.
        match key.split_once(':') {
            Some((user, secret)) if !user.is_empty() && !secret.is_empty() => Ok(key.to_owned()),
            _ => Err("invalid key (expected USER:SECRET, as farfork serve writes it)".into()),
        }
    }
}

fn key_in(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| {
        let (path, why) = (path.display(), words::of(&error));
        format!("cannot read a key from {path}: {why}; use another file (--key-file)")
    })
}

/// `HOST:PORT` of a URL, and the prefix of all paths.
fn split_url(url: &str) -> Result<(String, String), String> {
    let wrong = |why: &str| format!("invalid URL '{url}' of a platform: {why}");
    // Without a scheme it is http, as with wsk.
    let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = whole.parse().map_err(|_| wrong("expected http://HOST:PORT"))?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong("only http is supported; for https, use a proxy"));
    }
    let host = uri.host().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("expected http://HOST:PORT"))?;
    let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    Ok((authority, uri.path().trim_end_matches('/').to_owned()))
}

/// Connects, sends a request, and returns the response or the reason why there is none.
async fn exchange(
    authority: &str,
    request: hyper::Request<Full<Bytes>>,
) -> Result<Response, String> {
    let late = |limit: Duration| move |_| format!("timed out after {} s", limit.as_secs());
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(authority)).await;
    let stream = stream.map_err(late(CONNECT_TIMEOUT))?.map_err(|error| words::of(&error))?;
    let response = timeout(RESPONSE_TIMEOUT, exchange_on(stream, request)).await;
    response.map_err(late(RESPONSE_TIMEOUT))?
}

async fn exchange_on(
    stream: TcpStream,
    request: hyper::Request<Full<Bytes>>,
) -> Result<Response, String> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(reason)?;
    // The request fails by the same error as the connection.
    tokio::spawn(async { drop(connection.await) });
    let response = sender.send_request(request).await.map_err(reason)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|_| "the response is truncated or too long".to_owned())?.to_bytes();
    Ok(Response { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Why there is no response. Errors of the system are shown in words, without their number.
fn reason(error: hyper::Error) -> String {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(source) => words::of(source),
        None if error.is_parse() => "the response is not HTTP".to_owned(),
        None => "the connection was closed without a response".to_owned(),
    }
}

/// Shows the time that work takes while it runs.
async fn with_progress<T>(work: impl Future<Output = T>, progress: &mut Progress<'_>) -> T {
    let begun = Instant::now();
    let mut work = std::pin::pin!(work);
    let mut ticks = interval(INTERVAL);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            _ = ticks.tick() => progress.time(begun.elapsed()),
        }
    }
}

/// The path of an object in the key's namespace, or in another one if it is named `/NAMESPACE/NAME`.
pub(crate) fn path(what: &str, name: &str) -> String {
    let (namespace, name) = match name.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((namespace, name)) => (namespace, name),
        None => ("_", name),
    };
    format!("/api/v1/namespaces/{}/{what}/{}", encoded(namespace), encoded(name))
}

/// The path of a web action.
pub(crate) fn web_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/web/{}/default/{}", encoded(namespace), encoded(name))
}

/// Percent-encodes a string for a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_http() {
        let of = |url: &str| {
            split_url(url).map_err(|message| {
                assert!(message.contains(url), "{message}");
            })
        };
        let host = |host: &str, prefix: &str| Ok((host.to_owned(), prefix.to_owned()));
        assert_eq!(of("http://127.0.0.1:3233"), host("127.0.0.1:3233", ""));
        assert_eq!(of("localhost:80/"), host("localhost:80", ""));
        assert_eq!(of("http://a.example/whisk/"), host("a.example:80", "/whisk"));
        assert_eq!(of("http://[::1]:7"), host("[::1]:7", ""));
        for bad in ["", "https://a", "ftp://a", "http://", "http://a b", "http://:80"] {
            assert_eq!(of(bad), Err(()), "{bad}");
        }
    }

    #[test]
    fn names_in_paths_are_encoded() {
        assert_eq!(path("actions", "a b@x.y"), "/api/v1/namespaces/_/actions/a%20b%40x.y");
        assert_eq!(path("actions", "/guest/a"), "/api/v1/namespaces/guest/actions/a");
        // There are no packages: the platform refuses the name.
        assert_eq!(path("actions", "a/b"), "/api/v1/namespaces/_/actions/a%2Fb");
        assert_eq!(path("actions", "?a&"), "/api/v1/namespaces/_/actions/%3Fa%26");
        assert_eq!(web_path("a b", "c/d"), "/api/v1/web/a%20b/default/c%2Fd");
    }
}
