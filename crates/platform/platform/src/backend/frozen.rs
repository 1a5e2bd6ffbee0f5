//! Freezing idle instances, and thawing them for their next call.
//!
//! The ghosts' cgroups are frozen: threads that a function has left running take no processor
//! between its calls, and notice only that time has passed.

use super::Inner;
use super::requests::{RequestClass, connect};
use crate::scheduler::nodes::NodesError;

impl Inner {
    /// Freezes an idle instance.
    pub async fn freeze(&self, id: u64) -> Result<(), NodesError> {
        let (node, pid) = self
            .ledger
            .freeze(id)
            .ok_or_else(|| failed("freeze", "it is busy, paused or has ended"))?;
        // If the request fails, the instance may be frozen all the same.
        self.set_frozen(&node, pid, true).await
    }

    /// Thaws an instance.
    pub async fn thaw(&self, id: u64) -> Result<(), NodesError> {
        let (node, pid) = self.ledger.location(id).ok_or_else(|| failed("thaw", "it has ended"))?;
        self.set_frozen(&node, pid, false).await?;
        self.ledger.thawed(id);
        Ok(())
    }

    async fn set_frozen(&self, node: &str, pid: i32, freeze: bool) -> Result<(), NodesError> {
        let name = node.to_owned();
        let request = move || connect(&name, RequestClass::Look)?.pause(pid, freeze);
        let doing = if freeze { "freeze" } else { "thaw" };
        self.request(node, request).await.map_err(|error| failed(doing, &error.to_string()))
    }
}

fn failed(doing: &'static str, reason: &str) -> NodesError {
    NodesError::Freezer { doing, reason: reason.to_owned() }
}
