//! Requests to an instance over its connection, until it exits or the deadline has passed.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::call_error::CallError;
use super::logs::{Lines, Logs};
use super::nodes::{Connect, Paused};
use crate::http::{Connection, HttpError};

/// Period of the check whether an instance that was paused at its deadline still is.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The exit of an instance, with its reason if known.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Why, as far as known.
    pub why: Option<String>,
}

/// A deadline that is extended by the time for which the instance is paused.
pub struct Deadline {
    at: Instant,
    paused: Paused,
    paused_before: Duration,
}

impl Deadline {
    /// A deadline this long from now.
    pub fn after(limit: Duration, paused: &Paused) -> Deadline {
        let (paused, paused_before) = (Arc::clone(paused), paused());
        Deadline { at: Instant::now() + limit, paused, paused_before }
    }

    /// Waits until it has passed.
    async fn passed(&self) {
        let mut at = self.at;
        loop {
            sleep_until(at).await;
            let later = self.at + (self.paused)().saturating_sub(self.paused_before);
            if later <= at {
                return;
            }
            // It may be paused again meanwhile.
            at = later.max(at + LOOK_AGAIN);
        }
    }
}

/// Runs work with an instance while its output is read, until the instance exits or the deadline
/// has passed.
pub async fn until_deadline<T>(
    work: impl Future<Output = Result<T, HttpError>>,
    deadline: &Deadline,
    end: &mut watch::Receiver<Option<End>>,
    logs: &mut Logs,
    lines: &mut Lines,
) -> Result<T, CallError> {
    let work = async {
        tokio::select! {
            // A complete answer counts even if the instance has exited meanwhile.
            biased;
            answer = work => Ok(answer?),
            // A dropped sender means that it has exited, too.
            _ = end.wait_for(Option::is_some) => Err(CallError::Exited),
            () = deadline.passed() => Err(CallError::TimedOut),
        }
    };
    logs.during(work, lines).await
}

/// Posts a document, on a new connection if there is none or the server has closed it.
pub async fn exchange(
    connect: &Connect,
    connection: &mut Option<Connection>,
    path: &str,
    body: Bytes,
) -> Result<(u16, Bytes), HttpError> {
    if let Some(open) = connection {
        match open.post(path, body.clone()).await {
            Err(HttpError::NotSent) => *connection = None,
            other => return other,
        }
    }
    let stream = connect().await.map_err(|_| HttpError::NotSent)?;
    let made = Connection::handshake(stream).await?;
    connection.insert(made).post(path, body).await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_time_extends_the_deadline() {
        let paused = Arc::new(Mutex::new(Duration::from_secs(7)));
        let shared = Arc::clone(&paused);
        let paused_time: Paused = Arc::new(move || *shared.lock().unwrap());
        let begun = Instant::now();
        let deadline = Deadline::after(Duration::from_secs(2), &paused_time);
        deadline.passed().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2), "earlier pauses do not count");
        *paused.lock().unwrap() += Duration::from_secs(3);
        deadline.passed().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }
}
