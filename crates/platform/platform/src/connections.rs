//! Client connections.
//!
//! Invariants: a client that stops sending its request, or stops reading its response, loses its
//! connection. A client that waits for its response does not, however long that takes, and even if
//! it has closed its sending side. There are never more connections than a limit, below that of open
//! files, so that the platform reaches its nodes whatever clients do. Beyond it, a new connection takes the place
//! of the one that has waited longest for a request; if all are answering requests, it gets status 503.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::serve::Listener;
use farfork_sys::sync::locked;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_io_timeout::TimeoutStream;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::held::holding;

/// Limits of client connections.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// How many there are.
    pub connections: usize,
    /// Timeout for the head of a request, from the connection or the previous response on.
    pub head: Duration,
    /// Timeout for the next part of a body.
    pub body: Duration,
    /// Timeout for room to send more of a response.
    pub answer: Duration,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        // Longer than a proxy keeps connections (nginx: 60 s), so that the proxy is the one to
        // close them.
        let head = Duration::from_secs(75);
        let usual = Duration::from_secs(30);
        ClientLimits { connections: MOST, head, body: usual, answer: usual }
    }
}

/// Most connections. Each takes a descriptor and some tens of KiB.
const MOST: usize = 8192;

impl ClientLimits {
    /// Those of a process with so many descriptors: half of them are for clients at most.
    pub fn with_descriptors(descriptors: u64) -> ClientLimits {
        let half = usize::try_from(descriptors / 2).unwrap_or(MOST);
        ClientLimits { connections: half.clamp(1, MOST), ..ClientLimits::default() }
    }
}

/// Answers requests until `over` completes, and then those that have begun.
pub async fn serve(
    mut listener: TcpListener,
    routes: Router,
    limits: ClientLimits,
    over: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head).half_close(true);
    let routes = routes.layer(RequestBodyTimeoutLayer::new(limits.body));
    let service = TowerToHyperService::new(routes);
    let (graceful, mut over) = (GracefulShutdown::new(), pin!(over));
    let connections = Arc::new(Connections::new(limits.connections));
    loop {
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut over => break,
        };
        let Some(slot) = connections.admit() else {
            refuse(&stream);
            continue;
        };
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.answer));
        let stream = TokioIo::new(Box::pin(stream));
        let is_over = Arc::clone(&slot.is_over);
        let service = service.clone();
        let answering = service_fn(move |request: Request<_>| {
            let answering = (slot.answering(), service.call(request));
            async {
                let (answering, response) = answering;
                response.await.map(|response| holding(response, answering))
            }
        });
        let connection = graceful.watch(http.serve_connection(stream, answering));
        tokio::spawn(async move {
            tokio::select! {
                done = connection => if let Err(error) = done {
                    tracing::debug!(%error, "a client connection failed");
                },
                () = is_over.notified() => {
                    tracing::debug!("an idle client connection was closed for another");
                }
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Says that there are too many, as far as the socket takes it at once.
fn refuse(stream: &TcpStream) {
    let body = r#"{"error":"The platform has too many connections.","code":"0"}"#;
    let length = body.len();
    let _ = stream.try_write(
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .as_bytes(),
    );
}

/// The connections that there are.
#[derive(Debug)]
struct Connections {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    next_turn: u64,
    /// Those that wait for the head of a request, the one that has waited longest first.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// The place of one connection, given back when this is dropped.
#[derive(Debug)]
struct Slot {
    connections: Arc<Connections>,
    is_over: Arc<Notify>,
    /// Its turn among those that wait.
    turn: Mutex<Option<u64>>,
}

/// As long as a connection answers a request.
#[derive(Debug)]
struct Answering(Arc<Slot>);

impl Connections {
    fn new(most: usize) -> Connections {
        Connections { most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves it valid.
        locked(&self.state)
    }

    /// A place for one more, which waits for its first request. None if all are answering.
    fn admit(self: &Arc<Connections>) -> Option<Arc<Slot>> {
        let mut state = self.state();
        if state.count >= self.most {
            let (_, longest) = state.waiting.pop_first()?;
            longest.notify_one();
        }
        state.count += 1;
        drop(state);
        let slot =
            Slot { connections: Arc::clone(self), is_over: Arc::default(), turn: Mutex::default() };
        slot.wait();
        Some(Arc::new(slot))
    }
}

impl Slot {
    fn turn(&self) -> MutexGuard<'_, Option<u64>> {
        locked(&self.turn)
    }

    fn wait(&self) {
        let mut state = self.connections.state();
        let turn = state.next_turn;
        state.next_turn += 1;
        state.waiting.insert(turn, Arc::clone(&self.is_over));
        drop(state);
        *self.turn() = Some(turn);
    }

    fn stop_waiting(&self) {
        if let Some(turn) = self.turn().take() {
            self.connections.state().waiting.remove(&turn);
        }
    }

    fn answering(self: &Arc<Slot>) -> Answering {
        self.stop_waiting();
        Answering(Arc::clone(self))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.stop_waiting();
        self.connections.state().count -= 1;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_over(slot: &Slot) -> bool {
        tokio::time::timeout(Duration::from_millis(10), slot.is_over.notified()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_waited_longest_makes_room() {
        let connections = Arc::new(Connections::new(3));
        let [one, two, three] = [0; 3].map(|_| connections.admit().expect("there is room"));
        let answering = one.answering();
        let _four = connections.admit().expect("the second waits");
        assert!(is_over(&two).await && !is_over(&one).await && !is_over(&three).await);
        drop(two);
        drop(answering);
        let _five = connections.admit().expect("the third waits");
        assert!(is_over(&three).await && !is_over(&one).await, "the first has answered since");
        drop(three);
        assert_eq!(connections.state().count, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_answer_stay() {
        let connections = Arc::new(Connections::new(2));
        let slots = [0; 2].map(|_| connections.admit().expect("there is room"));
        let [one, two] = [0, 1].map(|slot: usize| slots[slot].answering());
        assert!(connections.admit().is_none());
        drop((one, two, slots));
        let state = connections.state();
        assert_eq!((state.count, state.waiting.len()), (0, 0));
        drop(state);
        assert!(connections.admit().is_some());
    }

    #[test]
    fn clients_leave_half_of_the_descriptors() {
        let connections = |files| ClientLimits::with_descriptors(files).connections;
        assert_eq!([connections(1024), connections(1 << 20), connections(0)], [512, MOST, 1]);
    }
}
