//! The dashboard: a page that shows what goes on, as it happens.
//!
//! ```text
//!  /                     the page, which asks for all below
//!  /dashboard/FILE       its parts: style, scripts, and the library that draws charts
//!  /dashboard/snapshot   what there is and has been, once, as JSON
//!  /dashboard/events     the same every second, and decisions as they are made (Server-Sent Events)
//! ```
//! Invariants: nothing is put together while nobody looks, and for all who look at once; who looks
//! slowly loses decisions, is told how many, and holds nobody up. Like figures for collectors it is
//! told without a key: names of namespaces and functions, and nothing of what is in calls.

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

/// So many may look at once.
pub const MOST_VIEWERS: usize = 16;
/// So many functions are shown to who looks all the time.
const MOST_FUNCTIONS: usize = 100;
/// What was seen so long ago is told to others who look.
const FRESH: Duration = Duration::from_millis(500);

/// What people look at.
#[derive(Debug)]
pub struct Dashboard {
    watched: Arc<dyn Observable>,
    seats: Arc<Semaphore>,
    /// What was seen last, as JSON, and when.
    last: Mutex<Option<(Instant, Arc<str>)>>,
    is_over: watch::Sender<bool>,
}

impl Dashboard {
    /// One that shows this.
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

    /// Ends what goes on until somebody ends it, so that the platform can.
    pub fn end(&self) {
        self.is_over.send_replace(true);
    }

    /// What is to be seen, as JSON of one line. All who look share one look.
    async fn look(&self) -> Result<Arc<str>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(text));
        }
        let mut seen = seen(Arc::clone(&self.watched)).await?;
        seen.shorten(MOST_FUNCTIONS);
        let text: Arc<str> = json(&seen)?.into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        Ok(text)
    }
}

/// Looks where it holds nobody up.
async fn seen(watched: Arc<dyn Observable>) -> Result<Snapshot, ApiError> {
    let seen = tokio::task::spawn_blocking(move || watched.snapshot()).await;
    seen.map_err(|_| ApiError::Internal("nobody could look".to_owned()))
}

fn json(value: &impl serde::Serialize) -> Result<String, ApiError> {
    serde_json::to_string(value).map_err(|error| ApiError::Internal(error.to_string()))
}

/// All of it, however many functions there are.
async fn snapshot(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, ApiError> {
    let text = json(&seen(Arc::clone(&dashboard.watched)).await?)?;
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    Ok((headers, text).into_response())
}

async fn events(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, ApiError> {
    let seat = Arc::clone(&dashboard.seats).try_acquire_owned();
    let seat = seat.map_err(|_| {
        ApiError::TooMany(format!("{MOST_VIEWERS} look at the dashboard already, close one"))
    })?;
    Ok(Sse::new(Viewer::new(dashboard, seat).stream()).into_response())
}
