//! A gateway under test, and a raw client.

use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use farfork_platform::api::{
    Action, Activation, ApiError, Name, Outcome, Response, Runtimes, StartKind, Times,
};
use farfork_platform::connections::{self, ClientLimits};
use farfork_platform::gateway::{Gateway, router};
use farfork_platform::memory::RequestMemory;
use farfork_platform::scheduler::{Call, CallCounts, CallSlot, Caller};
use farfork_platform::store::{Embedded, Key, Store};
use farfork_policy::settings::Requests;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A key of the namespace `guest`.
pub const GUEST: &str = "guest-key:secret";
/// A key of another namespace.
pub const OTHER: &str = "other-key:hidden";

/// The timeout of an impatient gateway.
const SOON: Duration = Duration::from_millis(1000);
/// Longer than that.
const LATE: Duration = Duration::from_millis(2500);

/// A running gateway.
pub struct Bed {
    address: SocketAddr,
    pub store: Arc<dyn Store>,
    pub caller: Arc<TestCaller>,
    pub gateway: Gateway,
    _runtime: Option<Runtime>,
    _directory: tempfile::TempDir,
}

/// A caller that answers by the arguments, and records its calls.
#[derive(Debug)]
pub struct TestCaller {
    store: Arc<dyn Store>,
    records: Mutex<Vec<String>>,
    /// How many calls were admitted, and whether no more are.
    pub admitted: AtomicUsize,
    pub is_full: AtomicBool,
    /// The senders of calls that are never answered, kept open so that they do not count as lost.
    pub kept: Mutex<Vec<(Call, oneshot::Sender<Activation>)>>,
}

impl TestCaller {
    /// Takes the recorded calls, a line each.
    pub fn recorded(&self) -> Vec<String> {
        std::mem::take(&mut self.records.lock().unwrap())
    }

    fn note(&self, line: String) {
        self.records.lock().unwrap().push(line);
    }
}

impl Caller for TestCaller {
    fn admit(&self, namespace: &Name) -> Result<CallSlot, ApiError> {
        if namespace.as_str() == "crowded" || self.is_full.load(Ordering::Acquire) {
            return Err(ApiError::TooMany("1000 calls are being made already".to_owned()));
        }
        self.admitted.fetch_add(1, Ordering::AcqRel);
        Ok(Arc::<CallCounts>::default().add(namespace))
    }

    fn call(&self, call: Call, _: CallSlot) -> oneshot::Receiver<Activation> {
        let (answer, receiver) = oneshot::channel();
        let is_accepted = self.store.accepted().unwrap().iter().any(|other| other.id == call.id);
        self.note(format!("call {} accepted={is_accepted}", call.action.path()));
        let args: Map<String, Value> = serde_json::from_str(call.args.text()).unwrap();
        let response = match args.get("do").and_then(Value::as_str) {
            Some("lose") => return receiver,
            Some("wait") => {
                self.kept.lock().unwrap().push((call, answer));
                return receiver;
            }
            Some("return") => Response::from_result(args["result"].clone().into()),
            Some("fail") => Response::from_result(json!({ "error": "on purpose" }).into()),
            Some("crash") => Response::failure(Outcome::DeveloperError, "it ended"),
            Some("break") => Response::failure(Outcome::InternalError, "no node answers"),
            _ => Response::from_result(Value::Object(args.clone()).into()),
        };
        let start_ms = args.get("at").and_then(Value::as_u64).unwrap_or(call.asked_ms);
        let times = Times { start_ms, end_ms: start_ms + 7, wait_ms: 2, init_ms: Some(5) };
        let logs = vec!["2026-01-01T00:00:00.000Z stdout: hello".to_owned()];
        let start = (StartKind::Cold, times);
        let mut activation = Activation::new(call.id, &call.action, response, logs, start);
        activation.annotations.set("traceparent", call.trace.parent);
        self.store.finish(activation.clone()).unwrap();
        let is_late = args.contains_key("late");
        tokio::spawn(async move {
            if is_late {
                tokio::time::sleep(LATE).await;
            }
            let _ = answer.send(activation);
        });
        receiver
    }

    fn metrics(&self) -> String {
        "calls_total 7\n# EOF\n".to_owned()
    }

    fn gone(&self, action: &Action) {
        self.note(format!("gone {} {}", action.path(), action.version));
    }
}

/// A response of the gateway.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// JSON, or a text if it is not JSON.
    pub body: Value,
    /// All that followed the head.
    pub bytes: Vec<u8>,
}

impl Answer {
    /// A header; names are in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Asserts an error in OpenWhisk's shape. On any other, clients report a broken connection.
    pub fn assert_error(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let text = self.body["error"].as_str().unwrap_or_else(|| panic!("no error in {self:?}"));
        assert!(text.contains(words), "{words}: {text}");
        assert!(self.body["code"].as_str().is_some_and(|code| !code.is_empty()), "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
    }

    /// The body of a successful response.
    pub fn good(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }
}

impl Bed {
    pub fn new() -> Bed {
        Bed::waiting(ClientLimits::default(), Requests::default())
    }

