//! Deletion of old activations.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::clock::now_ms;

/// Period of the check.
const PERIOD: Duration = Duration::from_secs(60);

/// Deletes activations that began longer ago than `retention`, as long as the platform runs.
pub async fn forget_old(store: Arc<dyn Store>, retention: Duration) {
    let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
    loop {
        let (store, before_ms) = (Arc::clone(&store), now_ms().saturating_sub(retention_ms));
        let forgotten = tokio::task::spawn_blocking(move || store.forget(before_ms)).await;
        match forgotten {
            // There may be more. Other writers get their turn in between.
            Ok(Ok(1..)) => tokio::task::yield_now().await,
            Ok(Ok(0)) => tokio::time::sleep(PERIOD).await,
            Ok(Err(error)) => {
                tracing::warn!(%error, "old activations are not deleted");
                tokio::time::sleep(PERIOD).await;
            }
            Err(_) => return,
        }
    }
}
