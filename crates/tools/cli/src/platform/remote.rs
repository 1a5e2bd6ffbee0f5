//! Where the platform is, who asks, and asking over HTTP.

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
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

use crate::progress::Progress;

/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long an answer may take: longer than the platform waits for a call, and large code needs to travel.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is shown how long an answer takes.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most bytes of an answer: some ten activations with all that they may print and return.
const MOST_BYTES: usize = 256 << 20;
/// Where `farfork serve` leaves a key if nobody says otherwise.
const GUEST_KEY: &str = "/var/lib/farfork/guest.key";

/// Which platform.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Where the platform listens.
    #[arg(long, value_name = "URL", env = "FARFORK_URL", default_value = "http://127.0.0.1:3233")]
    url: String,
}

/// Which platform, and who asks.
#[derive(clap::Args)]
pub(crate) struct Remote {
    #[command(flatten)]
    place: Place,
    /// File with USER:KEY. Without it $FARFORK_KEY is the key itself; without that, the file is read
    /// that farfork serve makes, /var/lib/farfork/guest.key.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// What the platform says.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Of HTTP.
    pub(crate) status: u16,
    /// Null if that is no JSON.
    pub(crate) body: Value,
}

/// Something to be asked.
pub(crate) struct Question<'a> {
    /// How.
    pub(crate) method: Method,
    /// From the root, with its query.
    pub(crate) path: &'a str,
    /// A document that goes with it.
    pub(crate) body: Option<Value>,
    /// What people are told while it takes long, as in "deploying hello".
    pub(crate) doing: &'a str,
}

impl Answer {
    /// The body, unless the platform says that it did not do what it was asked.
    pub(crate) fn good(self) -> Result<Value, Box<dyn Error>> {
        if self.status < 300 && !self.body.is_null() {
            return Ok(self.body);
        }
        Err(self.refusal().into())
    }

    /// What a platform says that does not do what it was asked.
    pub(crate) fn refusal(&self) -> String {
        let words = match self.body["error"].as_str() {
            Some(words) => format!("the platform says: {words}"),
            None => format!("status {} and no words of a platform", self.status),
        };
        match self.status {
            401 => words + " The key is of no use there: name another by --key-file",
            _ => words,
        }
    }
}

impl Place {
    /// As people write it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks without a key.
    pub(crate) fn ask(&self, question: Question<'_>) -> Result<Answer, Box<dyn Error>> {
        self.ask_with(None, question)
    }