    /// A gateway that does not wait for slow clients.
    pub fn impatient() -> Bed {
        let patience =
            ClientLimits { head: SOON, body: SOON, answer: SOON, ..ClientLimits::default() };
        Bed::waiting(patience, Requests::default())
    }

    /// A gateway with room for few connections.
    pub fn narrow(connections: usize) -> Bed {
        let limits = ClientLimits { connections, ..ClientLimits::default() };
        Bed::waiting(limits, Requests::default())
    }

    /// A gateway with little memory.
    pub fn small(limits: Requests) -> Bed {
        Bed::waiting(ClientLimits::default(), limits)
    }

    fn waiting(patience: ClientLimits, limits: Requests) -> Bed {
        Bed::served(limits, |gateway, listener| {
            let runtime = Runtime::new().unwrap();
            runtime.spawn(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                connections::serve(listener, router(gateway), patience, pending()).await;
            });
            Some(runtime)
        })
    }

    /// A gateway whose clock advances whenever it is idle.
    pub fn in_no_time() -> Bed {
        Bed::served(Requests::default(), |gateway, listener| {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
            std::thread::spawn(|| runtime.unwrap().block_on(serve(gateway, listener)));
            None
        })
    }

    fn served(
        limits: Requests,
        begin: impl FnOnce(Gateway, TcpListener) -> Option<Runtime>,
    ) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(&directory.path().join("db")).unwrap());
        for (key, namespace) in [(GUEST, "guest"), (OTHER, "other"), ("crowd:x", "crowded")] {
            let (user, secret) = key.split_once(':').unwrap();
            let key = Key {
                user: user.to_owned(),
                secret_sha256: Sha256::digest(secret).into(),
                namespace: namespace.parse().unwrap(),
                created_ms: 0,
            };
            store.put_key(&key).unwrap();
        }
        let (records, admitted, is_full, kept) = Default::default();
        let caller =
            Arc::new(TestCaller { store: store.clone(), records, admitted, is_full, kept });
        let runtimes =
            Arc::new(Runtimes { python: "3.11".to_owned(), nodejs: None, blackbox: true });
        let memory = RequestMemory::new(limits);
        let gateway = Gateway { store: store.clone(), runtimes, caller: caller.clone(), memory };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime = begin(gateway.clone(), listener);
        Bed { address, store, caller, gateway, _runtime: runtime, _directory: directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends bytes as they are, and the end; reads the answer.
    pub fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // A gateway that refuses what it has not read yet may close before all of it is sent.
        let _ = stream.write_all(request);
        Bed::answer(stream)
    }

    /// Reads the answer.
    pub fn answer(mut stream: TcpStream) -> Answer {
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) if !answer.is_empty() => drop(error),
            Err(error) => panic!("no answer: {error}"),
        }
        parsed(&answer)
    }

    /// Asks with a key.
    pub fn ask(&self, key: Option<&str>, method: &str, path: &str, body: &[u8]) -> Answer {
        let credentials = key.map_or_else(String::new, |key| {
            format!("Authorization: Basic {}\r\n", STANDARD.encode(key))
        });
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\n{credentials}Connection: close\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    /// Asks for what is below the own namespace.
    pub fn guest(&self, method: &str, path: &str, body: impl AsBody) -> Answer {
        let path = format!("/api/v1/namespaces/_/{path}");
        self.ask(Some(GUEST), method, &path, &body.bytes())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.guest("GET", path, ())
    }

    /// Creates an action that returns its arguments.
    pub fn create(&self, name: &str) -> Value {
        let exec = json!({"kind": "python:default", "code": "def main(args): return args"});
        let body = json!({"namespace": "_", "name": name, "exec": exec});
        self.guest("PUT", &format!("actions/{name}"), body).good()
    }
}

/// Serves without timeouts, which would expire at once on that clock.
async fn serve(gateway: Gateway, listener: TcpListener) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    axum::serve(listener, router(gateway)).await.unwrap();
}

/// The body of a request.
pub trait AsBody {
    fn bytes(self) -> Vec<u8>;
}

impl AsBody for () {
    fn bytes(self) -> Vec<u8> {
        Vec::new()
    }
}

impl AsBody for Value {
    fn bytes(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl AsBody for &str {
    fn bytes(self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

fn parsed(answer: &[u8]) -> Answer {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(answer)));
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<(String, String)> = lines.map(header).collect();
    let is_chunked = headers.contains(&("transfer-encoding".to_owned(), "chunked".to_owned()));
    let rest = &answer[end + 4..];
    let bytes = if is_chunked { joined(rest) } else { rest.to_vec() };
    let text = String::from_utf8_lossy(&bytes);
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text.into_owned()));
    Answer { status, headers, body, bytes }
}

/// The content of chunks, ended by an empty one.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let line = chunks.windows(2).position(|bytes| bytes == b"\r\n").expect("a chunk's size");
        let size = std::str::from_utf8(&chunks[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return all;
        }
        let content = line + 2;
        all.extend(&chunks[content..content + size]);
        chunks = &chunks[content + size + 2..];
    }
}
