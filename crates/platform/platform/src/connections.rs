//! Connections of clients.
//!
//! Invariants: a client that sends nothing more of a request, or takes nothing more of its answer, loses its
//! connection; one that waits for its answer does not, however long that takes, and whether or not it has said
//! that it sends nothing more. A client that sends a little now and then keeps it: how many connections there
//! may be is for a proxy to limit.

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

/// How long clients are waited for.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// For the head of a request: from the connection, or from the answer before it.
    pub head: Duration,
    /// For the next part of a body.
    pub body: Duration,
    /// For room to send more of an answer.
    pub answer: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        // A proxy keeps connections for a while, nginx for 60 s: it is to be the one that ends them.
        let head = Duration::from_secs(75);
        let usual = Duration::from_secs(30);
        ClientTimeouts { head, body: usual, answer: usual }
    }
}

/// Answers requests until it is `over`, and then those that were begun.
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
                tracing::debug!(%error, "a connection has ended early");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}
