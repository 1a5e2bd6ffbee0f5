//! For how long activations are kept.

use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::clock::now_ms;

/// How often it is looked at whether any are too old.
const LOOK: Duration = Duration::from_secs(60);

/// Has the store forget activations that began longer ago than `retention`, for ever.
pub async fn forget_old(store: Arc<dyn Store>, retention: Duration) {
    let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
    loop {
        let (store, before_ms) = (Arc::clone(&store), now_ms().saturating_sub(retention_ms));
        let forgotten = tokio::task::spawn_blocking(move || store.forget(before_ms)).await;
        match forgotten {
            // There may be more, and others want to write, too.
            Ok(Ok(1..)) => tokio::task::yield_now().await,
            Ok(Ok(0)) => tokio::time::sleep(LOOK).await,
            Ok(Err(error)) => {
                tracing::warn!(%error, "old activations are not forgotten");
                tokio::time::sleep(LOOK).await;
            }
            Err(_) => return,
        }
    }
}
