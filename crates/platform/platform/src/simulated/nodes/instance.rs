//! A simulated instance: an HTTP server on pipes.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farfork_sys::sync::locked;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;

use super::SimulatedNodes;
use crate::scheduler::nodes::{BoxFuture, Connect, Output, Stream};
use crate::simulated::{Footprint, Program};

/// Bytes of a pipe.
const PIPE: usize = 1 << 16;

/// An instance's server.
pub struct Instance {
    /// Its name.
    pub id: u64,
    /// The nodes that it is on.
    pub nodes: SimulatedNodes,
    program: Arc<dyn Program>,
    kills: watch::Sender<Option<String>>,
    /// Whether it has executed another program.
    launches: watch::Sender<bool>,
    memory: Mutex<Memory>,
    output: tokio::sync::Mutex<Option<[DuplexStream; 2]>>,
}

/// What an instance remembers.
#[derive(Debug, Default)]
struct Memory {
    code: Option<String>,
    calls: u64,
}

/// Ends an instance, at the latest when dropped.
pub struct Tie(pub Arc<Instance>);

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        self.0.end("it was killed by signal 9");
        self.0.nodes.ended(self.0.id);
    }
}

impl Instance {
    /// An instance with this code, if it is a clone, and its output. One that `prints` nothing has
    /// streams that are at their end.
    pub(super) fn new(
        id: u64,
        code: Option<String>,
        prints: bool,
        nodes: SimulatedNodes,
        program: Arc<dyn Program>,
    ) -> (Arc<Instance>, [Output; 2]) {
        let (pipes, output) = match prints {
            true => {
                let ([out, out_end], [err, err_end]) = (pipe(), pipe());
                let output: [Output; 2] = [Box::new(out), Box::new(err)];
                (Some([out_end, err_end]), output)
            }
            false => {
                let output: [Output; 2] =
                    [Box::new(tokio::io::empty()), Box::new(tokio::io::empty())];
                (None, output)
            }
        };
        let instance = Instance {
            id,
            nodes,
            program,
            kills: watch::channel(None).0,
            launches: watch::channel(false).0,
            memory: Mutex::new(Memory { code, calls: 0 }),
            output: tokio::sync::Mutex::new(pipes),
        };
        (Arc::new(instance), output)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Every step leaves it valid.
        locked(&self.memory)
    }

    /// Loads code.
    pub fn load(&self, code: &str) {
        self.memory().code = Some(code.to_owned());
    }

    /// Counts a call; returns the code, if it was loaded, and the number of calls so far.
    pub fn count_call(&self) -> (Option<String>, u64) {
        let mut memory = self.memory();
        memory.calls += 1;
        (memory.code.clone(), memory.calls)
    }

    /// Says what it takes of memory.
    pub fn weigh(&self, footprint: Footprint) {
        self.nodes.weigh(self.id, footprint);
    }

    /// Works for so long, apart from when it is paused.
    pub async fn work(&self, duration: Duration) {
        self.nodes.work(self.id, duration).await;
    }

    /// Works for so long, `busy` of which needs a processor where they are shared, apart from when it is paused.
    pub async fn compute(&self, busy: Duration, rest: Duration) {
        self.nodes.works(self.id, busy, rest).await;
    }

    /// Ends it.
    pub fn end(&self, why: &str) {
        self.kills.send_replace(Some(why.to_owned()));
    }

    /// Executes another program, which closes its connections.
    pub fn launch(&self) {
        self.launches.send_replace(true);
    }

    /// Prints to standard output (0) or standard error (1).
    pub async fn print(&self, stream: usize, text: &str) {
        if let Some(pipes) = &mut *self.output.lock().await {
            // The reader may be gone.
            let _ = pipes[stream].write_all(text.as_bytes()).await;
        }
    }

    /// Completes when it has ended, with the reason.
    pub(super) async fn ended(&self) -> Option<String> {
        let mut ended = self.kills.subscribe();
        let why = ended.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone())
    }

    /// Makes connections to its server.
    pub(super) fn connect(self: Arc<Instance>) -> Connect {
        Box::new(move || -> BoxFuture<io::Result<Stream>> {
            if self.nodes.refuses_connection(*self.launches.borrow()) {
                return Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) });
            }
            let [client, stream] = pipe();
            tokio::spawn(serve(Arc::clone(&self), stream));
            Box::pin(async { Ok(Box::new(client) as Stream) })
        })
    }

    async fn answer(self: Arc<Instance>, request: Request<Incoming>) -> (u16, Value) {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.map(|body| body.to_bytes());
        let body = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        let Some(body) = body else { return (400, json!({"error": "not JSON"})) };
        let program = Arc::clone(&self.program);
        program.answer(self, path, body).await
    }
}

fn pipe() -> [DuplexStream; 2] {
    duplex(PIPE).into()
}

async fn serve(instance: Arc<Instance>, stream: DuplexStream) {
    let mut ended = instance.kills.subscribe();
    let mut launches = instance.launches.subscribe();
    let service = service_fn(|request| {
        let instance = Arc::clone(&instance);
        async move {
            let (status, answer) = instance.answer(request).await;
            let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
            // A program's status is valid; otherwise the answer is a plain one.
            if let Ok(status) = hyper::StatusCode::from_u16(status) {
                *response.status_mut() = status;
            }
            Ok::<_, Infallible>(response)
        }
    });
    // In this order, so that equal runs are equal.
    tokio::select! {
        biased;
        _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service) => {}
        _ = ended.wait_for(Option::is_some) => {}
        // Later connections go to the program.
        _ = launches.changed() => {}
    }
}
