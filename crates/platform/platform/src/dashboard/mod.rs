//! The dashboard: a page that shows the platform's state live.
//!
//! ```text
//!  /                     the page, which requests all below
//!  /dashboard/FILE       its files: style, scripts, and the chart library
//!  /dashboard/snapshot   the platform's state, once, as JSON
//!  /dashboard/events     the same every second, and decisions as they are made (Server-Sent
//! Events)
//! ```
//! Invariants: snapshots are taken only while viewers are connected, and all viewers share one. A
//! slow viewer loses decisions, learns how many, and blocks no other. Like metrics, the dashboard
//! needs no key: it names namespaces and functions, and contains nothing of calls' arguments or
//! results.

mod page;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response, Sse};
use axum::routing::get;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::Instant;

use crate::api::ApiError;
use crate::scheduler::Observable;
use crate::scheduler::snapshot::Snapshot;
use stream::Viewer;

/// Most concurrent viewers.
pub const MOST_VIEWERS: usize = 16;
/// Most functions in the snapshots of the event stream.
const MOST_FUNCTIONS: usize = 100;
/// A snapshot of this age is shared with other viewers.
const FRESH: Duration = Duration::from_millis(500);

/// The dashboard.
#[derive(Debug)]
pub struct Dashboard {
    watched: Arc<dyn Observable>,
    seats: Arc<Semaphore>,
    /// The last snapshot as JSON, and its time.
    last: Mutex<Option<(Instant, Arc<str>)>>,
    is_over: watch::Sender<bool>,
}

impl Dashboard {
    /// A dashboard of `watched`.
    pub fn new(watched: Arc<dyn Observable>) -> Arc<Dashboard> {
        let seats = Arc::new(Semaphore::new(MOST_VIEWERS));
        let is_over = watch::Sender::new(false);
        Arc::new(Dashboard { watched, seats, last: Mutex::default(), is_over })
    }

    /// Its routes.
    pub fn router(self: Arc<Dashboard>) -> Router {
        Router::new()
            .route("/dashboard/snapshot", get(snapshot))
            .route("/dashboard/events", get(events))
            .with_state(self)
            .merge(page::router())
    }

    /// Ends all event streams, so that the platform can shut down.
    pub fn end(&self) {
        self.is_over.send_replace(true);
    }

    /// The snapshot as one line of JSON, shared by all viewers.
    async fn shared_snapshot(&self) -> Result<Arc<str>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(text));
        }
        let mut snapshot = take_snapshot(Arc::clone(&self.watched)).await?;
        snapshot.shorten(MOST_FUNCTIONS);
        let text: Arc<str> = json(&snapshot)?.into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        Ok(text)
    }
}

/// Takes a snapshot on a thread that may block.
async fn take_snapshot(watched: Arc<dyn Observable>) -> Result<Snapshot, ApiError> {
    let snapshot = tokio::task::spawn_blocking(move || watched.snapshot()).await;
    snapshot.map_err(|_| ApiError::Internal("taking a snapshot failed".to_owned()))
}

fn json(value: &impl serde::Serialize) -> Result<String, ApiError> {
    serde_json::to_string(value).map_err(|error| ApiError::Internal(error.to_string()))
}

/// The snapshot with all functions.
async fn snapshot(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, ApiError> {
    let text = json(&take_snapshot(Arc::clone(&dashboard.watched)).await?)?;
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    Ok((headers, text).into_response())
}

async fn events(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, ApiError> {
    let seat = Arc::clone(&dashboard.seats).try_acquire_owned();
    let seat = seat.map_err(|_| {
        ApiError::TooMany(format!("the dashboard has {MOST_VIEWERS} viewers already; close one"))
    })?;
    Ok(Sse::new(Viewer::new(dashboard, seat).stream()).into_response())
}