    fn ask_with(
        &self,
        key: Option<&str>,
        question: Question<'_>,
    ) -> Result<Answer, Box<dyn Error>> {
        let (authority, prefix) = parsed(&self.url)?;
        let path = format!("{prefix}{}", question.path);
        let request = Request::builder()
            .method(question.method)
            .uri(path)
            .header(HOST, &authority)
            .header(USER_AGENT, concat!("farfork/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "*/*")
            .header(CONTENT_TYPE, "application/json");
        let request = match key {
            Some(key) => request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(key))),
            None => request,
        };
        let body = question.body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body)))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut progress = Progress::new(question.doing);
        let asking = answered(&authority, request);
        let asked = runtime.block_on(shown(asking, &mut progress));
        drop(progress);
        asked.map_err(|reason| {
            format!(
                "cannot reach the platform at {}: {reason}: is farfork serve running?",
                self.url
            )
            .into()
        })
    }
}

impl Remote {
    /// Where something of the platform is, as people write it.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.place.url().trim_end_matches('/'))
    }

    /// Asks with the key.
    pub(crate) fn ask(&self, question: Question<'_>) -> Result<Answer, Box<dyn Error>> {
        self.place.ask_with(Some(&self.key()?), question)
    }

    /// Asks for what is at `path`.
    pub(crate) fn get(&self, path: &str, doing: &str) -> Result<Answer, Box<dyn Error>> {
        self.ask(Question { method: Method::GET, path, body: None, doing })
    }

    fn key(&self) -> Result<String, Box<dyn Error>> {
        let text = match (&self.key_file, env::var("FARFORK_KEY")) {
            (Some(path), _) => key_in(path)?,
            (None, Ok(key)) => key,
            (None, Err(_)) => key_in(GUEST_KEY.as_ref())?,
        };
        let key = text.trim();
        // What is no key is not sent anywhere.
        match key.split_once(':') {
            Some((user, secret)) if !user.is_empty() && !secret.is_empty() => Ok(key.to_owned()),
            _ => Err("the key is not USER:KEY, as farfork serve writes it".into()),
        }
    }
}

fn key_in(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| {
        let (path, why) = (path.display(), words::of(&error));
        format!("cannot read a key from {path}: {why}: name another file by --key-file")
    })
}

/// `HOST:PORT`, and what stands before every path.
fn parsed(url: &str) -> Result<(String, String), String> {
    let wrong = |why: &str| format!("'{url}' is no address of a platform: {why}");
    // As wsk has it, a scheme is not needed.
    let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = whole.parse().map_err(|_| wrong("write http://HOST:PORT"))?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong("only http is spoken; for https, name what forwards to it"));
    }
    let host = uri.host().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("write http://HOST:PORT"))?;
    let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    Ok((authority, uri.path().trim_end_matches('/').to_owned()))
}

async fn answered(authority: &str, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let late = |limit: Duration| move |_| format!("it does not answer in {} s", limit.as_secs());
    let stream = timeout(CONNECTING, TcpStream::connect(authority)).await;
    let stream = stream.map_err(late(CONNECTING))?.map_err(|error| words::of(&error))?;
    let exchanged = timeout(PATIENCE, exchange(stream, request)).await;
    exchanged.map_err(late(PATIENCE))?
}

async fn exchange(stream: TcpStream, request: Request<Full<Bytes>>) -> Result<Answer, String> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(in_words)?;
    // What it fails by, the request does, too.
    tokio::spawn(async { drop(connection.await) });
    let answer = sender.send_request(request).await.map_err(in_words)?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    let body = body.map_err(|_| "its answer ends too early, or is too long".to_owned())?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Why there is no answer; without the numbers that errors of the system have.
fn in_words(error: hyper::Error) -> String {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match source {
        Some(source) => words::of(source),
        None if error.is_parse() => "what answers speaks no HTTP".to_owned(),
        None => "it ends the connection without an answer".to_owned(),
    }
}

/// Shows how long work takes while it does.
async fn shown<T>(work: impl Future<Output = T>, progress: &mut Progress<'_>) -> T {
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

/// The path of something below the key's namespace, or another that is named as `/NAMESPACE/NAME`.
pub(crate) fn path(what: &str, name: &str) -> String {
    let (namespace, name) = match name.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((namespace, name)) => (namespace, name),
        None => ("_", name),
    };
    format!("/api/v1/namespaces/{}/{what}/{}", encoded(namespace), encoded(name))
}

/// The path at which plain HTTP calls a function.
pub(crate) fn web_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/web/{}/default/{}", encoded(namespace), encoded(name))
}

/// A text as it stands in a path or a query.
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
            parsed(url).map_err(|words| {
                assert!(words.contains(url), "{words}");
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
    fn names_stand_in_paths_as_they_are_meant() {
        assert_eq!(path("actions", "a b@x.y"), "/api/v1/namespaces/_/actions/a%20b%40x.y");
        assert_eq!(path("actions", "/guest/a"), "/api/v1/namespaces/guest/actions/a");
        // Of packages there are none: it is a name that is refused.
        assert_eq!(path("actions", "a/b"), "/api/v1/namespaces/_/actions/a%2Fb");
        assert_eq!(path("actions", "?a&"), "/api/v1/namespaces/_/actions/%3Fa%26");
        assert_eq!(web_path("a b", "c/d"), "/api/v1/web/a%20b/default/c%2Fd");
    }
}
