//! Client connections.
//!
//! Invariants: a client that stops sending its request, or stops reading its response, loses its
//! connection. A client that waits for its response does not, however long that takes, and even if
//! it has closed its sending side. A client that sends a little now and then keeps its connection:
//! a proxy has to limit the number of connections.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_io_timeout::TimeoutStream;
use tower_http::timeout::RequestBodyTimeoutLayer;

/// Timeouts of client connections.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// For the head of a request, from the connection or the previous response on.
    pub head: Duration,
    /// For the next part of a body.
    pub body: Duration,
    /// For room to send more of a response.
    pub answer: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        // Longer than a proxy keeps connections (nginx: 60 s), so that the proxy is the one to
        // close them.
        let head = Duration::from_secs(75);
        let usual = Duration::from_secs(30);
        ClientTimeouts { head, body: usual, answer: usual }
    }
}

/// Answers requests until `over` completes, and then those that have begun.
pub async fn serve(
    mut listener: TcpListener,
    routes: Router,
    patience: ClientTimeouts,
    over: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience.head).half_close(true);
    let routes = routes.layer(RequestBodyTimeoutLayer::new(patience.body));
    let service = TowerToHyperService::new(routes);
    let (graceful, mut over) = (GracefulShutdown::new(), pin!(over));
    loop {
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut over => break,
        };
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(patience.answer));
        let stream = TokioIo::new(Box::pin(stream));
        let connection = graceful.watch(http.serve_connection(stream, service.clone()));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a client connection failed");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
