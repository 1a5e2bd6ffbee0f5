//! Asking an instance something: over its connection, as long as it lives and time is left.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::call_error::CallError;
use super::instance::End;
use super::logs::{Lines, Logs};
use super::nodes::{Connect, Paused};
use crate::http::{Connection, HttpError};

/// How often it is looked whether an instance that pauses at its deadline does so still.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// When time is over for an instance; that for which it pauses does not count.
pub struct Deadline {
    at: Instant,
    paused: Paused,
    paused_before: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn after(limit: Duration, paused: &Paused) -> Deadline {
        let (paused, paused_before) = (Arc::clone(paused), paused());
        Deadline { at: Instant::now() + limit, paused, paused_before }
    }

    /// Waits for it.
    async fn passed(&self) {
        let mut at = self.at;
        loop {
            sleep_until(at).await;
            let later = self.at + (self.paused)().saturating_sub(self.paused_before);
            if later <= at {
                return;
            }
            // It may pause while this is looked at.
            at = later.max(at + LOOK_AGAIN);
        }
    }
}

/// What comes of work with an instance, while its lines are read, until it ends or time is over.
pub async fn watched<T>(
    work: impl Future<Output = Result<T, HttpError>>,
    deadline: &Deadline,
    end: &mut watch::Receiver<Option<End>>,
    logs: &mut Logs,
    lines: &mut Lines,
) -> Result<T, CallError> {
    let work = async {
        tokio::select! {
            // An answer that is there counts, whatever became of the instance.
            biased;
            answer = work => Ok(answer?),
            // Nobody else changes it; a sender that is gone has said all.
            _ = end.wait_for(Option::is_some) => Err(CallError::Exited),
            () = deadline.passed() => Err(CallError::TimedOut),
        }
    };
    logs.during(work, lines).await
}

/// Posts a document, on a new connection if there is none or the server has ended it meanwhile.
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
    async fn what_an_instance_pauses_is_not_its_time() {
        let paused = Arc::new(Mutex::new(Duration::from_secs(7)));
        let told = Arc::clone(&paused);
        let told: Paused = Arc::new(move || *told.lock().unwrap());
        let begun = Instant::now();
        let deadline = Deadline::after(Duration::from_secs(2), &told);
        deadline.passed().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(2), "it paused before that");
        *paused.lock().unwrap() += Duration::from_secs(3);
        deadline.passed().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }
}
